"""Encoded corpora: what is in them, that they are reused, and that they are never half there."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from parsimax._runs.bad_rows import DataError
from parsimax.seq2seq.data import corpus, textcodec
from parsimax.seq2seq.data.corpus import Corpus
from parsimax.seq2seq.data.readers import read
from parsimax.seq2seq.data.symbols import EOS
from parsimax.seq2seq.data.textcodec import CodecSettings, TextCodec


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_holds_what_the_codec_says(encoded, codec, tables):
    examples = list(read("inflection", tables))
    assert len(encoded) == len(examples) == 201
    for i, (example, (source, target)) in enumerate(zip(examples, encoded, strict=True)):
        assert source.tolist() == codec.encode_source(example)
        assert target.tolist() == [*codec.encode_target(example), EOS]
        assert encoded.group_names[encoded.groups[i]] == example.group
        assert (encoded.source_lengths[i], encoded.target_lengths[i]) == (len(source), len(target))
    assert encoded[-1][0].tolist() == encoded[200][0].tolist()
    with pytest.raises(IndexError, match=r"\[0, 200\], got 201"):
        encoded[201]
    facts = encoded.facts
    assert (facts.examples, facts.skipped, facts.too_long) == (201, 0, 0)
    assert facts.source_symbols == encoded.source_lengths.sum()
    assert facts.target_symbols == encoded.target_lengths.sum()


def test_is_mapped_and_not_in_memory(encoded):
    assert isinstance(encoded.source_ids, np.memmap)
    assert not encoded.source_ids.flags.writeable
    assert len(pickle.dumps(encoded)) < 1000
    again = pickle.loads(pickle.dumps(encoded))
    assert again[7][1].tolist() == encoded[7][1].tolist()


def test_more_numbers_than_are_written_at_once(tmp_path, monkeypatch, tables, codec, encoded):
    monkeypatch.setattr(corpus, "_WAITING", 7)
    small = corpus.build(read("inflection", tables), codec, tmp_path / "x")
    assert [pair[1].tolist() for pair in small] == [pair[1].tolist() for pair in encoded]
    assert small.facts == encoded.facts


def test_memory_does_not_grow_with_the_corpus(tmp_path, tables, monkeypatch):
    monkeypatch.setattr(corpus, "_WAITING", 64)
    monkeypatch.setattr(textcodec, "_CHUNK", 64)
    reader = read("inflection", tables / "latin-train")
    codec = TextCodec.learn(reader)
    rows = (tables / "latin-train").read_text()
    peaks = []
    for times in (20, 80):
        path = tmp_path / "latin-train"
        path.write_text(rows * times)
        corpus.build(read("inflection", path), codec, tmp_path / "warm")  # imports, caches
        tracemalloc.start()
        corpus.build(read("inflection", path), codec, tmp_path / f"{times}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]  # of 1,340 and of 5,360 examples


def test_reused_until_something_changes(tables, codec, tmp_path):
    reader = read("inflection", tables)
    folder = tmp_path / "data" / "train"
    corpus.build(reader, codec, folder)
    stamp = (folder / "corpus.json").stat().st_ino
    corpus.build(reader, codec, folder)
    assert (folder / "corpus.json").stat().st_ino == stamp
    limited = corpus.build(reader, codec, folder, max_target_length=5)
    assert len(limited) < 201
    other = TextCodec.learn(reader, CodecSettings(target_size=6))
    assert corpus.build(reader, other, folder).facts.unknown_target > 0
    one = corpus.build(read("inflection", tables / "latin-train"), codec, folder)
    assert one.group_names == ("latin",)
    assert names(folder.parent) == ["train"]


def test_too_long_examples_are_counted(tables, codec, tmp_path):
    reader = read("inflection", tables)
    cut = corpus.build(reader, codec, tmp_path / "x", max_source_length=8, max_target_length=6)
    fits = [
        example
        for example in reader
        # the language and the tags are symbols of the source; EOS is no symbol of the text
        if 1 + len(example.tags) + len(example.source) <= 8 and len(example.target) <= 6
    ]
    assert [codec.decode_target(target) for _, target in cut] == [e.target for e in fits]
    assert cut.facts.too_long == 201 - len(fits) > 0
    with pytest.raises(DataError, match=r"201 are longer than max_source_length=1"):
        corpus.build(reader, codec, tmp_path / "y", max_source_length=1)
    assert names(tmp_path) == ["x"]
    with pytest.raises(ValueError, match=r"max_source_length must be at least 1 or None, got 0"):
        corpus.build(reader, codec, tmp_path / "y", max_source_length=0)


def test_bad_rows(tmp_path, codec):
    path = tmp_path / "latin-dev"
    path.write_text("xa\tax\tV\nbad row\nxa\tax\tV\n")
    with pytest.raises(DataError, match="latin-dev:2"):
        corpus.build(read("inflection", path), codec, tmp_path / "dev")
    assert names(tmp_path) == ["latin-dev"]  # nothing half done is left
    dev = corpus.build(read("inflection", path, skip_bad=True), codec, tmp_path / "dev")
    assert (len(dev), dev.facts.skipped) == (2, 1)
    again = corpus.build(read("inflection", path, skip_bad=True), codec, tmp_path / "dev")
    assert again.facts.skipped == 1  # known without reading again


def test_language_that_was_not_learned(tmp_path, codec):
    (tmp_path / "latin-dev").write_text("xa\tax\tV\n")
    (tmp_path / "lating-dev").write_text("xa\tax\tV\nxa\tax\tV\n")
    files = tmp_path / "*-dev"
    with pytest.raises(DataError, match=r"lating-dev:1-2: language 'lating'.*mean 'latin'"):
        corpus.build(read("inflection", files), codec, tmp_path / "dev")
    dev = corpus.build(read("inflection", files, skip_bad=True), codec, tmp_path / "dev")
    assert (len(dev), dev.facts.skipped, dev.group_names) == (1, 2, ("latin",))


def test_format_of_another_codec(tmp_path, codec):
    path = tmp_path / "latin-dev"
    path.write_text("xa\tax\n")
    with pytest.raises(ValueError, match=r"'inflection', got 'tsv'"):
        corpus.build(read("tsv", path), codec, tmp_path / "dev")


def test_unknown_symbols_are_counted(tmp_path, codec):
    path = tmp_path / "latin-dev"
    path.write_text("xaQ\tQQax\tV;NEW\n")
    facts = corpus.build(read("inflection", path), codec, tmp_path / "dev").facts
    assert (facts.unknown_source, facts.unknown_target) == (2, 2)


def test_progress(tables, codec, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_WAITING", 50)
    told = []
    corpus.build(read("inflection", tables), codec, tmp_path / "x", progress=told.append)
    assert told == [50, 100, 150, 200]


# --- damage ---------------------------------------------------------------------------------------


def test_no_corpus(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no encoded corpus"):
        Corpus.open(tmp_path)


def test_damaged_files_are_noticed_and_replaced(tables, codec, tmp_path):
    reader = read("inflection", tables)
    corpus.build(reader, codec, tmp_path / "x")
    ids = tmp_path / "x" / "target.ids"
    ids.write_bytes(ids.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"target\.ids is damaged.*encoded again"):
        Corpus.open(tmp_path / "x")
    assert len(corpus.build(reader, codec, tmp_path / "x")) == 201
    facts = tmp_path / "x" / "corpus.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"version": 0}))
    with pytest.raises(ValueError, match="version 0"):
        Corpus.open(tmp_path / "x")
    facts.write_text("{")
    assert len(corpus.build(reader, codec, tmp_path / "x")) == 201


def test_what_is_not_a_corpus_is_not_replaced(tables, codec, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="other files"):
        corpus.build(read("inflection", tables), codec, tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        corpus.build(read("inflection", tables), codec, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


BUILD = """
import sys
from parsimax.seq2seq.data import corpus, textcodec
from parsimax.seq2seq.data.readers import read
from parsimax.seq2seq.data.textcodec import TextCodec
corpus._WAITING = 1
def progress(count):
    if count == 100:
        print("half", flush=True)
        sys.stdin.readline()
codec = TextCodec.load(sys.argv[2])
print(len(corpus.build(read("inflection", sys.argv[1]), codec, sys.argv[3], progress=progress)))
"""


def start(tables, codec, tmp_path):
    """A process that stops in the middle of writing until it is told to go on."""
    codec.save(tmp_path / "codec")
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, tables, tmp_path / "codec", tmp_path / "data/x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def test_killed_while_writing(tables, codec, tmp_path):
    with start(tables, codec, tmp_path) as process:
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    left = names(tmp_path / "data")
    assert len(left) == 1
    assert left[0].endswith(".partial")
    assert len(corpus.build(read("inflection", tables), codec, tmp_path / "data/x")) == 201
    assert names(tmp_path / "data") == ["x"]  # what the dead process left is gone


def test_two_processes_at_once(tables, codec, tmp_path):
    with start(tables, codec, tmp_path) as process:
        assert process.stdout.readline() == "half\n"
        mine = corpus.build(read("inflection", tables), codec, tmp_path / "data/x")
        assert process.communicate("go on\n")[0] == "201\n"
    assert process.returncode == 0
    assert len(mine) == 201
    assert mine[200][1][-1] == EOS  # the files that are mapped are still there
    assert names(tmp_path / "data") == ["x"]
