"""parsimax complete: JSON lines and the terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.runs import make_run

from parsimax.cli import main
from parsimax.seq2seq import run as trained
from parsimax.seq2seq import search
from parsimax.seq2seq.data.batching import pad
from parsimax.seq2seq.data.textcodec import CodecSettings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a")


def ask(
    run: Path,
    lines: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *options: str,
) -> list[dict[str, Any]]:
    text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["complete", str(run), "--jsonl", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_answers_are_the_models_own(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "draw\tV;PST"
    answers = ask(
        run,
        [
            {"source": source, "prefix": "dr"},
            {"source": source},
            {"source": {"lemma": "draw", "tags": ["V", "PST"]}, "prefix": ["d", "r"]},
        ],
        monkeypatch,
        capsys,
    )
    loaded = trained.load(run)
    batch = pad([loaded.codec.encode_source(source)])
    prefix = loaded.codec.encode_target("dr")
    (found,) = search.complete(loaded.model, batch.source, batch.source_lengths, [prefix])
    assert [n["p"] for n in answers[0]["next"]] == pytest.approx(
        [n.probability for n in found.next]
    )
    names = loaded.codec.target_symbols([n.symbol for n in found.next])
    assert [n["token"] for n in answers[0]["next"]] == list(names)
    assert answers[0]["forced"] == list(loaded.codec.target_symbols(found.forced))
    assert sum(n["p"] for n in answers[1]["next"]) == pytest.approx(1, abs=1e-5)
    assert answers[2] == answers[0]  # an object and a list say the same


def test_a_bad_line_is_answered_and_the_next_is_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"source": "go\tV;PST", "prefix": ""}
    bad: list[tuple[object, str]] = [
        ("{nonsense", "not JSON"),
        ("[1, 2]", "expected an object"),
        ({"prefix": "a"}, 'expected the keys "source" and "prefix"'),
        ({"source": "go\tV;PST", "prefx": "a"}, "got source, prefx"),
        ({"source": 3}, "source: expected text, got 3"),
        ({"source": "go\tV;PST", "prefix": 3}, "prefix: expected text or a list"),
        ({"source": "go\tV;PST", "prefix": "é"}, "got 'é'"),
        ({"source": "go\tV;PST", "prefix": ["<eos>"]}, "got '<eos>'"),
        (r'{"source": "\ud800 cat", "prefix": ""}', "source: expected Unicode text"),
        (r'{"source": "go\tV;PST", "prefix": "\udfff"}', "prefix: expected Unicode text"),
        ({"source": "go"}, "lemma TAB TAG;TAG"),
        ({"source": ""}, "lemma TAB TAG;TAG"),
    ]
    lines = [x for question, _ in bad for x in (question, good)]
    answers = ask(run, lines, monkeypatch, capsys)
    assert len(answers) == len(lines)
    for number, ((_, message), answer) in enumerate(zip(bad, answers[::2], strict=True)):
        assert answer["line"] == 2 * number + 1
        assert message in answer["error"]
    assert all(answer == answers[1] for answer in answers[1::2])


def test_top_lists_fewer(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (all_of_them,) = ask(run, [{"source": "go\tV;PST"}], monkeypatch, capsys)
    (one,) = ask(run, [{"source": "go\tV;PST"}], monkeypatch, capsys, "--top", "1")
    assert one["next"] == all_of_them["next"][:1]


def talk(
    run: Path,
    typed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main(["complete", str(run)]) == 0
    return capsys.readouterr().out


def test_terminal(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = talk(run, "draw V;PST\nd\n/undo\n\né\n/new\nnonsense\n/quit\n", monkeypatch, capsys)
    assert "Type a source" in out
    assert "%" in out
    assert "got 'é'" in out
    assert "lemma TAB TAG;TAG" in out  # what was wrong with "nonsense"
    assert out.count("source>") == 3


def test_symbols_may_be_unknown_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"source": "go\tV;PST", "prefix": ["w", "<unk>"]}
    (answer,) = ask(run, [question], monkeypatch, capsys)
    assert answer["text"].startswith("w<unk>")


def test_an_object_is_a_source_of_inflection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = make_run(tmp_path / "p", rows="ab\tba\n", format="tsv")
    question = {"source": {"lemma": "ab", "tags": "V"}}
    (answer,) = ask(pairs, [question], monkeypatch, capsys)
    assert "this is no model of inflection" in answer["error"]


def test_pieces_are_joined_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "a\tthe mat\nb\tthe man\nc\tmat\n"
    bpe = CodecSettings(target="bpe", target_size=40)
    run = make_run(tmp_path / "p", rows=rows, format="tsv", codec_settings=bpe)
    out = talk(run, "a\nma\nt\n /\n/undo\n/quit\n", monkeypatch, capsys)
    assert "\n  mat" in out
    assert "ma t" not in out


def test_the_language_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "r", languages=("english", "german"))
    out = talk(run, "draw V;PST german\n/new\ndraw V;PST aa\n/quit\n", monkeypatch, capsys)
    assert "draw V;V.PTCP;PST english" in out  # the hint
    assert out.count("next>") == 1
    assert "language 'aa' is not among" in out.replace("\n", " ")


def test_terminal_ends_with_its_input(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "source>" in talk(run, "", monkeypatch, capsys)
    assert "next>" in talk(run, "go V;PST\n", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top", "0"], "top: expected at least 1, got 0"),
        (["--max-forced", "-1"], "max_forced: expected at least 0, got -1"),
        (["--checkpoint", "nothing"], "nothing"),
    ],
)
def test_wrong_turns(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["complete", str(run), *options]) == 1
    assert message in capsys.readouterr().err


def test_input_file_needs_jsonl(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"source": "go\\tV;PST"}\n')
    assert main(["complete", str(run), str(path)]) == 1
    assert "an input file needs --jsonl" in capsys.readouterr().err
    assert main(["complete", str(run), str(path), "--jsonl"]) == 0
    assert '"next"' in capsys.readouterr().out
