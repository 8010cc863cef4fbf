"""softmax, the member of the family with Shannon's entropy: entmax at alpha = 1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import Mapping, map_scores, register
from .entmax import ENTMAX
from .rowmap import RowMap


def softmax(
    z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Dense probabilities, as ``torch.softmax``, but zeros for a row with nothing allowed.

    The sum is accumulated in float64, so that long rows sum to one within 1e-6.

    >>> import torch, parsimax as px
    >>> px.softmax(torch.tensor([1.0, 0.0]), mask=torch.tensor([False, False]))
    tensor([0., 0.])
    """
    return map_scores(ENTMAX, z, 1.0, dim, mask, backend)


@register
@dataclass(frozen=True, eq=False)
class Softmax(Mapping):
    """The mapping ``softmax``; Omega is the negative Shannon entropy.

    >>> import torch
    >>> Softmax()(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    @property
    def rowmap(self) -> RowMap:
        """Entmax of any alpha."""
        return ENTMAX

    @property
    def parameter(self) -> float:
        """Alpha = 1."""
        return 1.0
