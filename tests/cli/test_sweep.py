"""``parsimax sweep``: trains, audits, draws, and does nothing twice."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import yaml
from tests.classify.texts import options, rows, write
from tests.viz.page import Page

from parsimax.cli import main
from parsimax.cli.sweep import _mappings
from parsimax.mappings import parse

GRID = ["--lam", "-2", "0", "0.5", "--seeds", "1", "2", "--training.max_epochs", "1"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sst-bilstm-tanh.yaml"
    path.write_text(yaml.safe_dump(options(tmp_path)))
    return path


def test_a_sweep_and_the_same_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["sweep", str(config), *GRID, "--texts", "12", "--out", "out"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "[8/8] sst-bilstm-tanh, sparsegen(lam=0.5), seed 2" in said.err
    assert "written to out/sweep.html" in said.out
    made = Path("out/sst-bilstm-tanh/lam=0.5_seed=2")
    assert (made / "checkpoints" / "best.ckpt").exists()
    found = json.loads(Path("out/sweep.json").read_text())
    cells = found["settings"][0]["cells"]
    assert [cell["mapping"] for cell in cells][:2] == ["softmax", "sparsegen(lam=-2)"]
    assert all(cell["seeds"] == [1, 2] for cell in cells)
    assert found["settings"][0]["trend"]["models"] == 6
    with Path("out/models.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 8
    tables = Path("out/tables.md").read_text()
    assert "0.93 ± 0.05" in tables  # the paper's figure beside ours
    assert "−0.866" in tables

    html = Path("out/sweep.html").read_text()
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]|url\((?!#)", html)
    assert not set(page.tags) & {"script", "link", "iframe", "img"}
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert "$" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    text = " ".join(page.text)
    for part in ("Table 1", "Table 2", "Figure 1", "Figure 2", "Figure 3", "Figure 4"):
        assert part in text

    audits = {p: p.stat().st_mtime_ns for p in Path("out").rglob("sweep-audit.json")}
    assert len(audits) == 8
    weights = (made / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    next(iter(audits)).unlink()  # as if it had been stopped there
    assert main([*arguments, "--quiet"]) == 0
    assert (made / "checkpoints" / "last.ckpt").stat().st_mtime_ns == weights
    changed = [p for p, before in audits.items() if p.stat().st_mtime_ns != before]
    assert changed == [next(iter(audits))]
    assert json.loads(Path("out/sweep.json").read_text())["settings"] == found["settings"]


def test_alphas_and_what_is_trained_already(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", str(config), "--out", "out", "--texts", "8"]
    few = ["--training.max_epochs", "1", "--alpha", "1.5", "--no-softmax", "--quiet"]
    assert main([*arguments, *few]) == 0
    assert [p.name for p in Path("out/sst-bilstm-tanh").iterdir()] == ["alpha=1.5_seed=1"]
    assert main([*arguments, "--alpha", "1.5", "2", *few[:2], "--only-trained"]) == 0
    assert "not trained, and left out: 2 of 3" in capsys.readouterr().out
    assert main([*arguments, "--lam", "0.5", "--only-trained"]) == 1
    assert "none of the 2 runs of this sweep is trained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lam", "1"], "lam: expected finite numbers below 1, got 1"),
        (["--alpha", "0.5"], "alpha: expected numbers from 1, got 0.5"),
        (["--lam", "0", "--alpha", "2"], "lam, alpha: expected one of them, got both"),
        (["--texts", "-1"], "texts: expected at least 0"),
        (["--memory", "-1"], "memory: expected at least 1, got -1"),
        (["--steps", "-1"], "steps: expected at least 0, got -1"),
        (["--seeds", "1", "1"], "seeds: expected different numbers, got 1 twice"),
        (["--seeds", "-5"], "seeds: expected numbers from 0"),
        (["--lam", "0.5", "0", "0.50"], "lam: expected different numbers, got 0.5 twice"),
        (["--lam", "1.0000001"], "below 1, got 1.0000001"),
        (["--model.attention.kind", "uniform"], "uniform attention has no mapping"),
    ],
)
def test_options_that_cannot_be(
    config: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(config), "--out", "out", *arguments]) == 1
    assert not Path("out").exists()  # before anything is trained
    assert message in capsys.readouterr().err


def test_configs_that_cannot_be(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "--seeds", "1"]) == 1
    assert "expected the YAML file of a text classifier" in capsys.readouterr().err
    assert main(["sweep", str(config), str(config)]) == 1
    assert "different names" in capsys.readouterr().err
    other = tmp_path / "seq2seq.yaml"
    other.write_text("data: {train: [a], validation: [b]}\n")
    assert main(["sweep", str(other)]) == 1
    assert "task: classification" in capsys.readouterr().err


def test_other_options_and_data_are_not_shown_as_the_old_ones(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sweep", str(config), "--lam", "0.5", "--no-softmax", "--texts", "8"]
    arguments += ["--training.max_epochs", "2", "--out", "out", "--quiet"]
    assert main(arguments) == 0
    before = {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    for option, value, named in (
        ("--model.encoder.hidden", "4", "model.encoder.hidden (8, now 4)"),
        ("--training.max_epochs", "1", "training.max_epochs (2, now 1)"),
        ("--optimizer.lr", "0.5", "optimizer.lr (0.02, now 0.5)"),
        ("--model.dropout", "0.5", "model.dropout (0.0, now 0.5)"),
    ):
        for more in ([], ["--only-trained"]):
            assert main([*arguments, option, value, *more]) == 1
            assert f"other values of {named}" in capsys.readouterr().err.replace("\n", " ")
    write(tmp_path / "test.jsonl", rows(30, 9))
    assert main(arguments) == 1
    assert "the contents of its data files" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()} == before
    (broken,) = Path("out").rglob("sweep-audit.json")
    for text in ('{"options": ', "[1]"):
        broken.write_text(text)
        assert main(arguments) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert str(broken) in said
        assert "remove it, and it is made again" in said


def test_parameters_are_not_rounded() -> None:
    found = _mappings((0.1234567, 0.12345678, 0.99999999, -0.0), (), False)
    assert list(found) == ["lam=0.1234567", "lam=0.12345678", "lam=0.99999999", "lam=0"]
    assert [float(parse(text).lam) for text in found.values()] == [
        0.1234567,
        0.12345678,
        0.99999999,
        0,
    ]
    assert list(_mappings((), (1.0000001, 1.5), True).values())[1:] == [
        "entmax(alpha=1.0000001)",
        "entmax(alpha=1.5)",
    ]


def test_the_file_has_every_option_of_the_grid(config: Path) -> None:
    arguments = ["sweep", str(config), "--lam", "0.5", "--seeds", "1", "2", "--texts", "8"]
    assert main([*arguments, "--training.max_epochs", "1", "--out", "out", "--quiet"]) == 0
    found = json.loads(Path("out/sweep.json").read_text())["configs"]["sst-bilstm-tanh"]
    assert found["seed"] == [1, 2]
    assert found["model.attention.mapping"] == ["softmax", "sparsegen(lam=0.5)"]
    assert found["training.max_epochs"] == 1
