"""Heads that look at a fixed distance: the token before, the token itself, the one after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .measuring import by_module
from .scores import Head, ranking

OFFSETS = tuple(range(-5, 6))


@dataclass(frozen=True)
class Positional:
    """How surely each head of a self-attention looks at each offset.

    Args:
        module: which kind of attention.
        offsets: position of the key minus position of the query.
        confidence: (layer, head, offset), mean weight on the key at that offset, over the queries
            that can see one; NaN where none can, as at +1 in a decoder.
        top: (layer, head, offset), how often that key has the highest weight of its query; a key
            that shares the highest weight with others has its part of it.
        queries: (offset,), how many there were.
    """

    module: str
    offsets: tuple[int, ...]
    confidence: Tensor
    top: Tensor
    queries: Tensor = field(repr=False)

    def at(self, offset: int) -> Tensor:
        """(layer, head), confidence at an offset."""
        if offset not in self.offsets:
            raise ValueError(f"offset: expected one of {self.offsets}, got {offset}")
        return self.confidence[..., self.offsets.index(offset)]

    def ranking(self, offset: int, count: int | None = None) -> list[tuple[Head, float]]:
        """Heads by their confidence at an offset."""
        return ranking(self.module, self.at(offset), count)

    def best(self) -> tuple[Tensor, Tensor]:
        """(layer, head) each: the offset a head looks at most, and its confidence there."""
        known = self.confidence.nan_to_num(-1.0)
        confidence, place = known.max(-1)
        return torch.tensor(self.offsets, device="cpu")[place], confidence

    def heads(self, threshold: float = 0.9) -> list[tuple[Head, int, float]]:
        """Heads with at least this confidence at some offset, and which; the surest first."""
        offsets, confidence = self.best()
        return [
            (head, int(offsets[head.layer, head.head]), value)
            for head, value in ranking(self.module, confidence)
            if value >= threshold
        ]


class PositionalMeasure:
    """Sums of diagonals."""

    def __init__(self, module: str, offsets: Sequence[int] = OFFSETS) -> None:
        if not offsets or len(set(offsets)) < len(offsets):
            raise ValueError(f"offsets: expected different whole numbers, got {tuple(offsets)}")
        self.module, self.offsets = module, tuple(offsets)
        self._mass: Tensor | None = None
        self._top: Tensor | None = None
        self._counts: Tensor | None = None
        self._queries = torch.zeros(len(offsets), dtype=torch.long, device="cpu")

    def add(self, sentence: Sentence) -> None:
        """Take one sentence in."""
        weights = sentence.weights
        highest = (weights == weights.amax(-1, keepdim=True)).double()
        highest = highest / highest.sum(-1, keepdim=True)
        length = weights.shape[-1]
        shape = (*weights.shape[:2], len(self.offsets))
        mass, top = weights.new_zeros(shape), weights.new_zeros(shape)
        counts = torch.zeros(shape, dtype=torch.long, device="cpu")
        for place, offset in enumerate(self.offsets):
            if abs(offset) >= length:
                continue
            seen = sentence.allowed.diagonal(offset)
            first = max(0, -offset)
            live = sentence.live[..., first : first + len(seen)] & seen
            mass[..., place] = (_diagonal(weights, offset) * live).sum(-1)
            top[..., place] = (_diagonal(highest, offset) * live).sum(-1)
            counts[..., place] = live.sum(-1)
            self._queries[place] += seen.sum()
        self._mass = mass if self._mass is None else self._mass + mass
        self._top = top if self._top is None else self._top + top
        self._counts = counts if self._counts is None else self._counts + counts

    def result(self) -> Positional:
        """The confidences so far."""
        assert self._mass is not None
        assert self._top is not None
        assert self._counts is not None
        return Positional(
            module=self.module,
            offsets=self.offsets,
            confidence=self._mass / self._counts,
            top=self._top / self._counts,
            queries=self._queries.clone(),
        )


def _diagonal(x: Tensor, offset: int) -> Tensor:
    return x.diagonal(offset, dim1=-2, dim2=-1)


def positional(
    records: Iterable[AttentionRecord], offsets: Sequence[int] = OFFSETS
) -> dict[str, Positional]:
    """Confidence of every head at every offset, by module; records of self-attention alone count.

    Raises:
        ValueError: there is no record of self-attention.
    """
    own = (record for record in records if record.self_attention)
    first = next(own, None)
    if first is None:
        raise ValueError(
            "records: expected self-attention, in which a position before and after is defined, "
            "got none; records of self-attention have no queries of their own"
        )
    return by_module(chain([first], own), lambda module: PositionalMeasure(module, offsets))
