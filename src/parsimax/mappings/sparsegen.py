r"""sparsegen-lin (Laha et al. 2018): sparsemax with a dial for sparsity.

.. math:: \arg\min_{p \in \triangle} \|p - z\|^2 - \lambda \|p\|^2
          = \mathrm{sparsemax}(z / (1 - \lambda))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_parameter

from .base import Mapping, map_scores, register
from .entmax import solve_simplex
from .rowmap import Parameter, RowMap, parameter_holds, register_rowmap


def sparsegen(
    z: Tensor,
    lam: Parameter = 0.0,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Sparse probabilities; ``lam`` towards 1 makes them one-hot, towards -inf uniform.

    ``lam`` is a number below 1, or a tensor of such numbers that broadcasts to ``z`` with size 1
    along ``dim`` and may require a gradient.

    >>> import torch, parsimax as px
    >>> px.sparsegen(torch.tensor([1.0, 0.5, -1.0]), lam=0.0)
    tensor([0.7500, 0.2500, 0.0000])
    >>> px.sparsegen(torch.tensor([1.0, 0.5, -1.0]), lam=0.5)
    tensor([1., 0., 0.])
    """
    return map_scores(SPARSEGEN, z, check_lam(lam), dim, mask, backend)


def check_lam(lam: Parameter) -> Parameter:
    """``lam`` below 1, finite."""
    return check_parameter(lam, "lam", lambda x: x < 1, "finite and less than 1")


@register
@dataclass(frozen=True, eq=False)
class Sparsegen(Mapping):
    """The mapping ``sparsegen``; Omega is (1 - lam) (|p|^2 - 1) / 2.

    >>> import torch
    >>> Sparsegen(lam=-1.0)(torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.2500])
    """

    lam: Parameter = 0.0

    def __post_init__(self) -> None:
        check_lam(self.lam)

    @property
    def rowmap(self) -> RowMap:
        """Sparsegen of any lambda."""
        return SPARSEGEN

    @property
    def parameter(self) -> Parameter:
        """Lambda."""
        return self.lam


def _width(lam: Parameter, p: Tensor) -> Parameter:
    """1 - lambda, rounded to the precision of ``p`` only now: lambda may be close to 1."""
    return (1 - lam).to(p.dtype) if isinstance(lam, Tensor) else 1 - lam


def _solve(y: Tensor, lam: Parameter) -> Tensor:
    return solve_simplex(y / (1 - lam))


def _centred(p: Tensor, v: Tensor) -> Tensor:
    """``v`` minus its mean on the support, 0 off it."""
    inside = (p > 0) | p.isnan()
    size = inside.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(inside, v, 0.0).sum(-1, keepdim=True) / size
    return torch.where(inside, v - mean, 0.0)


def _jacobian(p: Tensor, v: Tensor, lam: Parameter) -> Tensor:
    return _centred(p, v) / _width(lam, p)


def _sensitivity(p: Tensor, lam: Parameter) -> Tensor:
    """On the support z / (1 - lam) = p + tau, and a constant does not move p."""
    return _centred(p, p) / _width(lam, p)


def _omega(p: Tensor, lam: Parameter) -> Tensor:
    return (_width(lam, p) * (p * (p - 1))).sum(-1) / 2


def _domega(p: Tensor, lam: Parameter) -> Tensor:
    return (p * (1 - p)).sum(-1) / 2


def _feasible(lam: Parameter, allowed: Tensor) -> Tensor:
    return parameter_holds(lam, allowed, lambda x: (x < 1) & (x > -math.inf))


SPARSEGEN = register_rowmap(
    RowMap("sparsegen", "lam", _solve, _jacobian, _sensitivity, _omega, _domega, _feasible)
)
