"""``parsimax train`` and ``evaluate`` where they are about text classifiers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.classify.texts import options
from tests.cli.runs import make_run

from parsimax.classify import training
from parsimax.cli import main


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(options(tmp_path)))
    return path


def test_train_and_evaluate(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(config)]) == 0
    said = capsys.readouterr()
    assert "train: 120 texts (60 0, 60 1)" in said.err
    assert "epoch 4: train loss" in said.err
    assert "Ended after epoch 4" in said.out
    assert "Test data: accuracy" in said.out
    assert "The run is in runs/small." in said.out

    assert main(["evaluate", "runs/small"]) == 0
    shown = capsys.readouterr().out
    for part in ("test.jsonl", "class 0", "precision", "AUC", "accuracy"):
        assert part in shown
    arguments = ["evaluate", "runs/small", "--data", "dev.jsonl", "--json"]
    arguments += ["--out", "scores.json", "--predictions", "said.jsonl"]
    assert main(arguments) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == json.loads(Path("scores.json").read_text())
    assert (scores["texts"], scores["data"]) == (40, ["dev.jsonl"])
    rows = [json.loads(line) for line in Path("said.jsonl").read_text().splitlines()]
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert scores["accuracy"] == right / 40
    for row in rows:
        assert len(row["tokens"]) == len(row["attention"])
        assert sum(row["attention"]) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == max(row["probabilities"], key=row["probabilities"].get)


def test_options_are_overridden_and_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", str(config), "--model.attention.mapping", "sparsegen(lam=0.3)"]
    assert main([*arguments, "--show"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["attention"]["mapping"] == "sparsegen(lam=0.3)"
    assert shown["task"] == "classification"


def test_resume(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(config), "--quiet", "--training.max_epochs", "1"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["train", str(config)]) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert main(["train", str(config), "--resume"]) == 0
    said = capsys.readouterr()
    assert "epoch 1:" not in said.err
    assert "epoch 2:" in said.err


def test_ctrl_c_says_how_to_go_on(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = training._Trainer._step, []

    def interrupted(self, batch):
        calls.append(1)
        if len(calls) > 10:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(training._Trainer, "_step", interrupted)
    assert main(["train", str(config), "--seed", "3"]) == 130
    assert "parsimax train" in (said := capsys.readouterr().out)
    assert "--seed 3 --out runs/small --resume" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{}", "--task", "clasification"], "did you mean 'classification'?"),
        (["train", "{}", "--model.output", "sparsmax"], "did you mean 'sparsemax'?"),
        (["train", "{}", "--data.train", "no_such.jsonl"], "no_such.jsonl"),
        (["train", "{}", "--data.max_length", "1"], "data.train has no text left: 120 too long"),
        (["evaluate", "run", "--data", "nothing.jsonl"], "nothing.jsonl"),
        (["evaluate", "run", "--beam", "3"], "--beam is for sequences, and run classifies texts"),
        (["evaluate", "run", "run"], "classifiers are measured one by one, got 2 runs"),
        (["evaluate", "run", "other"], "run is the run of a text classifier"),
        (["decode", "run"], "run is the run of a text classifier, and this command needs"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[0] != "train":
        assert main(["train", str(config), "--training.max_epochs", "1", "--out", "run"]) == 0
    if "other" in arguments:
        make_run(config.parent / "other")
    capsys.readouterr()
    assert main([a.format(config) for a in arguments]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("parsimax: ")
    assert said.count("\n") == 1
