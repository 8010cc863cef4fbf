"""Rows of tokens in batches of similar length, as many at once as a memory budget allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .auditable import Text

Tokens = NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # stage, done, total

# Matrix products of a batch this large use a core well; more only moves more memory around.
ROWS_ON_CPU = 256
ROWS_ON_GPU = 4096


def tokens_of(texts: Sequence[Text]) -> list[Tokens]:
    """The tokens of each text as an array."""
    return [np.asarray(text.tokens, dtype=np.int64) for text in texts]


def pad(
    rows: Sequence[Tokens], filler: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one tensor (B, L), and a mask that is True at tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    tokens = np.full(mask.shape, filler, dtype=np.int64)
    tokens[mask] = np.concatenate(rows) if len(rows) else np.empty(0, dtype=np.int64)
    return torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)


def pad_values(values: Sequence[Tensor], fill: float = 0.0) -> Tensor:
    """One-dimensional tensors of different lengths as one (B, L)."""
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True, padding_value=fill)


@dataclass(frozen=True)
class Footprint:
    """Bytes that the graph of one row takes, as a polynomial in its length.

    Recurrent encoders are linear in the length and self-attention adds a quadratic term; both are
    measured, not assumed.
    """

    per_token: float
    per_pair: float = 0.0

    def row(self, length: int) -> float:
        """Bytes of one row."""
        return self.per_token * length + self.per_pair * length * length

    def rows(self, length: int, budget: float, copies: int = 1) -> int:
        """How many rows of ``length``, each present ``copies`` times, fit; never fewer than one."""
        return max(1, int(budget / max(self.row(length) * copies, 1.0)))


def batches(
    lengths: Sequence[int],
    footprint: Footprint,
    budget: float,
    *,
    copies: Callable[[int], int] = lambda length: 1,
    most: int = ROWS_ON_CPU,
) -> Iterator[list[int]]:
    """Indices of rows, longest first, so that a budget that is too small shows at once.

    Rows of a batch differ in length by at most a tenth (or two tokens): less is padded than the
    larger batch would save.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        size = min(most, footprint.rows(longest, budget, copies(longest)))
        stop = start + 1
        shortest = longest - max(2, longest // 10)
        while stop < len(order) and stop - start < size and lengths[order[stop]] >= shortest:
            stop += 1
        yield order[start:stop]
        start = stop


def most_rows(device: torch.device | str) -> int:
    """How many rows a device takes at once with profit."""
    return ROWS_ON_CPU if torch.device(device).type == "cpu" else ROWS_ON_GPU


def generator_of(seed: int, index: int) -> torch.Generator:
    """Random numbers of one text: they do not depend on which texts share its batch."""
    return torch.Generator().manual_seed(seed * 1_000_003 + index)


class Reporter:
    """Counts what is done and tells a callback, if there is one."""

    def __init__(self, progress: Progress | None, stage: str, total: int) -> None:
        self._progress, self._stage, self._total, self._done = progress, stage, total, 0
        self.add(0)

    def add(self, count: int) -> None:
        """``count`` more items are done."""
        self._done += count
        if self._progress is not None:
            self._progress(self._stage, self._done, self._total)
