"""Vocabularies and word vectors."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from parsimax._runs.bad_rows import DataError
from parsimax.classify import vectors
from parsimax.classify.vocabulary import PAD, UNKNOWN, Vocabulary

TEXTS = [["a", "b", "a", "a"], ["b", "c"], ["b", "<pad>"]]


def test_words_are_counted_by_text_not_by_token() -> None:
    assert Vocabulary.of(TEXTS, ("0", "1")).words == ("b", "<pad>", "a", "c")
    assert Vocabulary.of(TEXTS, ("0", "1"), min_documents=2).words == ("b",)
    assert Vocabulary.of(TEXTS, ("0", "1"), max_words=3).words == ("b", "<pad>", "a")


def test_numbers() -> None:
    vocabulary = Vocabulary.of(TEXTS, ("bad", "good"))
    assert (PAD, UNKNOWN, len(vocabulary)) == (0, 1, 6)
    # a word that looks like padding is a word
    assert vocabulary.encode(["b", "z", "<pad>"]) == [2, 1, 3]
    assert [vocabulary.word(n) for n in range(6)] == ["<pad>", "<unk>", "b", "<pad>", "a", "c"]
    assert vocabulary.label("good") == 1
    with pytest.raises(
        ValueError, match="label 'best' is none of the model's, which are bad, good"
    ):
        vocabulary.label("best")


def test_a_vocabulary_can_be_read_again(tmp_path: Path) -> None:
    vocabulary = Vocabulary(("ä", "b\n", "c"), ("0", "1"))
    vocabulary.save(tmp_path / "v.json")
    again = Vocabulary.load(tmp_path / "v.json")
    assert again == vocabulary
    assert again.fingerprint == vocabulary.fingerprint
    assert again.fingerprint != Vocabulary(("ä", "c", "b\n"), ("0", "1")).fingerprint
    (tmp_path / "v.json").write_text("[1]")
    with pytest.raises(DataError, match="is not a vocabulary"):
        Vocabulary.load(tmp_path / "v.json")


VOCABULARY = Vocabulary(("fine", "dull", "new york", "film"), ("0", "1"))
TABLE = {"dull": [1.0, 2.0], "fine": [3.0, -1.0], "other": [9.0, 9.0], "new york": [0.5, 0.25]}


def write_npz(path: Path) -> None:
    np.savez(path, words=np.array(list(TABLE)), vectors=np.array(list(TABLE.values()), np.float16))


def write_text(path: Path, header: str = "") -> None:
    lines = [" ".join([word, *map(str, numbers)]) for word, numbers in TABLE.items()]
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("kind", ["npz", "glove", "word2vec", "gz"])
def test_vectors_of_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("vectors.npz" if kind == "npz" else "vectors.txt")
    if kind == "npz":
        write_npz(path)
    else:
        write_text(path, "4 2\n" if kind == "word2vec" else "")
    if kind == "gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    found = vectors.read(path, VOCABULARY, seed=3)
    assert found.matrix.shape == (6, 2)
    assert found.found == 3
    assert found.matrix.dtype == np.float32
    np.testing.assert_array_equal(found.matrix[0], 0.0)
    np.testing.assert_array_equal(found.matrix[2:5], [[3, -1], [1, 2], [0.5, 0.25]])
    assert (found.matrix[[1, 5]] != 0).all()  # unknown, and a word without a vector
    again = vectors.read(path, VOCABULARY, seed=3)
    np.testing.assert_array_equal(found.matrix, again.matrix)
    assert vectors.describe(found, VOCABULARY) == "3 of 4 words have a vector (75.0 %)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("fine 1 2\ndull 1 x\n", r":2: expected a word and 2 numbers"),
        ("fine\n", r":1: expected a word and its numbers"),
        ("some 1 2\n", "none of the vocabulary's words has a vector"),
        ("fine 1 nan\n", "holds NaN or infinity"),
    ],
)
def test_vectors_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        vectors.read(path, VOCABULARY)


def test_archives_that_cannot_be_used(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", words=np.array(["fine"]))
    with pytest.raises(DataError, match="expected the arrays words"):
        vectors.read(tmp_path / "a.npz", VOCABULARY)
    np.savez(tmp_path / "b.npz", words=np.array(["fine"]), vectors=np.zeros((2, 3)))
    with pytest.raises(DataError, match=r"got shapes \(1,\) and \(2, 3\)"):
        vectors.read(tmp_path / "b.npz", VOCABULARY)
