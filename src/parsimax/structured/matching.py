"""Matchings of rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Structure, sums_from_one


@dataclass(frozen=True, eq=False)
class Matching(Structure):
    """Pairs of a row and a column: the smaller side fully matched, the larger at most once each.

    Scores are (B, n, m), and ``lengths`` (B, 2) cuts each side, or (B,) both to the same length.
    The oracle is the algorithm of Jonker and Volgenant.

    >>> import torch, parsimax as px
    >>> scores = torch.tensor([[[1.0, 0.8, 0.0], [0.9, 0.2, 0.0]]])
    >>> r = px.sparsemap(scores, px.structured.Matching())
    >>> r.marginals
    tensor([[[0.4000, 0.6000, 0.0000],
             [0.6000, 0.3000, 0.1000]]])
    """

    kind: ClassVar[str] = "MATCHING"
    target_rule: ClassVar[str] = (
        "the rows or columns of the smaller side sum to 1, those of the larger to at most 1"
    )

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """Of both sides."""
        rows, columns = (inside.any(dim).sum(1) for dim in (2, 1))
        by_row, by_column = (sums_from_one(y, inside, dim) for dim in (2, 1))
        off = by_row.where(rows <= columns, 0.0).maximum(by_column.where(columns <= rows, 0.0))
        most = y.sum(2).amax(1).maximum(y.sum(1).amax(1))
        return off.maximum(most - 1)
