"""parsimax score: log-probabilities of given targets."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.cli.runs import ROWS, make_run

from parsimax.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a")


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    capsys.readouterr()
    assert main(["score", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_products_of_symbols(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "english-dev"
    path.write_text(ROWS)
    text = [float(line) for line in lines(capsys, run, "--data", path)]
    found = [json.loads(x) for x in lines(capsys, run, "--data", path, "--format", "jsonl")]
    assert len(text) == len(found) == ROWS.count("\n")
    for value, fact in zip(text, found, strict=True):
        product = math.prod(token["p"] for token in fact["tokens"])
        assert fact["probability"] == pytest.approx(product, rel=1e-6)
        assert [t["token"] for t in fact["tokens"]] == [*fact["target"], "<eos>"]
        if fact["first_zero"] is None:
            assert value == pytest.approx(math.log(product), abs=1e-5)
        else:
            assert value == -math.inf
            assert fact["log_probability"] is None
            assert fact["tokens"][fact["first_zero"]]["p"] == 0


def test_a_beams_hypothesis_has_the_probability_that_the_beam_gave_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words"
    words.write_text("draw\tV;PST\nwalk\tV;PST\ngo\tV;PST\n")
    capsys.readouterr()
    assert main(["decode", str(run), str(words), "--format", "jsonl", "--n-best", "5"]) == 0
    kept = [
        (line["source"].split("\t")[0], h)
        for line in map(json.loads, capsys.readouterr().out.splitlines())
        for h in line["hypotheses"]
        if h["finished"] and h["text"] and "<unk>" not in h["text"]
    ]
    path = tmp_path / "english-dev"
    path.write_text("".join(f"{lemma}\t{h['text']}\tV;PST\n" for lemma, h in kept))
    assert kept
    values = [float(line) for line in lines(capsys, run, "--data", path, "--batch", 2)]
    # float32, in other batches; of a symbol that is hardly possible the logarithm is steep
    assert values == pytest.approx([h["log_probability"] for _, h in kept], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "there is no file 'nowhere'"),
        (["--data", "nowhere", "--batch", "0"], "batch: expected at least 1, got 0"),
    ],
)
def test_wrong_turns(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(run), *options]) == 1
    assert message in capsys.readouterr().err


def test_a_language_that_the_model_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = make_run(tmp_path / "r", languages=("english", "german"))
    path, known = tmp_path / "frensh-dev", tmp_path / "german-dev"
    path.write_text(ROWS)
    known.write_text(ROWS)
    assert main(["score", str(several), "--data", str(path)]) == 1
    assert "frensh-dev:1: language 'frensh' is not among" in capsys.readouterr().err
    arguments = ["score", str(several), "--data", str(path), str(known), "--skip-bad"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 5
    assert "5 bad rows were left out" in printed.err
