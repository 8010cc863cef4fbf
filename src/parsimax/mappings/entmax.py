r"""alpha-entmax (Peters, Niculae & Martins 2019): softmax at 1, sparsemax at 2, sparse above 1.

.. math:: \mathrm{entmax}_\alpha(z) = \arg\max_{p \in \triangle} \langle p, z \rangle + H_\alpha(p),
          \quad H_\alpha(p) = \sum_j \frac{p_j - p_j^\alpha}{\alpha (\alpha - 1)}

Write y = z - max(z) and beta = alpha - 1. The solution is p = exp_beta(y - t) with the deformed
exponential exp_beta(x) = [1 + beta x]_+^(1/beta), which is exp at beta = 0, and t >= 0 such that p
sums to one. In this form nothing is singular at alpha = 1: powers are written as exp(x log1p(v)/v),
and every derivative in alpha through functions with a series at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_parameter

from .base import Mapping, map_scores, register
from .rowmap import Parameter, RowMap, parameter_holds, register_rowmap


def entmax(
    z: Tensor,
    alpha: Parameter = 1.5,
    dim: int = -1,
    mask: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Sparse probabilities; the larger ``alpha``, the fewer of them are not zero.

    ``alpha`` is a number from 1 up, or a tensor of such numbers that broadcasts to ``z`` with size
    1 along ``dim`` and may require a gradient. ``mask`` is True where a score may receive
    probability. A row with nothing allowed gives zeros.

    >>> import torch, parsimax as px
    >>> px.entmax(torch.tensor([2.0, 1.0, -1.0]), alpha=1.5)
    tensor([0.8307, 0.1693, 0.0000])
    >>> px.entmax(torch.tensor([2.0, 1.0, -1.0]), alpha=1.0)
    tensor([0.7054, 0.2595, 0.0351])
    """
    return map_scores(ENTMAX, z, check_alpha(alpha), dim, mask, backend)


def check_alpha(alpha: Parameter) -> Parameter:
    """``alpha`` from 1 up, finite."""
    expected = "at least 1 and finite (1 is softmax, 2 is sparsemax)"
    return check_parameter(alpha, "alpha", lambda a: a >= 1, expected)


@register
@dataclass(frozen=True, eq=False)
class Entmax(Mapping):
    """The mapping ``entmax`` at a given alpha.

    >>> import torch
    >>> Entmax(alpha=2.0)(torch.tensor([2.0, 1.5, 0.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    alpha: Parameter = 1.5

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    @property
    def rowmap(self) -> RowMap:
        """Entmax of any alpha."""
        return ENTMAX

    @property
    def parameter(self) -> Parameter:
        """Alpha."""
        return self.alpha


# --- the solver ---------------------------------------------------------------------------------


def _solve(y: Tensor, alpha: Parameter) -> Tensor:
    if isinstance(alpha, Tensor):
        steep = alpha > 2
        if not bool(steep.any()):
            return _solve_by_newton(y, alpha)
        flat = _solve_by_newton(y, alpha.clamp(max=2.0))
        return torch.where(steep, _solve_steep(y, alpha.clamp(min=2.0)), flat)
    if alpha == 1.0:
        return torch.softmax(y, -1)
    if alpha == 1.5:
        return _solve_15(y)
    if alpha == 2.0:
        return solve_simplex(y)
    solve = _solve_by_newton if alpha < 2 else _solve_steep
    return solve(y, torch.full_like(y[..., :1], alpha))


def solve_simplex(y: Tensor) -> Tensor:
    """Euclidean projection of a row with maximum 0 on the simplex, by sorting."""
    y = y.clamp(min=-2.0)  # nothing below -1 is reached; sums stay finite
    ordered = y.sort(-1, descending=True).values
    rank = torch.arange(1, y.shape[-1] + 1, dtype=y.dtype, device=y.device)
    tau = (ordered.cumsum(-1) - 1) / rank
    size = (ordered > tau).sum(-1, keepdim=True).clamp(min=1)  # a row of NaN has none
    p = (y - tau.gather(-1, size - 1)).clamp(min=0)
    for _ in range(2):  # the running sums of a long row have lost digits
        p = _settle(p, (p > 0).to(p.dtype))
    return p


def _settle(p: Tensor, slope: Tensor) -> Tensor:
    """One Newton step on the output: what the sum is off, taken back in proportion to dp/dtau."""
    surplus = p.sum(-1, keepdim=True) - 1
    return (p - surplus * (slope / slope.sum(-1, keepdim=True))).clamp(min=0)


def _solve_15(y: Tensor) -> Tensor:
    """Algorithm 2 of Peters et al. (2019): tau = M - sqrt((1 - S) / rho) on the rho largest."""
    x = y.clamp(min=-4.0) / 2  # nothing below -2 is reached
    ordered = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    mean = ordered.cumsum(-1) / rank
    spread = rank * ((ordered**2).cumsum(-1) / rank - mean**2)
    tau = mean - ((1 - spread) / rank).clamp(min=0).sqrt()
    size = ((tau <= ordered) & (spread <= 1)).sum(-1, keepdim=True).clamp(min=1)
    root = (x - tau.gather(-1, size - 1)).clamp(min=0)
    for _ in range(2):  # the running sums of a long row have lost digits: Newton from nearby
        surplus = (root**2).sum(-1, keepdim=True) - 1
        step = surplus / (2 * root.sum(-1, keepdim=True))
        root = torch.where(root > 0, (root - step).clamp(min=0), 0.0)
    return root**2


def _log1p_ratio(v: Tensor) -> Tensor:
    """log(1 + v) / v, which is 1 at 0."""
    safe = torch.where(v == 0, 1.0, v)
    return torch.where(v == 0, 1.0, torch.log1p(safe) / safe)


def _deformed_exp(x: Tensor, beta: Tensor) -> Tensor:
    """[1 + beta x]_+^(1/beta)."""
    inside = 1 + beta * x > 0
    x = torch.where(inside, x, 0.0)
    return torch.where(inside, torch.exp(x * _log1p_ratio(beta * x)), 0.0)


def _solve_by_newton(y: Tensor, alpha: Tensor) -> Tensor:
    """Bracketed Newton on the (1/beta)-norm of [1 + beta (y - t)]_+, which must be one.

    The norm is nearly linear in t (exactly so for equal scores), and convex for alpha <= 2, which
    is asked for here: the iteration climbs from t = 0 without overshooting. A row stops changing
    when it has converged, so that it does not depend on its neighbours.
    """
    beta = alpha - 1
    eps = torch.finfo(y.dtype).eps
    low = torch.zeros_like(y[..., :1])
    log_count = (y > -torch.inf).sum(-1, keepdim=True).clamp(min=1).to(y.dtype).log()
    high = log_count * _expm1_ratio(-beta * log_count)  # where p_max = 1/d
    t, done = low, torch.zeros_like(low, dtype=torch.bool)
    for _ in range(256):
        p = _deformed_exp(y - t, beta)
        total = p.sum(-1, keepdim=True)
        slope = _powers(p, 1 - beta).sum(-1, keepdim=True)
        log_total = total.log()
        step = total * log_total * _expm1_ratio(-beta * log_total) / slope
        low = torch.where(total >= 1, t, low)
        high = torch.where(total < 1, t, high)
        newton = t + step
        trusted = (newton > low) & (newton < high)
        better = torch.where(trusted, newton, (low + high) / 2)
        converged = ((total - 1).abs() <= 64 * eps) | (better == t) | (high - low <= eps * t)
        done = done | converged | beta.isnan() | (beta < 0)
        t = torch.where(done, t, better)
        if bool(done.all()):
            break
    p = _deformed_exp(y - t, beta)
    return _settle(p, _powers(p, 2 - alpha))


def _solve_steep(y: Tensor, alpha: Tensor) -> Tensor:
    """alpha >= 2, where p next to the threshold has no bound on its slope.

    So the threshold is not sought among the scores: the unknown is the smallest probability u, of
    the lowest score y_0 that receives any. Then p_i = (beta (y_i - y_0) + u^beta)^(1/beta), whose
    sum is convex in u, and Newton comes down to the root from u = 1/size without passing it.
    """
    beta = alpha - 1
    ordered = y.sort(-1, descending=True).values
    # y_0 is the lowest score that may be the threshold without those above it using up all mass
    first = torch.zeros_like(y[..., :1], dtype=torch.long)
    last = torch.full_like(first, y.shape[-1] - 1)
    for _ in range(y.shape[-1].bit_length()):
        middle = (first + last + 1) // 2
        above = (y - ordered.gather(-1, middle)).clamp(min=0)
        fits = _powers(beta * above, 1 / beta).sum(-1, keepdim=True) < 1
        first = torch.where(fits, middle, first)
        last = torch.where(fits, last, (middle - 1).maximum(first))
    distance = y - ordered.gather(-1, first)
    inside = distance >= 0
    distance = torch.where(inside, distance, 0.0)
    u = 1 / inside.sum(-1, keepdim=True).to(y.dtype)
    done = torch.zeros_like(u, dtype=torch.bool)
    while not bool(done.all()):
        p = _from_lowest(distance, u, beta, inside)
        slope = torch.where(inside, _powers(u / torch.where(inside, p, 1.0), beta - 1), 0.0)
        step = (p.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True)
        done = done | ~(step > torch.finfo(y.dtype).eps * u)
        u = torch.where(done, u, u - step)
    return _from_lowest(distance, u, beta, inside)


def _from_lowest(distance: Tensor, u: Tensor, beta: Tensor, inside: Tensor) -> Tensor:
    """(beta distance + u^beta)^(1/beta), which is u at 0 even where u^beta underflows."""
    p = torch.where(distance > 0, _powers(beta * distance + _powers(u, beta), 1 / beta), u)
    return torch.where(inside, p, 0.0)


# --- derivatives, from the output alone ----------------------------------------------------------


def _powers(p: Tensor, exponent: Parameter) -> Tensor:
    """``p**exponent`` on the support, 0 off it, with finite derivatives everywhere."""
    inside = p > 0
    if not isinstance(exponent, Tensor) and exponent == 0.0:
        return inside.to(p.dtype)
    safe = torch.where(inside, p, 1.0)
    # not safe**exponent: torch rounds that differently in the last, incomplete vector of a tensor
    root = isinstance(exponent, float) and exponent == 0.5
    powers = safe.sqrt() if root else torch.exp(exponent * safe.log())
    return torch.where(inside | p.isnan(), powers.clamp(max=torch.finfo(p.dtype).max ** 0.5), 0.0)


def _cast(alpha: Parameter, p: Tensor) -> Parameter:
    return alpha.to(p.dtype) if isinstance(alpha, Tensor) else alpha


def _jacobian(p: Tensor, v: Tensor, alpha: Parameter) -> Tensor:
    """(diag(s) - s s' / sum(s)) v with s = p^(2 - alpha) (Peters et al. 2019, Proposition 2)."""
    alpha = _cast(alpha, p)
    s = _powers(p, 2 - alpha)
    if isinstance(alpha, Tensor) or alpha > 2:
        # s has no bound above alpha = 2: take out the entry that dominates before it cancels
        v = v - v.gather(-1, s.argmax(-1, keepdim=True))
    total = s.sum(-1, keepdim=True)
    mean = (s * v).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
    return s * (v - mean)


def _series(v: Tensor, first: int, terms: int) -> Tensor:
    """sum_k v^k / (k + first)! for small v, by Horner."""
    result = torch.full_like(v, 1 / math.factorial(terms - 1 + first))
    for k in range(terms - 2, -1, -1):
        result = result * v + 1 / math.factorial(k + first)
    return result


def _expm1_ratio(v: Tensor) -> Tensor:
    """(exp(v) - 1) / v, which is 1 at 0; by a series there, so that its slope is right too."""
    near = v.abs() < 0.5
    small, large = torch.where(near, v, 0.0), torch.where(near, 1.0, v)
    return torch.where(near, _series(small, 1, 14), torch.expm1(large) / large)


def _excess(v: Tensor) -> Tensor:
    """(exp(v) - 1 - v) / v^2 without cancellation near 0."""
    near = v.abs() < 1
    small, large = torch.where(near, v, 0.0), torch.where(near, 1.0, v)
    return torch.where(near, _series(small, 2, 20), (torch.expm1(large) - large) / large**2)


def _direct(p: Tensor, log_p: Tensor, beta: Parameter) -> Tensor:
    """dp/dalpha at a fixed threshold, up to a multiple of s = p^(2 - alpha), which cancels.

    It is -(s - p + beta p log p) / beta^2. Up to alpha = 2 that is written without dividing by
    beta; above, s has no bound and would drown the rest, so it is left out.
    """
    if not isinstance(beta, Tensor):
        if beta > 1:
            return (p - beta * p * log_p) / beta**2
        return -p * log_p**2 * _excess(-beta * log_p)
    low, high = beta.clamp(max=1.0), beta.clamp(min=1.0)
    flat = -p * log_p**2 * _excess(-low * log_p)
    return torch.where(beta > 1, (p - high * p * log_p) / high**2, flat)


def _sensitivity(p: Tensor, alpha: Parameter) -> Tensor:
    """dp/dalpha, in the form of docs/derivations.md that is regular at alpha = 1.

    Equal to Proposition 1 of Correia et al. (2019) for alpha > 1, without its division by
    (alpha - 1)^2.
    """
    alpha = _cast(alpha, p)
    inside = p > 0
    log_p = torch.where(inside, p, 1.0).log()
    direct = torch.where(inside | p.isnan(), _direct(p, log_p, alpha - 1), 0.0)
    s = _powers(p, 2 - alpha)
    total = s.sum(-1, keepdim=True)
    share = s / torch.where(total == 0, 1.0, total)
    return direct - share * direct.sum(-1, keepdim=True)


# --- the regulariser ------------------------------------------------------------------------------


def _omega(p: Tensor, alpha: Parameter) -> Tensor:
    """-H_alpha(p) = sum p (p^beta - 1) / (beta alpha), through expm1 so that alpha may be 1."""
    alpha = _cast(alpha, p)
    beta = alpha - 1
    log_p = torch.where(p > 0, p, 1.0).log()
    terms = p * log_p * _expm1_ratio(torch.as_tensor(beta * log_p))
    return (terms / alpha).sum(-1)


def _domega(p: Tensor, alpha: Parameter) -> Tensor:
    """dOmega/dalpha at fixed p."""
    alpha = _cast(alpha, p)
    beta = alpha - 1
    log_p = torch.where(p > 0, p, 1.0).log()
    v = beta * log_p
    # derivative of expm1(v)/v is (e^v (v - 1) + 1) / v^2 = e^v excess(-v)
    slope = torch.exp(v) * _excess(-v)
    terms = p * log_p * (log_p * slope / alpha - _expm1_ratio(v) / alpha**2)
    return terms.sum(-1)


def _feasible(alpha: Parameter, allowed: Tensor) -> Tensor:
    return parameter_holds(alpha, allowed, lambda a: (a >= 1) & (a < math.inf))


ENTMAX = register_rowmap(
    RowMap("entmax", "alpha", _solve, _jacobian, _sensitivity, _omega, _domega, _feasible)
)
