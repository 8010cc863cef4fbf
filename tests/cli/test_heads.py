"""parsimax heads: a page, JSON and CSV, and what to do when something is missing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.cli.runs import TRANSFORMER, make_run

from parsimax.cli import main

LEARNED = {
    **TRANSFORMER,
    "encoder_attention": "entmax(alpha=learned)",
    "context_attention": "entmax(alpha=learned)",
    "decoder_attention": "entmax(alpha=learned)",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a", model=LEARNED)


def test_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alphas = {kind: [[1.5, 1.6], [1.7, 1.2]] for kind in ("encoder", "context", "decoder")}
    lines = [{"event": "validation", "step": step, "alphas": alphas} for step in (5, 7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["heads", str(run)]) == 0
    out = capsys.readouterr().out
    assert "encoder" in out
    assert "density" in out
    folder = run / "heads"
    page = (folder / "heads.html").read_text(encoding="utf-8")
    assert "Figure 2" in page
    saved = json.loads((folder / "heads.json").read_text())
    (model,) = saved["models"]
    assert model["name"] == "a"
    assert model["sentences"] == 5
    assert list(model["modules"]) == ["encoder", "context", "decoder"]
    assert model["trajectories"]["encoder"]["steps"] == [5, 7]
    assert "who" in model["interrogatives"]
    with (folder / "heads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert all(1 <= float(row["alpha"]) <= 2 for row in rows)
    with (folder / "layers.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 6


def test_several_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run(tmp_path / "b", model=LEARNED, seed=1)
    arguments = ["heads", str(run), str(other), "--out", str(tmp_path / "out"), "--sentences", "3"]
    assert main([*arguments, "--interrogatives", "wer", "wie"]) == 0
    assert "a and b, encoder: matched heads" in capsys.readouterr().out
    saved = json.loads((tmp_path / "out" / "heads.json").read_text())
    assert [model["name"] for model in saved["models"]] == ["a", "b"]
    assert saved["models"][0]["interrogatives"] == ["wer", "wie"]
    assert saved["models"][1]["sentences"] == 3
    assert [each["module"] for each in saved["agreement"]] == ["encoder", "context", "decoder"]


def test_runs_that_cannot_be_compared_head_by_head(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rnn = make_run(tmp_path / "rnn")
    assert main(["heads", str(run), str(rnn), "--out", str(tmp_path / "x")]) == 0
    assert "different layers and heads" in capsys.readouterr().err.replace("\n", " ")
    assert json.loads((tmp_path / "x" / "heads.json").read_text())["agreement"] == []
    words = make_run(tmp_path / "words", rows="do\tdid\tV;PST\n", model=LEARNED)
    data = ["--data", str(tmp_path / "words-data" / "all-train")]
    assert main(["heads", str(run), str(words), "--out", str(tmp_path / "y"), *data]) == 0
    assert "different vocabularies" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sentences", "0"], "sentences: expected at least 1, got 0"),
        (["--batch", "0"], "batch: expected at least 1, got 0"),
        (["--language", "tlh"], "language: expected one of en, de"),
        (["--language", "en", "--interrogatives", "wer"], "expected one of them, got both"),
        (["--data", "nowhere.tsv"], "nowhere.tsv"),
    ],
)
def test_mistakes_are_one_line(
    run: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["heads", str(run), *more]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_not_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heads"]) == 1
    assert "RUN: expected the folder of a run" in capsys.readouterr().err
    assert main(["heads", str(tmp_path)]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err


def test_the_language_of_a_file() -> None:
    from parsimax.cli.heads import _language_of

    assert _language_of(["data/train.de.xz"]) == "de"
    assert _language_of(["data/dev.fr"]) == "fr"
    assert _language_of(["data/dev.tsv"]) == "en"
