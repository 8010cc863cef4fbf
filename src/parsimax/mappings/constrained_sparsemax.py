r"""Constrained sparsemax (Malaviya, Ferreira & Martins 2018), with lower bounds as well.

.. math:: \arg\min_{p \in \triangle} \|p - z\|^2 \quad \text{subject to } l \le p \le u

The solution is :math:`p_i = \mathrm{clip}(z_i - \tau, l_i, u_i)` for one number tau.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Mapping, register
from .bounds import Bound, check_bound, map_bounded
from .box import BoxMap, register_boxmap
from .budget import excess_above
from .constrained_softmax import entropy_of, no_rowmap
from .rowmap import Parameter, RowMap


def constrained_sparsemax(
    z: Tensor,
    upper: Bound,
    lower: Bound | None = None,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """The point nearest to the scores among the probabilities between their bounds.

    ``upper`` and ``lower`` are numbers, or tensors that broadcast to ``z`` and may require
    gradients. Over the allowed entries of a row, upper bounds must sum to at least 1 and lower ones
    to at most 1; by the rounding of their dtype they may miss it, and then are the result. An upper
    bound above 1, or a lower one below 0, binds nothing.

    >>> import torch, parsimax as px
    >>> px.constrained_sparsemax(torch.tensor([2.0, 0.3, 0.1]), torch.tensor([0.5, 0.4, 1.0]))
    tensor([0.5000, 0.3500, 0.1500])
    """
    return map_bounded(BOXED_SPARSEMAX, z, upper, lower, dim, mask, backend)


@register
@dataclass(frozen=True, eq=False)
class ConstrainedSparsemax(Mapping):
    """The mapping ``constrained_sparsemax``; Omega is (|p|^2 - 1) / 2, for p within the bounds.

    >>> import torch
    >>> ConstrainedSparsemax(upper=0.5, lower=0.1)(torch.tensor([3.0, 1.0, 0.0]))
    tensor([0.5000, 0.4000, 0.1000])
    """

    upper: Bound = 1.0
    lower: Bound = 0.0

    def __post_init__(self) -> None:
        check_bound(self.upper, "upper")
        check_bound(self.lower, "lower")

    @property
    def rowmap(self) -> RowMap:
        """There is none."""
        raise no_rowmap("constrained_sparsemax")

    @property
    def parameter(self) -> Parameter:
        """The upper bounds."""
        return self.upper

    def __call__(
        self, z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
    ) -> Tensor:
        """Probabilities along ``dim`` within the bounds."""
        return constrained_sparsemax(z, self.upper, self.lower, dim, mask, backend=backend)

    def regularizer(self, p: Tensor, dim: int = -1) -> Tensor:
        """Omega(p) along ``dim``."""
        return entropy_of(p, 2.0, dim)


def _solve(y: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Sums at all breakpoints z - u and z - l, the segment where 1 lies, and its line."""
    allowed = y > -torch.inf
    x = torch.where(allowed, y, 0.0)  # both bounds are 0 there, so the score is of no account
    tau = torch.cat([x - upper, x - lower], -1).sort(-1).values
    total = excess_above(x - lower, tau) - excess_above(x - upper, tau)
    total = total + lower.sum(-1, keepdim=True)
    # tau ascends, so the total descends: the last breakpoint that still reaches 1
    reach = (total >= 1).sum(-1, keepdim=True).clamp(min=1) - 1
    start = tau.gather(-1, reach)
    free = (x - lower > start) & (x - upper <= start)
    count = free.sum(-1, keepdim=True)
    surplus = total.gather(-1, reach) - 1
    start = start + torch.where(count > 0, surplus / count.clamp(min=1), 0.0)
    p = torch.minimum(torch.maximum(x - start, lower), upper)
    # once more, relative to a free entry: there the others lie near, and lose no digits
    free = (p > lower) & (p < upper)
    count = free.sum(-1, keepdim=True)
    pivot = torch.where(free, x, -torch.inf).amax(-1, keepdim=True)
    pivot = torch.where(count > 0, pivot, start)
    near = x - pivot
    left = 1 - torch.where(free, 0.0, p).sum(-1, keepdim=True)
    level = (torch.where(free, near, 0.0).sum(-1, keepdim=True) - left) / count.clamp(min=1)
    level = torch.where(count > 0, level, 0.0)
    return torch.minimum(torch.maximum(near - level, lower), upper)


def _moved(p: Tensor, step: Tensor, bound: Tensor, free: Tensor) -> Tensor:
    """The free entries move with their scores, and all alike to make up for the rest."""
    total = step.sum(-1, keepdim=True) + bound.sum(-1, keepdim=True)
    count = free.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(free, step - total / count, 0.0) + bound


BOXED_SPARSEMAX = register_boxmap(BoxMap("constrained_sparsemax", _solve, torch.ones_like, _moved))
