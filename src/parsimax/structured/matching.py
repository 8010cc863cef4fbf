"""Matchings of rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Structure


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
