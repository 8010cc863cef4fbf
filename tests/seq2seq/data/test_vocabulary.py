"""Symbols and numbers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsimax.seq2seq.data.symbols import EOS, NAMES, UNK
from parsimax.seq2seq.data.vocabulary import Vocabulary


@given(st.lists(st.text(max_size=3), unique=True))
def test_numbers_and_back(symbols):
    symbols = [symbol for symbol in symbols if symbol not in NAMES]
    vocabulary = Vocabulary(symbols)
    assert len(vocabulary) == len(symbols) + 4
    assert vocabulary.symbols() == (*NAMES, *symbols)
    numbers = [vocabulary.index(symbol) for symbol in symbols]
    assert numbers == list(range(4, len(symbols) + 4)) == vocabulary.encode(symbols)
    assert vocabulary.symbols(numbers) == tuple(symbols)
    loaded = Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert loaded == vocabulary
    assert loaded.fingerprint == vocabulary.fingerprint


def test_names_come_once():
    assert Vocabulary([*NAMES, "a"]) == Vocabulary(["a"])
    with pytest.raises(ValueError, match=r"'<eos>' twice"):
        Vocabulary(["a", "<eos>"])
    with pytest.raises(ValueError, match="'b' twice"):
        Vocabulary(["a", "b", "c", "b"])


def test_text_cannot_name_what_is_not_text():
    vocabulary = Vocabulary(["a"])
    assert vocabulary.index("<eos>") == EOS
    assert vocabulary.encode(["a", "<eos>", "<pad>", "<bos>", "z"]) == [4, UNK, UNK, UNK, UNK]


def test_order_size_and_least_count():
    counts = {"rare": 1, "b": 5, "a": 5, "most": 9, "<eos>": 100}
    assert Vocabulary.of_counts(counts).symbols()[4:] == ("most", "a", "b", "rare")
    assert Vocabulary.of_counts(counts, min_count=2).symbols()[4:] == ("most", "a", "b")
    assert Vocabulary.of_counts(counts, size=6).symbols() == (*NAMES, "most", "a")
    kept = Vocabulary.of_counts(counts, size=7, always=["<tag:V>", "b"])
    assert kept.symbols()[4:] == ("<tag:V>", "b", "most")
    with pytest.raises(ValueError, match="got size=6"):
        Vocabulary.of_counts(counts, size=6, always=["x", "y"])


def test_fingerprint_follows_order():
    assert Vocabulary("ab").fingerprint != Vocabulary("ba").fingerprint


@pytest.mark.parametrize("number", [-1, 5])
def test_numbers_outside(number):
    with pytest.raises(ValueError, match=rf"\[0, 4\].*got {number}"):
        Vocabulary("a").symbols([4, number])


def test_file_of_something_else():
    with pytest.raises(ValueError, match="begins with"):
        Vocabulary.from_json(["a", "b"])
