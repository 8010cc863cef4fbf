"""Every kind of row a user's file may have, and how bad ones are named."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle

import pytest

from parsimax._runs.bad_rows import BadRow, DataError
from parsimax._runs.files import find, read_lines, read_text
from parsimax.seq2seq.data.readers import Example, language_of, read


def write(path, content: bytes | str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def pairs(reader):
    return [(example.source, example.target) for example in reader]


# --- formats --------------------------------------------------------------------------------------


def test_inflection(tmp_path):
    path = write(
        tmp_path / "middle-french-train-medium", "aler\tva\tV;PRS;3\nné au\tnés au \tADJ; PL\n"
    )
    assert list(read("inflection", path)) == [
        Example("aler", "va", ("V", "PRS", "3"), "middle-french", str(path), 1),
        # spaces of the form are the form's, those around a tag are nobody's
        Example("né au", "nés au ", ("ADJ", "PL"), "middle-french", str(path), 2),
    ]


def test_tsv(tmp_path):
    path = write(tmp_path / "mine.tsv", "ab c\td e\nf\tg\n")
    assert list(read("tsv", [str(path)])) == [
        Example("ab c", "d e", (), "all", str(path), 1),
        Example("f", "g", (), "all", str(path), 2),
    ]


@pytest.mark.parametrize(
    ("ending", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)],
)
def test_parallel_plain_and_compressed(tmp_path, ending, compress):
    source = write(tmp_path / f"train.de{ending}", compress(b"ein Hund\nzwei\tTabs\n"))
    target = write(tmp_path / f"train.en{ending}", compress(b"a dog\ntwo tabs\n"))
    reader = read("parallel", [source, target])
    assert pairs(reader) == [("ein Hund", "a dog"), ("zwei\tTabs", "two tabs")]
    assert [example.line for example in reader] == [1, 2]  # and again


@pytest.mark.parametrize(
    "content",
    [
        b"a\tb\nc\td\n",
        b"a\tb\nc\td",  # no newline at the end
        b"\xef\xbb\xbfa\tb\nc\td\n",  # byte order mark
        b"a\tb\r\nc\td\r\n",
        b"a\tb\r\nc\td",
    ],
)
def test_marks_and_ends_of_lines_are_no_text(tmp_path, content):
    assert pairs(read("tsv", write(tmp_path / "x.tsv", content))) == [("a", "b"), ("c", "d")]


def test_text_is_left_alone(tmp_path):
    # both ways to write é, a separator of Unicode, a form feed, a mark in mid-text, spaces outside
    odd = "e\u0301é\u2028x\x0cy\x85\ufeff"
    path = write(tmp_path / "x.tsv", f" {odd}\t{odd} \n")
    assert pairs(read("tsv", path)) == [(f" {odd}", f"{odd} ")]


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("english-train-medium", "english"),
        ("norwegian-bokmaal-dev", "norwegian-bokmaal"),
        ("english_test.tsv", "english"),
        ("english.val.txt.gz", "english"),
        ("english.tsv", "english"),
        ("latest", "latest"),
        ("devanagari-train", "devanagari"),
        ("testudo.tsv", "testudo"),
        ("train.tsv", "all"),
        ("dev", "all"),
    ],
)
def test_language_of(name, language):
    assert language_of(f"some-train/folder/{name}") == language


# --- files ----------------------------------------------------------------------------------------


def test_folder_of_many_languages(tmp_path):
    for language in ("latin", "adyghe", "zulu"):
        write(tmp_path / f"{language}-train", "a\tb\tN\n")
    write(tmp_path / ".hidden", "not a table")
    (tmp_path / "folder").mkdir()
    assert [example.group for example in read("inflection", tmp_path)] == [
        "adyghe",
        "latin",
        "zulu",
    ]


def test_globs_and_repeated_files(tmp_path):
    for name in ("b-train", "a-train", "a-dev"):
        write(tmp_path / name, "a\tb\tN\n")
    found = find([tmp_path / "*-train", tmp_path / "a-train"])
    assert [path.name for path in found] == ["a-train", "b-train"]
    write(tmp_path / "odd[1].tsv", "a\tb\n")  # a name that looks like a glob
    assert [path.name for path in find([tmp_path / "odd[1].tsv"])] == ["odd[1].tsv"]


def test_folder_that_mixes_splits(tmp_path):
    for split in ("train-low", "train-high", "dev"):
        write(tmp_path / f"latin-{split}", "a\tb\tN\n")
    with pytest.raises(ValueError, match=r"3 files of 'latin'.*glob.*\*-dev"):
        read("inflection", tmp_path)
    assert len(list(read("inflection", tmp_path / "*-train-low"))) == 1


def test_missing_files_are_named(tmp_path):
    write(tmp_path / "train.de.gz", "x")
    with pytest.raises(FileNotFoundError, match=r"train\.de'; did you mean 'train\.de\.gz'"):
        read("parallel", [tmp_path / "train.de", tmp_path / "train.de.gz"])
    with pytest.raises(FileNotFoundError, match=r"no/such/file\.tsv'.*no folder '.*no'"):
        read("tsv", tmp_path / "no/such/file.tsv")
    with pytest.raises(FileNotFoundError, match=r"no file matches '.*\*-train'"):
        read("inflection", tmp_path / "*-train")
    with pytest.raises(FileNotFoundError, match=r"no file matches.*no folder '.*nowhere'"):
        read("inflection", tmp_path / "nowhere" / "*-train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty' holds no files"):
        read("inflection", tmp_path / "empty")
    with pytest.raises(IsADirectoryError, match="empty"):
        read("parallel", [tmp_path / "empty", tmp_path / "train.de.gz"])


def test_wrong_arguments(tmp_path):
    path = write(tmp_path / "x", "a\tb\n")
    with pytest.raises(ValueError, match=r"format must be one of.*got 'paralel'.*'parallel'"):
        read("paralel", path)
    with pytest.raises(ValueError, match=r"two files.*got 1"):
        read("parallel", path)
    with pytest.raises(ValueError, match="at least one"):
        read("tsv", [])


# --- bad rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "row", "why"),
    [
        ("tsv", b"alone", "1 column, expected 2: source TAB target"),
        ("tsv", b"a\tb\tc", "3 columns, expected 2: source TAB target"),
        ("tsv", b"", "empty line, expected source TAB target"),
        ("tsv", b"\tb", "empty source"),
        ("tsv", b"a\t \xc2\xa0", "empty target"),
        ("tsv", b" \t", "empty source and empty target"),
        ("tsv", b"a\tb\xe9", "invalid UTF-8: byte 0xe9 at byte 4 of the line"),
        ("tsv", b"a\t\xff", "invalid UTF-8: byte 0xff at byte 3 of the line"),
        ("tsv", b"a\t\xed\xa0\x80", "invalid UTF-8: byte 0xed at byte 3 of the line"),  # surrogate
        ("inflection", b"lemma\tform", "2 columns, expected 3: lemma TAB form TAB TAG;TAG"),
        ("inflection", b"\tform\tV", "empty lemma"),
        ("inflection", b"lemma\t\tV", "empty form"),
        ("inflection", b"lemma\tform\t ; ", "empty tags"),
    ],
)
def test_bad_row_is_named_by_file_and_line(tmp_path, format, row, why):
    good = b"a\tb\tN" if format == "inflection" else b"a\tb"
    path = write(tmp_path / "x.tsv", b"\n".join([good, row, good, b""]))
    with pytest.raises(DataError) as caught:
        list(read(format, path))
    assert caught.value.rows == (BadRow(str(path), 2, why),)
    assert f"{path}:2: {why}" in str(caught.value)
    assert "skip_bad" in str(caught.value)
    reader = read(format, path, skip_bad=True)
    assert len(list(reader)) == 2
    assert reader.skipped == 1
    assert reader.bad == caught.value.rows
    assert len(list(reader)) == 2
    assert reader.skipped == 1  # counted anew in every pass


def test_many_bad_rows_are_counted(tmp_path):
    one = write(tmp_path / "1.tsv", "bad\ngood\trow\n" * 9)
    two = write(tmp_path / "2.tsv", "a\tb\n" + "good\trow\nbad\n" * 16)
    with pytest.raises(DataError) as caught:
        list(read("tsv", [one, two]))
    assert caught.value.count == 25
    assert [(row.path, row.line) for row in caught.value.rows] == [
        *((str(one), line) for line in range(1, 18, 2)),
        (str(two), 3),
    ]
    assert "25 bad rows" in str(caught.value)
    assert "15 more" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.rows, again.count) == (
        str(caught.value),
        caught.value.rows,
        25,
    )


def test_neighbouring_rows_with_one_fault_are_one_line(tmp_path):
    path = write(tmp_path / "1.tsv", "a\tb\n" + "bad\n" * 400 + "\tx\n")
    with pytest.raises(DataError) as caught:
        list(read("tsv", path))
    assert caught.value.count == 401
    assert f"{path}:2-401: 1 column" in str(caught.value)
    assert f"{path}:402: empty source" in str(caught.value)


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_unequal_line_counts(tmp_path, left, right):
    source = write(tmp_path / "s", "a\n" * left)
    target = write(tmp_path / "t", "b\n" * right)
    longer = target if right > left else source
    with pytest.raises(DataError) as caught:
        list(read("parallel", [source, target]))
    assert caught.value.count == 2
    assert f"{longer}:4-5: " in str(caught.value)
    assert f"{source} has {left} lines and {target} has {right}" in str(caught.value)
    reader = read("parallel", [source, target], skip_bad=True)
    assert len(list(reader)) == 3
    assert reader.skipped == 2


def test_bad_lines_of_parallel_files(tmp_path):
    source = write(tmp_path / "s", b"a\n\xff\nc\n \ne\n")
    target = write(tmp_path / "t", b"A\nB\n\nD\n\xc3\n")
    reader = read("parallel", [source, target], skip_bad=True)
    assert pairs(reader) == [("a", "A")]
    assert [(row.path, row.line) for row in reader.bad] == [
        (str(source), 2),
        (str(target), 3),
        (str(source), 4),
        (str(target), 5),
    ]


@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_no_examples(tmp_path, content):
    path = write(tmp_path / "x.tsv", content)
    with pytest.raises(DataError, match=r"no examples in .*x\.tsv"):
        list(read("tsv", path))
    path.write_text("bad\n")
    with pytest.raises(DataError, match=r"no examples.*1 bad row"):
        list(read("tsv", path, skip_bad=True))


def test_utf16_is_recognised(tmp_path):
    path = write(tmp_path / "x.tsv", "a\tb\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"x\.tsv:1: .*UTF-16; convert"):
        list(read("tsv", path))


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_incomplete_compressed_file(tmp_path, compress):
    text = "".join(f"{i * 7919 % 10007}\t{i}\n" for i in range(20_000)).encode()
    path = write(tmp_path / "x.tsv.gz", compress(text)[:-100])
    with pytest.raises(DataError, match=r"x\.tsv\.gz: .*incomplete after line \d+"):
        list(read("tsv", path))


def test_read_lines_and_text(tmp_path):
    path = write(tmp_path / "x", b"a\n\xff\n")
    assert next(read_lines(path)) == (1, "a")
    with pytest.raises(DataError, match="x:2: invalid UTF-8"):
        list(read_text(path))
    assert list(read_text(write(tmp_path / "y", "a\n\nb"))) == ["a", "", "b"]


def test_fingerprint_follows_content_and_not_place(tmp_path):
    one = write(tmp_path / "1" / "x.tsv", "a\tb\n")
    same = write(tmp_path / "2" / "x.tsv", "a\tb\n")
    other = write(tmp_path / "3" / "x.tsv", "a\tc\n")
    renamed = write(tmp_path / "y.tsv", "a\tb\n")  # of an inflection the name is the language
    prints = [read("tsv", path).fingerprint for path in (one, same, other, renamed)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
    reader = read("tsv", one)
    assert reader.fingerprint != read("tsv", one, skip_bad=True).fingerprint
    one.write_text("a\td\n")
    assert reader.fingerprint != prints[0]
