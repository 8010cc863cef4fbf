r"""budget: exactly k units of attention, none of the entries above one.

.. math:: \arg\max_p \langle z, p \rangle - \tfrac12 \|p\|^2 \quad
          \text{subject to } 0 \le p \le 1, \ \sum_j p_j = k
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.masks import apply_mask
from parsimax._core.validation import check_dim, check_number, check_scores, values_readable

from .base import Mapping, align_parameter, map_scores, register
from .rowmap import Parameter, RowMap, parameter_holds, register_rowmap


def budget(
    z: Tensor,
    k: Parameter = 2,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Weights between 0 and 1 that sum to ``k``, a real number from 0 to the allowed entries.

    ``k`` may be a tensor that broadcasts to ``z`` with size 1 along ``dim``, and require a
    gradient. A row with nothing allowed gives zeros whatever ``k`` is.

    >>> import torch, parsimax as px
    >>> px.budget(torch.tensor([2.0, 0.3, 0.1, -1.0]), k=2)
    tensor([1.0000, 0.6000, 0.4000, 0.0000])
    """
    k = check_budget(k)
    z = check_scores(z)
    align_parameter(k, z, check_dim(dim, z.ndim), "k")
    check_room(z, k, check_dim(dim, z.ndim), mask)
    return map_scores(BUDGET, z, k, dim, mask, backend)


def check_budget(k: Parameter) -> Parameter:
    """``k`` from 0 up, finite."""
    if isinstance(k, Tensor):
        if k.dtype == torch.bool:
            raise TypeError("a tensor k must have a floating-point dtype, got torch.bool")
        return k.to(torch.get_default_dtype()) if not k.is_floating_point() else k
    return check_number(k, "k", lambda x: 0 <= x < math.inf, "at least 0 and finite")


def check_room(z: Tensor, k: Parameter, dim: int, mask: Tensor | None) -> None:
    """Raise where a row with something allowed has fewer entries than ``k``."""
    size = z.shape[dim]
    if z.device.type != "cpu" or not values_readable():
        if not isinstance(k, Tensor) and k > size > 0:
            raise ValueError(f"k must be at most the {size} entries along dim {dim}, got {k:g}")
        return
    if z.numel() == 0:
        return
    allowed = (apply_mask(z.detach(), mask) != -torch.inf).sum(dim, keepdim=True)
    wanted = k.detach() if isinstance(k, Tensor) else allowed.new_tensor(k, dtype=torch.float64)
    bad = ~((wanted >= 0) & (wanted <= allowed)) & (allowed > 0)
    if bool(bad.any()):
        asked = wanted.expand_as(bad)[bad][0].item()
        raise ValueError(
            f"k must lie between 0 and the number of allowed entries of every row along dim {dim}, "
            f"got k = {asked:.12g} for a row with {int(allowed[bad][0])} allowed"
        )


@register
@dataclass(frozen=True, eq=False)
class Budget(Mapping):
    """The mapping ``budget`` with a given k; Omega is half the squared norm.

    >>> import torch
    >>> Budget(k=1.5)(torch.tensor([0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.5000])
    """

    k: Parameter = 2

    def __post_init__(self) -> None:
        check_budget(self.k)

    @property
    def rowmap(self) -> RowMap:
        """Budget of any k."""
        return BUDGET

    @property
    def parameter(self) -> Parameter:
        """The budget k."""
        return self.k

    def __call__(
        self, z: Tensor, dim: int = -1, mask: Tensor | None = None, *, backend: str = "auto"
    ) -> Tensor:
        """Weights along ``dim`` that sum to k."""
        return budget(z, self.k, dim, mask, backend=backend)


def _solve(y: Tensor, k: Parameter) -> Tensor:
    """Sums at all breakpoints y and y - 1, the segment where k lies, and its line."""
    budgets = torch.as_tensor(k, dtype=y.dtype, device=y.device).expand(*y.shape[:-1], 1)
    allowed = y > -torch.inf
    # without the masked entries; finite ones move together, so clipping the range changes nothing
    lowest = torch.where(allowed, y, 0.0).amin(-1, keepdim=True)
    x = torch.where(allowed, y, lowest - 2)
    tau = torch.cat([x - 1, x], -1).sort(-1).values
    # number and sum of the entries above each breakpoint, for y and for y - 1
    total = excess_above(x, tau) - excess_above(x - 1, tau)
    # tau ascends, so the total descends: the last breakpoint that still reaches k
    reach = (total >= budgets).sum(-1, keepdim=True).clamp(min=1) - 1
    start = tau.gather(-1, reach)
    free = ((x > start) & (x - 1 <= start)).sum(-1, keepdim=True)
    surplus = total.gather(-1, reach) - budgets
    start = start + torch.where(free > 0, surplus / free.clamp(min=1), 0.0)
    p = (x - start).clamp(0, 1)
    # once more from nearby, where the sums have lost nothing
    inside = ((p > 0) & (p < 1)).sum(-1, keepdim=True)
    start = start + torch.where(
        inside > 0, (p.sum(-1, keepdim=True) - budgets) / inside.clamp(min=1), 0.0
    )
    p = (x - start).clamp(0, 1)
    return torch.where(allowed & (budgets > 0), p, 0.0)


def excess_above(x: Tensor, tau: Tensor) -> Tensor:
    """sum_j (x_j - tau)_+ for every tau in a sorted row."""
    ordered = x.sort(-1).values
    position = torch.searchsorted(ordered.contiguous(), tau.contiguous(), right=True)
    tail = torch.nn.functional.pad(ordered.flip(-1).cumsum(-1).flip(-1), (0, 1))
    return tail.gather(-1, position) - (x.shape[-1] - position) * tau


def _free(p: Tensor) -> Tensor:
    return ((p > 0) & (p < 1)) | p.isnan()


def _jacobian(p: Tensor, v: Tensor, k: Parameter) -> Tensor:
    """Entries strictly between the bounds share what one of them gains."""
    free = _free(p)
    size = free.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(free, v, 0.0).sum(-1, keepdim=True) / size
    return torch.where(free, v - mean, 0.0)


def _sensitivity(p: Tensor, k: Parameter) -> Tensor:
    free = _free(p)
    return free.to(p.dtype) / free.sum(-1, keepdim=True).clamp(min=1)


def _omega(p: Tensor, k: Parameter) -> Tensor:
    return (p**2).sum(-1) / 2


def _domega(p: Tensor, k: Parameter) -> Tensor:
    """Omega does not depend on k (the constraint does): see ``mass``."""
    return torch.zeros_like(p[..., 0])


def _feasible(k: Parameter, allowed: Tensor) -> Tensor:
    return parameter_holds(k, allowed, lambda x: x >= 0) & (allowed >= k)


BUDGET = register_rowmap(
    RowMap(
        "budget",
        "k",
        _solve,
        _jacobian,
        _sensitivity,
        _omega,
        _domega,
        _feasible,
        mass=lambda k: k,
        vertex=0.5,
    )
)
