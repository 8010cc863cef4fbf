"""Monotone alignments: positions in order, to positions in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Structure, sums_from_one


@dataclass(frozen=True, eq=False)
class MonotoneAlignment(Structure):
    """Every column picks one row, never above the row that its left neighbour picks.

    Scores are (B, n, m): n rows, m columns. Rows may be skipped, and picked more than once.

    >>> import torch, parsimax as px
    >>> scores = torch.tensor([[[0.0, 9.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 5.0]]])
    >>> px.sparsemap(scores, px.structured.MonotoneAlignment()).marginals  # not row 1, then row 0
    tensor([[[1., 1., 0.],
             [0., 0., 0.],
             [0., 0., 1.]]])
    """

    kind: ClassVar[str] = "MONOTONE_ALIGNMENT"
    target_rule: ClassVar[str] = "every column sums to 1"

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """Of columns."""
        return sums_from_one(y, inside, 1)
