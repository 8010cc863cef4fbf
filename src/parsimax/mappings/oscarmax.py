r"""oscarmax (Niculae & Blondel 2017): sparse, and equal over groups wherever they stand.

.. math:: \arg\min_{p \in \triangle} \tfrac12 \|p - z\|^2 + \lambda \sum_{i<j} \max(p_i, p_j)

The i-th largest of d entries is the larger one in d - i pairs, so the penalty is a sum of sorted
entries with weights :math:`\lambda (d - i)`. The solution is in the order of the scores: sort them,
take the weights away, pool what is then out of order, and project on the simplex. A constant moves
nothing, so that the weights may be :math:`-\lambda i`, and masked entries need no care.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Mapping, map_scores, register
from .entmax import solve_simplex
from .fusedmax import check_strength, strength_holds
from .groups import before, centred, group_means, numbers
from .prox import decreasing_regression
from .rowmap import Parameter, RowMap, register_rowmap


def oscarmax(
    z: Tensor,
    lam: Parameter = 0.01,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Sparse probabilities in which similar scores receive the same.

    ``lam`` is a number of at least 0, or a tensor of such numbers that broadcasts to ``z`` with
    size 1 along ``dim`` and may require a gradient. At 0 it is ``sparsemax``; scores next to each
    other in order that differ by less than about ``lam`` are pooled.

    >>> import torch, parsimax as px
    >>> px.oscarmax(torch.tensor([1.0, 0.5, 0.95, 0.0]), lam=0.1)
    tensor([0.4417, 0.1167, 0.4417, 0.0000])
    """
    return map_scores(OSCARMAX, z, check_strength(lam), dim, mask, backend)


@register
@dataclass(frozen=True, eq=False)
class Oscarmax(Mapping):
    """The mapping ``oscarmax``; Omega is |p|^2 / 2 + lam * sum over pairs of max(p_i, p_j).

    >>> import torch
    >>> Oscarmax(lam=1.0)(torch.tensor([1.0, 0.5, 0.0]))
    tensor([0.3333, 0.3333, 0.3333])
    """

    lam: Parameter = 0.01

    def __post_init__(self) -> None:
        check_strength(self.lam)

    @property
    def rowmap(self) -> RowMap:
        """Oscarmax of any lambda."""
        return OSCARMAX

    @property
    def parameter(self) -> Parameter:
        """Lambda."""
        return self.lam


def _ranks(p: Tensor) -> Tensor:
    return torch.arange(1, p.shape[-1] + 1, dtype=p.dtype, device=p.device)


def _solve(y: Tensor, lam: Parameter) -> Tensor:
    ordered, order = y.sort(dim=-1, descending=True, stable=True)
    used = ordered > -torch.inf
    weighted = torch.where(used, ordered + lam * _ranks(y), 0.0)
    pooled = torch.where(used, decreasing_regression(weighted, used), -torch.inf)
    p = solve_simplex(pooled - pooled[..., :1])
    return torch.where(y > -torch.inf, torch.empty_like(y).scatter(-1, order, p), 0.0)


def _pools(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(entries in descending order, where each came from, starts of equal ones)."""
    ordered, order = p.sort(dim=-1, descending=True, stable=True)
    return ordered, order, ordered != before(ordered, torch.inf)


def _jacobian(p: Tensor, v: Tensor, lam: Parameter) -> Tensor:
    """Pools move as one, by the mean of what pulls at them; all of them together keep the sum."""
    ordered, order, starts = _pools(p)
    starts = starts | (torch.as_tensor(lam, device=p.device) == 0)  # then nothing is pooled
    means = group_means(v.gather(-1, order), numbers(starts), ordered > 0)
    return centred(torch.zeros_like(v).scatter(-1, order, means), p > 0)


def _sensitivity(p: Tensor, lam: Parameter) -> Tensor:
    """An entry's weight falls with its rank; a pool has the mean rank of its members."""
    ordered, order, starts = _pools(p)
    inside = ordered > 0
    ranks = group_means(_ranks(p).expand(p.shape), numbers(starts), inside)
    return torch.zeros_like(p).scatter(-1, order, centred(ranks, inside))


def _pair_maxima(p: Tensor) -> Tensor:
    ordered = p.sort(dim=-1, descending=True).values
    return ((p.shape[-1] - _ranks(p)) * ordered).sum(-1)


def _omega(p: Tensor, lam: Parameter) -> Tensor:
    strength = lam.squeeze(-1).to(p.dtype) if isinstance(lam, Tensor) else lam
    return (p**2).sum(-1) / 2 + strength * _pair_maxima(p)


def _domega(p: Tensor, lam: Parameter) -> Tensor:
    return _pair_maxima(p)


OSCARMAX = register_rowmap(
    RowMap(
        "oscarmax",
        "lam",
        _solve,
        _jacobian,
        _sensitivity,
        _omega,
        _domega,
        strength_holds,
        vertex=None,
        by_groups=True,
    )
)
