"""parsimax evaluate: a table, JSON, predictions, and what to do when something is missing."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.cli.runs import ROWS, make_run

from parsimax.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "english-dev").write_text(ROWS)
    (tmp_path / "german-dev").write_text("go\tging\tV;PST\n")
    return tmp_path


def test_table(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "evaluate",
        str(run),
        "--data",
        str(data / "english-dev"),
        str(data / "german-dev"),
    ]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name in ("accuracy, macro", "english", "german", "exhaustive", "sparsemax score"):
        assert name in out


def test_output_is_utf_8_whatever_the_locale(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert main(["evaluate", str(run)]) == 0
    sys.stdout.flush()
    assert "ε-perplexity" in out.getvalue().decode("utf-8")


def test_files(run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, predictions = tmp_path / "e.json", tmp_path / "p.jsonl"
    arguments = ["evaluate", str(run), "--data", str(data / "*-dev"), "--json", "--out", str(out)]
    assert main([*arguments, "--predictions", str(predictions)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["sentences"] == 6
    assert set(printed["accuracy"]["groups"]) == {"english", "german"}
    assert len(predictions.read_text().splitlines()) == 6


def test_validation_data_by_default(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 5


def test_ensemble(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), str(run), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(run), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert both["models"] == 2
    assert both["accuracy"] == alone["accuracy"]  # a model and itself agree
    for name in ("zero_gold", "support", "sparsemax_score", "epsilon_perplexity"):
        assert both["forced"][name] == pytest.approx(alone["forced"][name], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere.tsv"], "there is no file 'nowhere.tsv'"),
        (["--beam", "0"], "beam: expected at least 1, got 0"),
        (["--epsilon", "0"], "epsilon: expected a number between 0 and 1, got 0"),
        (["--out", "no/such/folder/e.json"], "there is no folder no/such/folder; make it first"),
        (["--checkpoint", "step-1"], "step-1"),
    ],
)
def test_wrong_turns(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("missing", [False, True])
def test_scores_that_cannot_be_are_noticed_before_the_search(
    run: Path,
    missing: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def search(*args: object, **options: object) -> None:
        raise AssertionError("the search has begun")

    monkeypatch.setattr("parsimax.seq2seq.evaluation.beam", search)
    if missing:
        for name in [name for name in sys.modules if name.startswith("sacrebleu.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert main(["evaluate", str(run), "--tokenize", "14a"]) == 1
    error = capsys.readouterr().err
    assert ("this command needs sacrebleu" if missing else "cannot use '14a'") in error


def test_a_file_is_not_a_run(run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), str(data / "english-dev")]) == 1
    assert "data is given by --data" in capsys.readouterr().err


def test_a_language_that_the_model_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = make_run(tmp_path / "r", languages=("english", "german"))
    path = tmp_path / "frensh-dev"
    path.write_text(ROWS)
    assert main(["evaluate", str(several), "--data", str(path)]) == 1
    assert "frensh-dev:1: language 'frensh' is not among" in capsys.readouterr().err
    known = tmp_path / "german-dev"
    known.write_text(ROWS)
    arguments = ["evaluate", str(several), "--data", str(path), str(known), "--json"]
    assert main([*arguments, "--skip-bad"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sentences"] == 5
    assert "5 bad rows were left out" in printed.err


def test_bad_rows(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "english-dev"
    path.write_text(ROWS + "only one column\n")
    assert main(["evaluate", str(run), "--data", str(path)]) == 1
    assert "english-dev:6" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--data", str(path), "--skip-bad", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sentences"] == 5
    assert "1 bad row was left out" in printed.err
