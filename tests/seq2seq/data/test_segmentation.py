"""Text to symbols and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsimax.seq2seq.data import bpe
from parsimax.seq2seq.data.segmentation import Characters, Words, from_json
from parsimax.seq2seq.data.symbols import NAMES

TEXTS = [
    "the cat, the hat and the rat",
    "the  bat  that sat on a mat ...",
    " don't do that <unk> again",
    "naïve café — e\u0301té",
    "日本の水墨画を一変させた。",
] * 3


@pytest.fixture(scope="module")
def pieces():
    return bpe.learn(TEXTS, 100)


def test_characters():
    split = Characters().split("e\u0301 t <space>")
    assert split == ["e", "\u0301", "<space>", "t", "<space>", *"<space>"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_characters_come_back(texts):
    kind = Characters()
    for text, symbols in zip(texts, kind.split_many(texts), strict=True):
        assert symbols == kind.split(text)
        assert len(symbols) == len(text)
        assert kind.join(symbols) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_words_come_back_with_single_spaces(texts):
    kind = Words()
    for text, symbols in zip(texts, kind.split_many(texts), strict=True):
        assert kind.join(symbols) == " ".join(text.split())


@given(st.text(st.sampled_from(sorted({c for text in TEXTS for c in text}))))
def test_pieces_of_known_characters_come_back(pieces, text):
    assert pieces.join(pieces.split(text)) == text
    assert set(pieces.split(text)) <= set(pieces.pieces)


def test_pieces(pieces):
    assert pieces.split("the cat") == ["▁the", "▁cat"]  # words that were seen often are whole
    assert pieces.split("hat.") == ["▁hat", "."]  # punctuation is never part of a word
    assert pieces.split_many(["the cat", "", "the hat"]) == [["▁the", "▁cat"], [], ["▁the", "▁hat"]]
    assert pieces.split("caWt") == ["▁c", "a", "<unk>", "t"]
    assert "<unk>" not in pieces.split("the <unk>")  # text that looks like a symbol is text
    assert len(pieces.pieces) == len(set(pieces.pieces)) <= 100 - len(NAMES)


def test_learning_is_repeatable_and_reads_a_stream(pieces):
    again = bpe.learn(iter(TEXTS), 100)
    assert again.to_json() == pieces.to_json()


@pytest.mark.parametrize("segmentation", [Characters(), Words()])
def test_saved(segmentation):
    loaded = from_json(json.loads(json.dumps(segmentation.to_json())))
    assert type(loaded) is type(segmentation)


def test_pieces_saved(pieces):
    loaded = from_json(json.loads(json.dumps(pieces.to_json())))
    assert loaded.split_many(TEXTS) == pieces.split_many(TEXTS)
    assert loaded.kind == "bpe"


def test_too_few_pieces():
    with pytest.raises(ValueError, match=r"size=20 has no room for the \d+ different characters"):
        bpe.learn(TEXTS, 20)
    limited = bpe.learn(TEXTS, 30, alphabet=10)
    assert sum(len(piece) == 1 for piece in limited.pieces) == 10
    with pytest.raises(ValueError, match="alphabet must"):
        bpe.learn(TEXTS, 20, alphabet=17)


def test_unknown_kind():
    with pytest.raises(ValueError, match="characters, words, bpe, got 'morphemes'"):
        from_json({"kind": "morphemes"})
