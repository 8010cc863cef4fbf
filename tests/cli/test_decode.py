"""parsimax decode and support: lines in, lines out, whatever the batches; mistakes are named."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.runs import TRANSFORMER, make_run

from parsimax.cli import main
from parsimax.seq2seq import run as trained
from parsimax.seq2seq import search
from parsimax.seq2seq.data.batching import pad

SOURCES = "draw\tV;PST\ngo\tV;PST\nwalk\tV;V.PTCP;PST\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.tsv"
    path.write_text(SOURCES)
    return path


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def call_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    out = call(capsys, *arguments, "--format", "jsonl")
    return [json.loads(line) for line in out.splitlines()]


def same(one: str, other: str) -> bool:
    """Lines with the same numbers and texts; probabilities of float32 round with the batch."""
    rows = [[line.split("\t") for line in out.splitlines()] for out in (one, other)]
    return [(n, text) for n, _, text in rows[0]] == [(n, text) for n, _, text in rows[1]] and [
        float(p) for _, p, _ in rows[0]
    ] == pytest.approx([float(p) for _, p, _ in rows[1]], rel=1e-4)


def test_text_is_the_best_hypothesis(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = trained.load(run)
    batch = pad([loaded.codec.encode_source(line) for line in SOURCES.splitlines()])
    found = search.beam(loaded.model, batch.source, batch.source_lengths, 5, max_length=12)
    expected = [loaded.codec.decode_target(d.hypotheses[0].symbols) for d in found]
    assert call(capsys, "decode", run, words).splitlines() == expected


def test_standard_input_and_batches_change_nothing(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = call(capsys, "decode", run, words, "--n-best", 3)
    for size in (1, 2):
        assert same(call(capsys, "decode", run, words, "--n-best", 3, "--batch", size), whole)
    stdin(monkeypatch, SOURCES.encode())
    assert same(call(capsys, "decode", run, "--n-best", 3), whole)
    stdin(monkeypatch, SOURCES.replace("\n", "\r\n").encode())
    assert same(call(capsys, "decode", run, "-", "--n-best", 3), whole)


def test_json_has_probabilities_certificates_and_attention(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = call_json(capsys, "decode", run, words, "--n-best", 4, "--attention")
    assert [line["line"] for line in lines] == [1, 2, 3]
    for line in lines:
        probabilities = [h["probability"] for h in line["hypotheses"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(p > 0 for p in probabilities)
        assert isinstance(line["exhaustive"], bool)
        assert isinstance(line["optimal"], bool)
        attention = line["attention"]
        (layer,) = attention["weights"]
        (head,) = layer
        assert len(head) == len(attention["target"])
        for row in head:
            assert len(row) == len(attention["source"])
            assert sum(row) == pytest.approx(1, abs=1e-5)


def test_transformer_has_attention_of_every_layer_and_head(
    tmp_path: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "t", model=TRANSFORMER)
    for line in call_json(capsys, "decode", run, words, "--attention"):
        weights = line["attention"]["weights"]
        assert len(weights) == 2
        assert all(len(layer) == 2 for layer in weights)


def test_order_is_that_of_the_input_though_lengths_are_searched_together(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "many.tsv"
    lemmas = ["walk" * (1 + n % 4) for n in range(9)]
    path.write_text("".join(f"{lemma}\tV;PST\n" for lemma in lemmas))
    lines = call_json(capsys, "decode", run, path, "--batch", 2)
    assert [line["source"] for line in lines] == [f"{lemma}\tV;PST" for lemma in lemmas]
    best = [line["hypotheses"][0]["text"] for line in lines]
    assert best == [best[n % 4] for n in range(9)]  # the same source, the same output


def test_rows_of_a_training_file_are_noticed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("draw\tdrew\tV;PST\n")
    assert main(["decode", str(run), str(path)]) == 1
    assert "knows none of the tags 'drew'" in capsys.readouterr().err
    pairs = make_run(tmp_path / "p", rows="ab\tba\n", format="tsv")
    path.write_text("ab\tba\n")
    assert main(["decode", str(pairs), str(path)]) == 1
    assert "take column 1" in capsys.readouterr().err
    path.write_text("ab\nba\n")
    assert len(call(capsys, "decode", pairs, path).splitlines()) == 2


def test_without_a_limit_of_the_run_it_grows_with_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "long", max_length=None)
    sources = tmp_path / "long.tsv"
    sources.write_text("walk\tV;PST\n" + "walk" * 30 + "\tV;PST\n")
    lines = call_json(capsys, "decode", run, sources, "--sample", 20)
    loaded = trained.load(run)
    for line, source in zip(lines, sources.read_text().splitlines(), strict=True):
        limit = 2 * len(loaded.codec.encode_source(source)) + 50
        unfinished = [h for h in line["hypotheses"] if not h["finished"]]
        # <unk> is one symbol with a text of five characters
        cut = [len(h["text"].replace("<unk>", "?")) for h in unfinished]
        assert cut == [limit] * len(cut)
    assert any(not h["finished"] for line in lines for h in line["hypotheses"])


def test_what_the_limit_cut_is_said(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--max-length", "1", "--sample", "20"]
    lines = call_json(capsys, "decode", run, words, *options)
    cut = sum(any(not h["finished"] for h in line["hypotheses"]) for line in lines)
    assert cut
    assert main(["decode", str(run), str(words), *options]) == 0
    error = capsys.readouterr().err
    assert f"{cut} of 3 sources have an output that the length limit cut" in error


def test_length_penalty_certifies_nothing(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in call_json(capsys, "decode", run, words, "--length-penalty", 0.6):
        assert line["exhaustive"] is None
        assert line["optimal"] is None


def test_exact_is_never_worse_than_a_beam_of_one(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = call_json(capsys, "decode", run, words, "--exact")
    greedy = call_json(capsys, "decode", run, words, "--beam", 1)
    for best, first in zip(exact, greedy, strict=True):
        if best["proved"] and first["hypotheses"][0]["finished"]:
            assert (
                best["hypotheses"][0]["log_probability"]
                >= first["hypotheses"][0]["log_probability"]
            )


def test_samples_repeat_with_their_seed_whatever_the_batches(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = call(capsys, "decode", run, words, "--sample", 5, "--seed", 3)
    assert len(whole.splitlines()) == 15
    again = call(capsys, "decode", run, words, "--sample", 5, "--seed", 3, "--batch", 1)
    assert same(again, whole)
    assert call(capsys, "decode", run, words, "--sample", 5, "--seed", 4) != whole


def test_ensemble_averages_probabilities(
    run: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "b", seed=1)
    both = call_json(capsys, "decode", run, other, words)
    models = [trained.load(path) for path in (run, other)]
    batch = pad([models[0].codec.encode_source(line) for line in SOURCES.splitlines()])
    stepper = search.Ensemble([m.model for m in models])
    found = search.beam(stepper, batch.source, batch.source_lengths, 5, max_length=12)
    for line, decoded in zip(both, found, strict=True):
        best = decoded.hypotheses[0].log_probability
        assert line["hypotheses"][0]["log_probability"] == pytest.approx(best, abs=1e-6)


def test_bad_lines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(b"draw\tV;PST\nno tags\n\xff\xfe\tV;PST\ngo\tV;PST\n")
    assert main(["decode", str(run), str(path)]) == 1
    error = capsys.readouterr().err
    assert "in.tsv:2: a source of an inflection must be written" in error
    assert "--skip-bad" in error
    out = call(capsys, "decode", run, path, "--skip-bad").split("\n")
    assert len(out) == 5  # four lines and what follows the last
    assert out[1] == out[2] == ""
    lines = call_json(capsys, "decode", run, path)
    assert ["error" in line for line in lines] == [False, True, True, False]
    assert "UTF-8" in lines[2]["error"]
    stdin(monkeypatch, path.read_bytes())
    assert [set(line) for line in call_json(capsys, "decode", run)][1] == {"line", "error"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}/nowhere"], "there is no such run; a run is a folder that parsimax train wrote"),
        (["{run}", "{run}/nowhere.txt"], "there is no such run or input file"),
        (["{run}/config.yaml"], "expected the folder of a run before the input file"),
        (["{run}/config.yaml", "{run}"], "is a file: runs are folders, and the input comes last"),
        (["{run}/codec"], "is not the folder of a run: it has no config.yaml"),
        (["{run}", "--checkpoint", "step-9"], "step-9"),
        (["{run}", "--exact", "--sample", "2"], "exact, sample: expected one of them"),
        (["{run}", "--exact", "--n-best", "3"], "n-best: --exact finds the one most probable"),
        (["{run}", "--exact", "--length-penalty", "1"], "length-penalty: --exact finds the one"),
        (["{run}", "--exact", "--temperature", "2"], "temperature: expected --sample with it"),
        (["{run}", "--temperature", "2"], "temperature: expected --sample with it"),
        (["{run}", "--top-k", "2"], "top-k: expected --sample with it"),
        (["{run}", "--top-p", "0.5"], "top-p: expected --sample with it"),
        (["{run}", "--sample", "2", "--n-best", "2"], "n-best: --sample draws its outputs"),
        (["{run}", "--attention"], "attention: expected --format jsonl"),
        (["{run}", "--beam", "0"], "beam: expected at least 1, got 0"),
        (["{run}", "--sample", "0"], "sample: expected at least 1, got 0"),
        (["{run}", "{run}", "--attention", "--format", "jsonl"], "attention: expected one run"),
        ([], "expected the folder of a run"),
    ],
)
def test_wrong_turns(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", *(a.format(run=run) for a in arguments)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_byte_order_mark_is_no_part_of_the_first_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bom.tsv"
    path.write_text(SOURCES, encoding="utf-8-sig")
    expected = call(capsys, "decode", run, path)
    stdin(monkeypatch, path.read_bytes())
    assert call(capsys, "decode", run) == expected
    stdin(monkeypatch, SOURCES.encode())
    assert call(capsys, "decode", run) == expected
    stdin(monkeypatch, b"\xef\xbb\xbf" + json.dumps({"source": "go\tV;PST"}).encode())
    assert '"next"' in call(capsys, "complete", run, "--jsonl")
    stdin(monkeypatch, b"\xef\xbb\xbf")
    assert main(["decode", str(run)]) == 1
    assert "standard input is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("codec.json", "[]"),
        ("codec.json", '{"format": 3, "joint": false, "languages": [], "fingerprint": ""}'),
        ("codec.json", '{"format": "tsv", "joint": 0, "languages": null, "fingerprint": ""}'),
        ("codec.json", "{}"),
        ("codec.json", "{"),
        ("source_vocabulary.json", "{}"),
        ("source_vocabulary.json", "[1, 2, 3, 4, 5]"),
        ("target_segmentation.json", "null"),
        ("target_segmentation.json", '{"kind": ["words"]}'),
        ("target_segmentation.json", '{"kind": "bpe", "tokenizer": 3}'),
    ],
)
def test_a_damaged_codec_is_named(
    tmp_path: Path, words: Path, name: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r")
    (run / "codec" / name).write_text(content)
    assert main(["decode", str(run), str(words)]) == 1
    assert f"codec/{name}" in capsys.readouterr().err


def test_empty_input(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert main(["decode", str(run), str(tmp_path / "empty")]) == 1
    assert "empty is empty: give one source a line" in capsys.readouterr().err


def test_ensemble_of_other_vocabularies(
    run: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "c", rows="xyz\tzyx\tN\n")
    assert main(["decode", str(run), str(other), str(words)]) == 1
    assert "have different vocabularies" in capsys.readouterr().err


def test_checkpoint_of_another_vocabulary(
    run: Path, tmp_path: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "d", rows="xyz\tzyx\tN\n")
    path = other / "checkpoints" / "best.ckpt"
    assert main(["decode", str(run), str(words), "--checkpoint", str(path)]) == 1
    assert "another vocabulary" in capsys.readouterr().err


def test_nobody_reads_on(run: Path, words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("parsimax.cli.decode._print_text", closed)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert main(["decode", str(run), str(words)]) == 0


# --- support --------------------------------------------------------------------------------------


def test_support_lists_sequences_that_sum_to_what_is_covered(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = call_json(capsys, "support", run, words, "--limit", 50)
    assert len(lines) == 3
    for line in lines:
        total = math.fsum(s["probability"] for s in line["sequences"])
        assert total == pytest.approx(line["covered"])
        assert line["covered"] + line["remaining"] == pytest.approx(1, abs=1e-4)
        texts = [s["text"] for s in line["sequences"]]
        assert len(texts) <= 50


def test_support_as_a_tree_and_as_a_page(
    run: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "trees.html"
    out = call(capsys, "support", run, words, "--html", page)
    for line in SOURCES.splitlines():
        assert line.replace("\t", " ") in out
    assert "%" in out
    html = page.read_text(encoding="utf-8")
    assert html.count("<svg") == sum(
        bool(line["sequences"]) for line in call_json(capsys, "support", run, words)
    )
    assert "http" not in html


def test_support_of_bad_lines(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("bad\ndraw\tV;PST\n")
    assert main(["support", str(run), str(path)]) == 1
    assert "in.tsv:1:" in capsys.readouterr().err
    assert [("error" in line) for line in call_json(capsys, "support", run, path)] == [True, False]
    assert main(["support", str(run), str(path), "--limit", "0"]) == 1
    assert "limit: expected at least 1" in capsys.readouterr().err


def test_symbols_that_the_model_never_saw_are_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("draw\tV;PST\ngroß\tV;PST\n", "utf-8")
    assert main(["decode", str(run), str(path)]) == 0
    assert "line 2 has symbols that were not in the training data" in capsys.readouterr().err
    assert main(["support", str(run), str(path), "--limit", "2"]) == 0
    assert "line 2 has symbols" in capsys.readouterr().err
    path.write_text("draw\tV;PST\n", "utf-8")
    assert main(["decode", str(run), str(path)]) == 0
    assert "symbols" not in capsys.readouterr().err


def test_a_beam_has_no_more_hypotheses_than_its_size(
    run: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", str(run), str(words), "--beam", "2", "--n-best", "3"]) == 1
    assert "at most 2 hypotheses, got 3; give it more by --beam 3" in capsys.readouterr().err
