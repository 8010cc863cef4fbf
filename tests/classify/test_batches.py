"""Batches: every text once, similar lengths together, nothing lost in padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parsimax._runs.bad_rows import DataError
from parsimax.classify.batches import Encoded, encode, in_order, shuffled
from parsimax.classify.examples import Example
from parsimax.classify.vocabulary import Vocabulary


def some(count: int, seed: int = 0) -> Encoded:
    random = np.random.default_rng(seed)
    texts = [torch.from_numpy(random.integers(1, 99, n)) for n in random.integers(1, 60, count)]
    return Encoded(tuple(texts), torch.arange(count))


def check_whole(data: Encoded, batches) -> None:
    seen: list[int] = []
    for batch in batches:
        assert batch.tokens.shape == batch.mask.shape
        assert batch.mask[:, -1].any()  # no column that is padding only
        for row, tokens, mask, label in zip(
            batch.rows, batch.tokens, batch.mask, batch.labels, strict=True
        ):
            assert torch.equal(tokens[mask], data.texts[row])
            assert not tokens[~mask].any()
            assert label == data.labels[row]
            seen.append(row)
    assert sorted(seen) == list(range(len(data)))


@pytest.mark.parametrize("size", [1, 7, 32, 1000])
def test_every_text_comes_once(size: int) -> None:
    data = some(101)
    check_whole(data, list(shuffled(data, size, np.random.default_rng(0))))
    check_whole(data, list(in_order(data, size)))


def test_little_is_padding_and_epochs_differ() -> None:
    data = some(2000)
    epochs = [list(shuffled(data, 32, np.random.default_rng(s))) for s in (0, 1, 0)]
    padding = sum(int((~b.mask).sum()) for b in epochs[0])
    tokens = sum(int(b.mask.sum()) for b in epochs[0])
    # Shuffled without regard to length, it would be more than the tokens themselves.
    assert padding < 0.15 * tokens
    first, second, third = ([b.rows for b in batches] for batches in epochs)
    assert first == third
    assert first != second
    assert {frozenset(r) for r in first} != {frozenset(r) for r in second}


def test_a_label_the_model_does_not_know_is_named_by_line() -> None:
    vocabulary = Vocabulary(("a",), ("0", "1"))
    good, bad = Example(("a", "b"), "1", "x.tsv", 1), Example(("a",), "2", "x.tsv", 2)
    encoded = encode([good, Example(("a",), None, "x.tsv", 3)], vocabulary)
    assert [t.tolist() for t in encoded.texts] == [[2, 1], [2]]
    assert encoded.labels.tolist() == [1, -1]
    with pytest.raises(DataError, match=r"x\.tsv:2: label '2' is none of the model's"):
        encode([good, bad], vocabulary)
