r"""Constrained softmax (Martins & Kreutzer 2017): softmax with an upper bound for every entry.

.. math:: \arg\max_{p \in \triangle} \langle p, z \rangle - \sum_i p_i \log p_i
          \quad \text{subject to } p \le u

The solution is :math:`p_i = \min(u_i, e^{z_i - c})` for one number c.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_dim, check_scores

from .base import Mapping, register
from .bounds import Bound, check_bound, map_bounded
from .box import BoxMap, register_boxmap
from .entmax import ENTMAX
from .rowmap import Parameter, RowMap


def constrained_softmax(
    z: Tensor, upper: Bound, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Probabilities of which none is above its bound.

    ``upper`` is a number, or a tensor that broadcasts to ``z`` and may require a gradient. The
    bounds of the allowed entries of a row must sum to at least 1; by the rounding of their dtype
    they may miss it, and then are the result.

    >>> import torch, parsimax as px
    >>> px.constrained_softmax(torch.tensor([60.0, 0.0, -1.0]), torch.tensor([0.5, 0.6, 0.6]))
    tensor([0.5000, 0.3655, 0.1345])
    """
    return map_bounded(BOXED_SOFTMAX, z, upper, None, dim, mask, backend)


@register
@dataclass(frozen=True, eq=False)
class ConstrainedSoftmax(Mapping):
    """The mapping ``constrained_softmax``; Omega is sum p log p, for p below the bounds.

    >>> import torch
    >>> ConstrainedSoftmax(upper=0.5)(torch.tensor([60.0, 0.0, 0.0]))
    tensor([0.5000, 0.2500, 0.2500])
    """

    upper: Bound = 1.0

    def __post_init__(self) -> None:
        check_bound(self.upper, "upper")

    @property
    def rowmap(self) -> RowMap:
        """There is none."""
        raise no_rowmap("constrained_softmax")

    @property
    def parameter(self) -> Parameter:
        """The bounds."""
        return self.upper

    def __call__(
        self, z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
    ) -> Tensor:
        """Probabilities along ``dim`` below the bounds."""
        return constrained_softmax(z, self.upper, dim, mask, backend=backend)

    def regularizer(self, p: Tensor, dim: int = -1) -> Tensor:
        """Omega(p) along ``dim``."""
        return entropy_of(p, 1.0, dim)


def no_rowmap(name: str) -> TypeError:
    """What to raise where one number a row is asked for."""
    return TypeError(
        f"{name} has a bound for every entry, and no Fenchel-Young loss: a one-hot target may lie "
        "outside of its bounds; take the loss of softmax or sparsemax"
    )


def entropy_of(p: Tensor, alpha: float, dim: int) -> Tensor:
    """Minus the Tsallis entropy along ``dim``."""
    p = check_scores(p, "p")
    return ENTMAX.omega(p.movedim(check_dim(dim, p.ndim), -1), alpha)


def _solve(y: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """An entry reaches its bound when c falls below z - log u: the first k in that order have."""
    allowed = y > -torch.inf
    reached = torch.where(allowed, y - upper.log(), -torch.inf)
    reached, order = reached.sort(dim=-1, descending=True)
    scores, bounds = y.gather(-1, order), upper.gather(-1, order)
    # with k at their bounds: what is left, and c, for which the others share it
    left = (1 - (bounds.cumsum(-1) - bounds)).clamp(min=0)
    mass = scores.flip(-1).logcumsumexp(-1).flip(-1)
    fits = reached <= mass - left.log()
    k = torch.where(fits.any(-1), fits.to(torch.int8).argmax(-1), y.shape[-1]).unsqueeze(-1)
    at = k.clamp(max=y.shape[-1] - 1)
    free = torch.exp(scores - mass.gather(-1, at)) * left.gather(-1, at)
    place = torch.arange(y.shape[-1], device=y.device)
    p = torch.where(place < k, bounds, torch.minimum(free, bounds))
    p = torch.where(scores > -torch.inf, p, 0.0)
    return torch.empty_like(y).scatter(-1, order, p)


def _moved(p: Tensor, step: Tensor, bound: Tensor, free: Tensor) -> Tensor:
    """The free entries keep their ratios and share what is left."""
    grown = torch.where(free, p * step.exp(), 0.0)
    left = torch.where(free, p, 0.0).sum(-1, keepdim=True) - bound.sum(-1, keepdim=True)
    total = grown.sum(-1, keepdim=True)
    return grown * (left / torch.where(total > 0, total, 1.0)) + bound


BOXED_SOFTMAX = register_boxmap(BoxMap("constrained_softmax", _solve, lambda p: p, _moved))
