"""``parsimax audit``: files, options and what it says of mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from tests.classify.texts import config, rows, write
from tests.cli.runs import make_run

from parsimax.classify import training
from parsimax.cli import main

FAST = ["--steps", "3", "--permutations", "3", "--device", "cpu"]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    training.train(config(folder), folder / "run", quiet=True)
    return folder / "run"


def test_page_json_and_csv(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(run), "--out", str(tmp_path / "a"), *FAST, "--sparse"]) == 0
    said = capsys.readouterr().out
    assert "Does attention rank tokens" in said
    assert f"written to {tmp_path / 'a' / 'audit.html'}" in said
    found = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert (found["texts"], found["data_texts"]) == (40, 40)
    assert found["model"] == "BiLSTM, additive attention, softmax"
    assert set(found["settings"]["searches"]) == {
        "adversarial attention",
        "adversarial entmax(alpha=1.5)",
        "adversarial softmax on the support",
    }
    table = read_csv(tmp_path / "a" / "audit.csv")
    assert len(table) == len(found["table"])
    by_text = read_csv(tmp_path / "a" / "texts.csv")
    assert len(by_text) == 40
    key = "tau_b/attention/gradient_norm:inputs"
    mean = sum(float(row[key]) for row in by_text) / 40
    row = next(r for r in found["table"] if r["measure"] == "tau_b")
    assert row["mean"] == pytest.approx(mean)
    assert "Is attention an explanation?" in (tmp_path / "a" / "audit.html").read_text()


def test_other_data_sampled_and_parts_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "new.jsonl", [{"text": r["text"]} for r in rows(30, 9)])
    arguments = ["audit", str(run), "--data", str(data), "--texts", "12", "--states", "0"]
    arguments += ["--adversaries", "0", "--permutations", "0", "--no-erasure", "--quiet"]
    assert main([*arguments, "--integrated-gradients", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    found = json.loads((tmp_path / "audit.json").read_text())
    assert (found["texts"], found["data_texts"]) == (12, 30)
    names = {row["measure"] for row in found["table"]}
    assert not names & {"own_share", "comprehensiveness", "jsd", "prediction_moved"}
    assert any(row["reference"] == "integrated_gradients:inputs" for row in found["table"])
    assert "No text has a label" in str(found["quality"]["notes"])
    assert "a random sample of 30" in (tmp_path / "audit.html").read_text()


def test_quick_fills_in_what_is_not_given(run: Path, tmp_path: Path) -> None:
    assert main(["audit", str(run), "--quick", "--steps", "2", "--out", str(tmp_path)]) == 0
    settings = json.loads((tmp_path / "audit.json").read_text())["settings"]
    assert settings["searches"]["adversarial attention"]["steps"] == 2
    assert (settings["permutations"], settings["states_per_text"]) == (20, 16)
    page = (tmp_path / "audit.html").read_text()
    assert "This is a quick look: at most 200 texts, 2 steps of search" in page
    assert "The search for other weights was short here: 5 × 2 steps" in page


def test_controls_are_trained_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", str(run), *FAST, "--out", str(tmp_path), "--seeds", "2", "--uniform"]
    arguments += ["--adversarial", "0.5"]
    assert main(arguments) == 0
    assert "control: seed 2" in capsys.readouterr().err
    first = json.loads((tmp_path / "audit.json").read_text())["controls"]
    assert [c["kind"] for c in first] == ["seed", "uniform", "adversarial"]
    assert first[2]["jsd"]["mean"] > 0
    made = tmp_path / "controls" / "seed-2" / "checkpoints" / "last.ckpt"
    before = made.stat().st_mtime_ns
    assert main(arguments) == 0
    assert made.stat().st_mtime_ns == before
    assert json.loads((tmp_path / "audit.json").read_text())["controls"] == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--texts", "0"], "texts: expected at least 1, got 0"),
        (["--adversaries", "-1"], "adversaries: expected at least 0"),
        (["--epsilon", "2"], "epsilon: expected a number from 0 to 1"),
        (["--adversarial", "-1"], "adversarial: expected finite numbers from 0, got -1"),
        (["--level", "1"], "level: expected a number between 0 and 1"),
        (["--seeds", "1"], "seeds: 1 is the run's own seed"),
        (["--seeds", "-5"], "seeds: expected numbers from 0"),
        (["--seeds", "2", "2"], "seeds: expected different numbers, got 2 twice"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_options_that_cannot_be(
    run: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert main(["audit", str(run), *FAST, "--out", str(out), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_texts_of_one_token_and_of_one_class(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single = write(tmp_path / "one.jsonl", [{"text": "fine", "label": 1}] * 3)
    arguments = ["audit", str(run), *FAST, "--out", str(tmp_path)]
    assert main([*arguments, "--data", str(single)]) == 1
    assert "of 3 none is left: 3 with 'one token'" in capsys.readouterr().err

    same = [row for row in rows(20, 4) if row["label"] == 1]
    some = write(tmp_path / "some.jsonl", [{"text": "fine", "label": 1}, *same])
    assert main([*arguments, "--data", str(some)]) == 0
    found = json.loads((tmp_path / "audit.json").read_text())
    assert found["excluded"] == [{"index": 0, "reason": "one token"}]
    assert "AUC is not defined" in str(found["quality"]["notes"])
    page = (tmp_path / "audit.html").read_text()
    assert "one token" in page
    assert "AUC is not defined" in page


def test_weights_that_are_not_numbers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    (broken / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "vocabulary.json", "versions.json"):
        (broken / name).write_bytes((run / name).read_bytes())
    state = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    for name, value in state["model"].items():
        if name.startswith("attention."):
            value.fill_(float("nan"))
    torch.save(state, broken / "checkpoints" / "best.ckpt")
    assert main(["audit", str(broken), *FAST]) == 1
    assert "attention weights are not finite" in capsys.readouterr().err


def test_what_is_no_classifier(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "seq2seq")
    for path, message in (
        (other, "is the run of a sequence-to-sequence model"),
        (tmp_path / "nothing", "there is no such run"),
        (run / "config.yaml", "is a file"),
    ):
        assert main(["audit", str(path)]) == 1
        assert message in capsys.readouterr().err


def test_a_run_whose_data_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training.train(config(tmp_path, training={"max_epochs": 1}), tmp_path / "run", quiet=True)
    (tmp_path / "test.jsonl").unlink()
    assert main(["audit", str(tmp_path / "run"), *FAST]) == 1
    assert "give texts by --data FILE" in capsys.readouterr().err


def test_unknown_labels_are_bad_rows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = rows(12, 5)
    given[3]["label"], given[7]["label"] = 9, "odd"
    data = write(tmp_path / "odd.jsonl", given)
    arguments = ["audit", str(run), *FAST, "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "2 bad rows" in said
    assert "odd.jsonl:4" in said
    assert "odd.jsonl:8" in said
    assert main([*arguments, "--skip-bad"]) == 0
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert found["texts"] == 10
    assert "2 bad rows" in found["left_out"]
