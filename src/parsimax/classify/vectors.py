"""Word vectors from a file, for the words of a vocabulary."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from parsimax._runs import files
from parsimax._runs.bad_rows import DataError

from .vocabulary import NAMES, Vocabulary

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """A matrix with a row for every number of a vocabulary, and how many words had a vector."""

    matrix: Rows
    found: int


def read(path: str | Path, vocabulary: Vocabulary, seed: int = 0) -> Vectors:
    """Read the vectors of a vocabulary's words.

    Words without one, and the unknown word, get random vectors that are spread as the others are.

    Args:
        path: An ``.npz`` file with ``words`` and ``vectors``, or text in which each line is a word
            and its numbers, as word2vec, GloVe and fastText write it; text may be compressed.
        vocabulary: Whose words are wanted; the others are not kept.
        seed: Of the random vectors.
    """
    whole = files.check_file(path)
    found = _from_npz(whole, vocabulary) if zipfile.is_zipfile(whole) else _text(whole, vocabulary)
    if not found:
        raise DataError(f"{path}: none of the vocabulary's words has a vector; is it the language?")
    numbers = np.fromiter(found, dtype=np.int64, count=len(found))
    known = np.stack([found[n] for n in numbers.tolist()]).astype(np.float32)
    if not np.isfinite(known).all():
        raise DataError(f"{path}: a vector of the vocabulary's words holds NaN or infinity")
    random = np.random.default_rng(seed)
    matrix = random.normal(0.0, float(known.std()), (len(vocabulary), known.shape[1]))
    matrix[numbers] = known
    matrix[0] = 0.0
    return Vectors(matrix.astype(np.float32), len(found))


def _from_npz(path: Path, vocabulary: Vocabulary) -> dict[int, Rows]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            words, vectors = archive["words"], archive["vectors"]
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{path}: expected the arrays words (text) and vectors (N, D) in it: {error}"
        ) from error
    if vectors.ndim != 2 or words.shape != vectors.shape[:1]:
        raise DataError(
            f"{path}: expected words (N,) and vectors (N, D), got shapes {words.shape} and "
            f"{vectors.shape}"
        )
    index = vocabulary.index
    return {index[w]: vectors[row] for row, w in enumerate(words.tolist()) if w in index}


def _text(path: Path, vocabulary: Vocabulary) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    index, size = vocabulary.index, 0
    for number, line in enumerate(files.read_text(path), start=1):
        columns = line.rstrip().split(" ")
        if number == 1 and len(columns) == 2 and all(c.isdigit() for c in columns):
            size = int(columns[1])  # word2vec and fastText begin with how many and how large
            continue
        size = size or len(columns) - 1
        if not size:
            raise DataError(f"{path}:{number}: expected a word and its numbers, got {line[:40]!r}")
        word = " ".join(columns[:-size])  # from the right: some files have words with spaces
        if word not in index or index[word] in found:
            continue
        try:
            vector = np.array(columns[-size:], dtype=np.float32)
        except ValueError as error:
            raise DataError(f"{path}:{number}: expected a word and {size} numbers") from error
        found[index[word]] = vector
    return found


def describe(vectors: Vectors, vocabulary: Vocabulary) -> str:
    """How many words have a vector, for a person."""
    words = len(vocabulary) - len(NAMES)
    share = 100 * vectors.found / max(words, 1)
    return f"{vectors.found:,} of {words:,} words have a vector ({share:.1f} %)"
