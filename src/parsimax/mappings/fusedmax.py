r"""fusedmax (Niculae & Blondel 2017): sparse, and equal over runs of neighbours.

.. math:: \arg\min_{p \in \triangle} \tfrac12 \|p - z\|^2 + \lambda \sum_i |p_{i+1} - p_i|

It is the projection on the simplex of the proximal operator of total variation. Masked entries are
removed, and their neighbours become adjacent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_parameter

from .base import Mapping, map_scores, register
from .entmax import solve_simplex
from .groups import centred, group_means, group_sums, numbers
from .prox import total_variation_prox
from .rowmap import Parameter, RowMap, parameter_holds, register_rowmap

MASKED = -1.0  # stands for a masked entry in the output of the row map


def fusedmax(
    z: Tensor,
    lam: Parameter = 0.1,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Sparse probabilities that come in runs of equal neighbours.

    ``lam`` is a number of at least 0, or a tensor of such numbers that broadcasts to ``z`` with
    size 1 along ``dim`` and may require a gradient. At 0 it is ``sparsemax``; the larger it is, the
    longer the runs.

    >>> import torch, parsimax as px
    >>> px.fusedmax(torch.tensor([1.0, 0.9, 0.2, 0.8]), lam=0.1)
    tensor([0.4000, 0.4000, 0.0000, 0.2000])
    """
    return map_scores(FUSEDMAX, z, check_strength(lam), dim, mask, backend)


def check_strength(lam: Parameter) -> Parameter:
    """``lam`` from 0 up, finite."""
    return check_parameter(lam, "lam", lambda x: x >= 0, "at least 0 and finite")


@register
@dataclass(frozen=True, eq=False)
class Fusedmax(Mapping):
    """The mapping ``fusedmax``; Omega is |p|^2 / 2 + lam * sum |p_(i+1) - p_i|.

    >>> import torch
    >>> Fusedmax(lam=1.0)(torch.tensor([1.0, 0.5, 0.0]))
    tensor([0.3333, 0.3333, 0.3333])
    """

    lam: Parameter = 0.1

    def __post_init__(self) -> None:
        check_strength(self.lam)

    @property
    def rowmap(self) -> RowMap:
        """Fusedmax of any lambda."""
        return FUSEDMAX

    @property
    def parameter(self) -> Parameter:
        """Lambda."""
        return self.lam


def strength_holds(lam: Parameter, allowed: Tensor) -> Tensor:
    """Whether the lambda of each row is at least 0 and finite."""
    return parameter_holds(lam, allowed, lambda x: (x >= 0) & (x < math.inf))


def _solve(y: Tensor, lam: Parameter) -> Tensor:
    """Masked entries go to the end, total variation smooths the others, the simplex projects."""
    allowed = y > -torch.inf
    order = (~allowed).to(torch.int8).argsort(dim=-1, stable=True)
    used = allowed.gather(-1, order)
    together = torch.where(used, y.gather(-1, order), 0.0)
    smooth = torch.where(used, total_variation_prox(together, used, lam), -torch.inf)
    v = torch.empty_like(y).scatter(-1, order, smooth)
    return torch.where(allowed, solve_simplex(v - v.amax(-1, keepdim=True)), MASKED)


def _neighbours(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(allowed entries, whether one has an allowed entry to its left, the value of that)."""
    allowed = q != MASKED
    place = torch.arange(q.shape[-1], device=q.device)
    latest = torch.where(allowed, place, -1).cummax(-1).values
    left = torch.nn.functional.pad(latest[..., :-1], (1, 0), value=-1)
    return allowed, allowed & (left >= 0), q.gather(-1, left.clamp(min=0))


def _runs(q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(starts of runs of equal allowed neighbours, allowed, has a neighbour, its value)."""
    allowed, has_left, left = _neighbours(q)
    return allowed & ~(has_left & (left == q)), allowed, has_left, left


def _jacobian(q: Tensor, v: Tensor, lam: Parameter) -> Tensor:
    """Runs move as one, by the mean of what pulls at them; all of them together keep the sum."""
    starts, allowed, _, _ = _runs(q)
    starts = starts | (allowed & (torch.as_tensor(lam, device=q.device) == 0))  # then nothing fuses
    inside = q > 0
    return centred(group_means(v, numbers(starts), inside), inside)


def _sensitivity(q: Tensor, lam: Parameter) -> Tensor:
    """A run of n entries is pulled with lam / n towards each of its two neighbours."""
    starts, allowed, has_left, left = _runs(q)
    group = numbers(starts)
    towards_left = torch.where(starts & has_left, torch.sign(left - q), 0.0)
    pull = group_sums(towards_left, group) - group_sums(towards_left, (group - 1).clamp(min=0))
    size = group_sums(allowed.to(q.dtype), group).clamp(min=1)
    return centred((pull / size).gather(-1, group), q > 0)


def _variation(q: Tensor) -> Tensor:
    _, has_left, left = _neighbours(q)
    return torch.where(has_left, (q - left).abs(), 0.0).sum(-1)


def _omega(q: Tensor, lam: Parameter) -> Tensor:
    strength = lam.squeeze(-1).to(q.dtype) if isinstance(lam, Tensor) else lam
    return (q.relu() ** 2).sum(-1) / 2 + strength * _variation(q)


def _domega(q: Tensor, lam: Parameter) -> Tensor:
    return _variation(q)


FUSEDMAX = register_rowmap(
    RowMap(
        "fusedmax",
        "lam",
        _solve,
        _jacobian,
        _sensitivity,
        _omega,
        _domega,
        strength_holds,
        vertex=None,
        by_groups=True,
        decode=torch.relu,
        encode=lambda y, allowed: torch.where(allowed, y, MASKED),
    )
)
