"""Heads by name, and one number for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Head(NamedTuple):
    """One head; numbers count from 0 as indices do, and its name from 1 as papers do.

    >>> str(Head("encoder", 0, 3))
    'encoder, layer 1, head 4'
    """

    module: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.module}, layer {self.layer + 1}, head {self.head + 1}"


@dataclass(frozen=True)
class HeadScores:
    """A mean over queries for each head of a module.

    Args:
        module: which kind of attention.
        scores: (layer, head); NaN where there was no query to average over.
        queries: how many there were.
        uniform: what attention that is spread evenly over all visible keys would have.
    """

    module: str
    scores: Tensor
    queries: int
    uniform: float

    def ranking(self, count: int | None = None) -> list[tuple[Head, float]]:
        """Heads and their scores, the highest first; those without a score are left out."""
        return ranking(self.module, self.scores, count)


def ranking(module: str, scores: Tensor, count: int | None = None) -> list[tuple[Head, float]]:
    """Heads of (layer, head) scores, the highest first, and of equals the first."""
    found = [
        (Head(module, layer, head), value)
        for layer, row in enumerate(scores.tolist())
        for head, value in enumerate(row)
        if value == value
    ]
    found.sort(key=lambda pair: -pair[1])
    return found[:count]
