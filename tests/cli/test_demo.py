"""parsimax demo, from the lexicon to the report, on a small part of the verbs."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from tests.seq2seq.training.runs import small_config, write_config

from parsimax.cli import main
from parsimax.cli.inflection_demo import _remove_earlier
from parsimax.seq2seq import lexicon
from parsimax.seq2seq.training import TrainingError
from parsimax.seq2seq.training.folder import BY_DEMO, RunFolder, begin


@pytest.fixture
def few_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw, go and some others, so that everything is quick."""
    every = list(lexicon.verbs())
    kept = [row for row in every if row.lemma in ("draw", "go", "do", "have")]
    kept += list(islice((row for row in every if row.lemma.startswith("w")), 240))
    monkeypatch.setattr(lexicon, "verbs", lambda: iter(kept))


def test_from_the_lexicon_to_the_report(
    few_verbs: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--minutes", "0.05"]) == 0
    printed = capsys.readouterr().out
    page = out / "inflection.html"
    assert str(page.resolve()) in printed
    assert "parsimax complete" in printed
    html = page.read_text(encoding="utf-8")
    for word in ("draw", "go", "spling", "never seen", "seen in training", "invented"):
        assert word in html
    assert html.count('class="tree-') >= 7
    assert html.count('class="grid-') >= 3
    assert 'class="training"' in html
    saved = json.loads((out / "evaluation.json").read_text())
    assert f"{saved['sentences']:,} forms" in html.replace("\n", " ")
    assert len((out / "predictions.jsonl").read_text().splitlines()) == saved["sentences"]

    # Once more without training: the same model, the same page but for the time of day.
    weights = (out / "run" / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    assert main(["demo", "--out", str(out), "--reuse"]) == 0
    assert (out / "run" / "checkpoints" / "last.ckpt").stat().st_mtime_ns == weights
    assert page.read_text(encoding="utf-8") == html

    # And trained anew, the demo replaces its own run.
    assert main(["demo", "--out", str(out), "--minutes", "0.01"]) == 0
    assert (out / "run" / "checkpoints" / "last.ckpt").stat().st_mtime_ns != weights


def test_nothing_to_reuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--reuse"]) == 1
    assert "there is no run to reuse yet; leave --reuse away" in capsys.readouterr().err


def test_a_folder_that_is_not_its_own_is_left_alone(
    few_verbs: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    assert main(["demo", "--out", str(tmp_path), "--minutes", "0.01"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "holds what the demo did not make, and it is not touched" in said
    assert "--out" in said
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"


def test_a_trained_run_of_somebody_is_left_alone(
    few_verbs: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "mine")
    out = tmp_path / "out"
    limits = ["--training.max_steps", "1", "--quiet"]
    assert main(["train", str(config), "--out", str(out / "run"), *limits]) == 0
    weights = (out / "run/checkpoints/best.ckpt").read_bytes()
    assert main(["demo", "--out", str(out), "--minutes", "0.01"]) == 1
    assert "the demo did not make" in " ".join(capsys.readouterr().err.split())
    assert (out / "run/checkpoints/best.ckpt").read_bytes() == weights


def test_only_a_run_of_the_demo_alone_is_removed(tmp_path: Path) -> None:
    config = small_config(tmp_path / "mine")
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / BY_DEMO).write_text("")
    begin(run, config, resume=False)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(TrainingError, match=r"holds files beside the demo's run.*--out"):
        _remove_earlier(run.path)
    (run.path / "notes.txt").unlink()
    _remove_earlier(run.path)
    assert not run.path.exists()


def test_missing_lexicon_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lexicon, "find_spec", lambda name: None)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert "pip install 'parsimax[train]'" in capsys.readouterr().err
