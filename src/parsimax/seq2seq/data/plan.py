"""How the examples of an epoch are ordered and cut into batches.

Everything follows from the lengths, the settings, the seed and the epoch: neither torch's and
numpy's own random numbers nor processes nor workers have a part in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Lengths = NDArray[np.int32]


@dataclass(frozen=True)
class Plan:
    """Batch i of an epoch is ``order[bounds[i, 0] : bounds[i, 1]]``."""

    order: Ints
    bounds: Ints

    def __len__(self) -> int:
        return len(self.bounds)

    def batch(self, number: int) -> list[int]:
        """The examples of a batch."""
        begin, end = self.bounds[number]
        batch: list[int] = self.order[begin:end].tolist()
        return batch


class Shuffler:
    """Permutations from a seed and an epoch.

    numpy promises that the raw numbers of a bit generator stay as they are, but not what its
    shuffles make of them, so a permutation here is the order of raw numbers.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))

    def permutation(self, size: int) -> Ints:
        """The numbers below ``size`` in random order."""
        return np.argsort(self._bits.random_raw(size), kind="stable").astype(np.int64, copy=False)


def by_length(order: Ints, first: Lengths, second: Lengths, pool: int) -> Ints:
    """The order with every ``pool`` examples sorted by a first length, then by a second.

    Equally long ones stay in the order they were in.
    """
    parts = []
    for begin in range(0, len(order), pool):
        part = order[begin : begin + pool]
        parts.append(part[np.lexsort((second[part], first[part]))])
    return np.concatenate(parts) if parts else order


def cut_by_sentences(count: int, size: int) -> Ints:
    """Batches of ``size`` examples; the last may have fewer."""
    begins = np.arange(0, count, size, dtype=np.int64)
    return np.stack([begins, np.minimum(begins + size, count)], 1)


def cut_by_tokens(lengths: Lengths, size: int) -> Ints:
    """Batches as large as they can be with (longest) x (examples) at most ``size``.

    Args:
        lengths: of the examples, in order; none exceeds ``size``.
        size: of a batch with its padding.
    """
    ends = []
    begin, count = 0, len(lengths)
    while begin < count:
        # the longest is at least as long as the first, so no more than this many can fit
        window = lengths[begin : begin + size // max(1, int(lengths[begin]))]
        padded = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        begin += int(np.searchsorted(padded, size, side="right"))
        ends.append(begin)
    bounds = np.array([0, *ends], dtype=np.int64)
    return np.stack([bounds[:-1], bounds[1:]], 1)
