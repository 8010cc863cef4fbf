"""Labelled texts from files: formats, what is left out, what is refused."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from parsimax._runs.bad_rows import DataError
from parsimax.classify.examples import Tokenizer, check_some, label_names, read

JSON = '{"text": "a fine  film", "label": 1}\n{"text": ["dull", "plot"], "label": "0"}\n'


def words_and_labels(path: Path, **options: object) -> list[tuple[tuple[str, ...], str | None]]:
    return [(e.words, e.label) for e in read([path], **options)]  # type: ignore[arg-type]


EXPECTED = [(("a", "fine", "film"), "1"), (("dull", "plot"), "0")]


@pytest.mark.parametrize("opener", [open, gzip.open, lzma.open])
def test_json_lines_plain_and_compressed(tmp_path: Path, opener) -> None:
    path = tmp_path / "data"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(JSON)
    assert words_and_labels(path) == EXPECTED
    assert [e.line for e in read([path])] == [1, 2]


@pytest.mark.parametrize(
    "table",
    [
        "1\ta fine  film\n0\tdull plot\n",
        "label\ttext\n1\ta fine film\n0\tdull plot\n",
        "sentence\tlabel\na fine film\t1\ndull plot\t0\n",
        "id\ttext\tlabel\nx\ta fine film\t1\ny\tdull plot\t0\n\n",
        "1\ta fine film\r\n0\tdull plot\r\n",
    ],
)
def test_tables(tmp_path: Path, table: str) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(table.encode())
    assert words_and_labels(path) == EXPECTED


def test_a_format_that_is_said_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("{a}\tb c\n", encoding="utf-8")
    assert words_and_labels(path, format="tsv") == [(("b", "c"), "{a}")]
    with pytest.raises(DataError, match="not JSON"):
        read([path])


def test_tokens() -> None:
    text = "It's Fine,\tisn't it? — Ça va"
    assert Tokenizer()(text) == ("It's", "Fine,", "isn't", "it?", "—", "Ça", "va")
    alone = ("it's", "fine", ",", "isn't", "it", "?", "—", "ça", "va")
    assert Tokenizer("words", lowercase=True)(text) == alone


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"text": "a"}', "the text has no label"),
        ('{"text": "a", "label": null}', "the text has no label"),
        ('{"text": "a", "label": 0.5}', "label must be a whole number or a name, got 0.5"),
        ('{"text": "a", "label": true}', "label must be a whole number or a name, got true"),
        ('{"text": 3, "label": 1}', "text must be a string or a list of tokens, got 3"),
        ('{"label": 1}', "expected an object such as"),
        ("[1]", "expected an object such as"),
        ('{"text": "a", ', "not JSON"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(JSON + line + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read([path])
    assert f"{path}:3: {why}" in str(caught.value)
    found = read([path], skip_bad=True)
    assert (len(found), found.skipped) == (2, 1)
    assert found.left_out()["bad_rows"] == 1


@pytest.mark.parametrize("line", ["1", "1\ta\tb", "\ta b"])
def test_bad_rows_of_tables(tmp_path: Path, line: str) -> None:
    path = tmp_path / "data.tsv"
    path.write_text(f"0\tx y\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.tsv:2: "):
        read([path])


def test_labels_may_be_missing_where_they_are_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n', encoding="utf-8")
    assert words_and_labels(path, labelled=False) == [(("a",), None)]


def test_lengths(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    texts = [" ".join("x" * n) for n in range(1, 8)]
    path.write_text("".join(json.dumps({"text": t, "label": 0}) + "\n" for t in texts))
    found = read([path], min_length=3, max_length=5)
    assert [len(e.words) for e in found] == [3, 4, 5]
    assert (found.too_short, found.too_long) == (2, 2)
    assert found.remarks() == "2 too short, 2 too long"
    cut = read([path], min_length=3, max_length=5, too_long="cut")
    assert [len(e.words) for e in cut] == [3, 4, 5, 5, 5]
    nothing = read([path], min_length=50)
    with pytest.raises(DataError, match=r"data\.train has no text left: 7 too short"):
        check_some(nothing, "data.train")


def test_labels_are_ordered_as_numbers_or_as_names(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("10\ta\n9\tb\n-1\tc\n", encoding="utf-8")
    assert label_names(read([path]).examples) == ("-1", "9", "10")
    path.write_text("10\ta\nb\tb\n9\tc\n", encoding="utf-8")
    assert label_names(read([path]).examples) == ("10", "9", "b")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*dev\.jsonl"):
        read([tmp_path / "dev.jsonl"])
