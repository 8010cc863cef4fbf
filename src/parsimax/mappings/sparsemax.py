"""sparsemax (Martins & Astudillo 2016), the projection on the simplex: entmax at alpha = 2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import Mapping, map_scores, register
from .entmax import ENTMAX
from .rowmap import RowMap


def sparsemax(
    z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """The point of the simplex nearest to the scores.

    >>> import torch, parsimax as px
    >>> px.sparsemax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    return map_scores(ENTMAX, z, 2.0, dim, mask, backend)


@register
@dataclass(frozen=True, eq=False)
class Sparsemax(Mapping):
    """The mapping ``sparsemax``; Omega is (|p|^2 - 1) / 2.

    >>> import torch
    >>> Sparsemax()(torch.tensor([3.0, 0.0]))
    tensor([1., 0.])
    """

    @property
    def rowmap(self) -> RowMap:
        """Entmax of any alpha."""
        return ENTMAX

    @property
    def parameter(self) -> float:
        """Alpha = 2."""
        return 2.0
