r"""normmax (Blondel, Martins & Niculae 2020): the regulariser is a norm.

.. math:: \arg\max_{p \in \triangle} \langle z, p \rangle - \|p\|_\alpha

With gamma = 1 / (alpha - 1) the solution is p = r^gamma / sum(r^gamma) for r = (z - tau)_+ with
sum(r^(gamma + 1)) = 1. Its largest entries come out nearly equal: it picks a set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_parameter

from .base import Mapping, map_scores, register
from .rowmap import Parameter, RowMap, parameter_holds, register_rowmap


def normmax(
    z: Tensor,
    alpha: Parameter = 2.0,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Sparse probabilities that are close to uniform on their support.

    ``alpha`` is a number above 1, or a tensor of such numbers that broadcasts to ``z`` with size 1
    along ``dim`` and may require a gradient. Towards 1 the result is one-hot; large values make
    the support nearly uniform.

    >>> import torch, parsimax as px
    >>> px.normmax(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0.6890, 0.3110, 0.0000])
    """
    return map_scores(NORMMAX, z, check_order(alpha), dim, mask, backend)


def check_order(alpha: Parameter) -> Parameter:
    """``alpha`` above 1, finite."""
    return check_parameter(alpha, "alpha", lambda a: a > 1, "greater than 1 and finite")


@register
@dataclass(frozen=True, eq=False)
class Normmax(Mapping):
    """The mapping ``normmax`` of a given order; Omega is the alpha-norm.

    >>> import torch
    >>> Normmax(alpha=2.0)(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    alpha: Parameter = 2.0

    def __post_init__(self) -> None:
        check_order(self.alpha)

    @property
    def rowmap(self) -> RowMap:
        """Normmax of any order."""
        return NORMMAX

    @property
    def parameter(self) -> Parameter:
        """The order of the norm."""
        return self.alpha


def _cast(alpha: Parameter, p: Tensor) -> Tensor:
    # filled in where p is: copying a number to a GPU would wait for it
    return alpha.to(p) if isinstance(alpha, Tensor) else p.new_full((), alpha)


def _beta(alpha: Parameter, p: Tensor) -> Tensor:
    """alpha - 1, rounded to the precision of ``p`` only now: alpha may be close to 1."""
    return _cast(alpha - 1, p)


def _solve(y: Tensor, alpha: Parameter) -> Tensor:
    """Newton on the conjugate norm of (y - tau)_+, convex in tau, from the left."""
    gamma = 1 / _beta(alpha, y)
    order = gamma + 1
    eps = torch.finfo(y.dtype).eps
    tau = torch.full_like(y[..., :1], -1.0)
    done = torch.zeros_like(tau, dtype=torch.bool)
    for _ in range(256):
        r = (y - tau).clamp(min=0)
        # relative to the largest entry, which is -tau: powers of small orders stay in range
        log_w = (r / -tau).log()
        log_sum = torch.exp(order * log_w).sum(-1, keepdim=True).log() + order * (-tau).log()
        slope = torch.exp(gamma * log_w).sum(-1, keepdim=True)
        # (N - 1) / |N'| for the norm N = exp(log_sum / order)
        scale = torch.exp(log_sum - log_sum / order - gamma * (-tau).log())
        better = tau + torch.expm1(log_sum / order) * scale / slope
        done = done | (log_sum.abs() <= 64 * eps) | ~(better > tau)
        tau = torch.where(done, tau, better)
        if bool(done.all()):
            break
    q = torch.exp(gamma * ((y - tau) / -tau).clamp(min=0).log())
    return q / q.sum(-1, keepdim=True)


def _parts(p: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(support, log p on it, log of the norm); a row of zeros has log norm 0."""
    inside = p > 0
    log_p = torch.where(inside, p, 1.0).log()
    # relative to the largest: the power itself may underflow
    top = torch.where(inside, log_p, -torch.inf).amax(-1, keepdim=True).detach()
    top = torch.where(top.isfinite(), top, 0.0)
    powers = torch.where(inside, torch.exp(alpha * (log_p - top)), 0.0).sum(-1, keepdim=True)
    log_norm = top + torch.where(powers > 0, powers, 1.0).log() / alpha
    return inside | p.isnan(), log_p, log_norm


def _jacobian(p: Tensor, v: Tensor, alpha: Parameter) -> Tensor:
    """kappa (I - p 1') diag(p^(2-alpha)) (I - 1 p') v, kappa = |p|^(alpha-1) / (alpha-1)."""
    order, beta = _cast(alpha, p), _beta(alpha, p)
    inside, log_p, log_norm = _parts(p, order)
    s = torch.where(inside, torch.exp((1 - beta) * log_p + beta * log_norm), 0.0)
    h = s / beta * (v - (p * v).sum(-1, keepdim=True))
    return torch.where(inside, h - p * h.sum(-1, keepdim=True), 0.0)


def _sensitivity(p: Tensor, alpha: Parameter) -> Tensor:
    """dp/dalpha through gamma: q = r^gamma moves directly and through tau."""
    order, beta = _cast(alpha, p), _beta(alpha, p)
    gamma = 1 / beta
    inside, log_p, log_norm = _parts(p, order)
    log_r = beta * (log_p - log_norm)
    q = torch.where(inside, torch.exp(log_p - log_norm), 0.0)
    total = torch.exp(-log_norm)  # sum of q
    r_power = torch.where(inside, torch.exp(log_p - log_norm + log_r), 0.0)  # r^(gamma + 1)
    dtau = (r_power * log_r).sum(-1, keepdim=True) / ((gamma + 1) * total)
    change = torch.where(inside, q * (log_r - gamma * torch.exp(-log_r) * dtau), 0.0)
    dgamma = (change - p * change.sum(-1, keepdim=True)) / total
    return -dgamma * gamma**2


def _omega(p: Tensor, alpha: Parameter) -> Tensor:
    order = _cast(alpha, p)
    _, _, log_norm = _parts(p, order)
    return torch.where((p > 0).any(-1), log_norm.squeeze(-1).exp(), p.sum(-1))


def _domega(p: Tensor, alpha: Parameter) -> Tensor:
    """d|p|/dalpha = |p| (sum(p^alpha log p) / (alpha |p|^alpha) - log|p| / alpha)."""
    order = _cast(alpha, p)
    inside, log_p, log_norm = _parts(p, order)
    share = torch.where(inside, torch.exp(order * (log_p - log_norm)), 0.0)
    mean = (share * log_p).sum(-1, keepdim=True)
    return ((mean - log_norm) / order * log_norm.exp()).squeeze(-1)


def _feasible(alpha: Parameter, allowed: Tensor) -> Tensor:
    return parameter_holds(alpha, allowed, lambda a: (a > 1) & (a < math.inf))


NORMMAX = register_rowmap(
    RowMap(
        "normmax", "alpha", _solve, _jacobian, _sensitivity, _omega, _domega, _feasible, vertex=1.0
    )
)
