"""The correctness gate: what a contender returns is compared with float64 before it is timed.

The oracle is bisection on the threshold, in float64, and shares nothing with any solver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SAMPLE = {"cpu": 64, "cuda": 256}  # rows that are compared, from the first to the last
EXACT = 2e-6  # how far float32 may be from float64 (the numeric contract, alpha <= 2)
_STEEP = 5e-3  # and above alpha = 2, where the map is not Lipschitz
_BLUR = 1e-6  # how well float32 knows the distance of a score from the threshold


def spread(rows: int, most: int) -> Tensor:
    """At most so many of the rows, evenly spread, with the first and the last.

    >>> spread(10, 4)
    tensor([0, 3, 6, 9])
    """
    return torch.linspace(0, rows - 1, min(rows, most), dtype=torch.float64).round().long()


# --- the oracle -----------------------------------------------------------------------------------


def oracle(z: Tensor, alpha: float | Tensor, halvings: int = 100) -> Tensor:
    """alpha-entmax of the rows of ``z`` by bisection in float64; a tensor of alpha is (rows, 1).

    >>> import torch
    >>> oracle(torch.tensor([[1.0, 0.5, -1.0]]), 2.0)
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    if _is(alpha, 1.0):
        return z.double().softmax(-1)
    return _shares(above(z, alpha, halvings), alpha)


def above(z: Tensor, alpha: float | Tensor, halvings: int = 100) -> Tensor:
    """(alpha - 1) z - tau for each score: positive on the support, negative off it."""
    x = (z.double() - z.double().amax(-1, keepdim=True)) * (alpha - 1)
    low = torch.full_like(x[..., :1], -1.0)
    high = -(torch.full_like(low, x.shape[-1]) ** (1 - alpha))
    for _ in range(halvings):
        tau = (low + high) / 2
        enough = _power(x - tau, alpha).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, tau, low), torch.where(enough, high, tau)
    return x - low


def _shares(w: Tensor, alpha: float | Tensor) -> Tensor:
    p = _power(w, alpha)
    return p / p.sum(-1, keepdim=True)


def _power(w: Tensor, alpha: float | Tensor) -> Tensor:
    """[w]_+ ** (1 / (alpha - 1)); the powers of float64 are slow, so the easy ones are products."""
    w = w.clamp(min=0)
    if _is(alpha, 2.0):
        return w
    return w * w if _is(alpha, 1.5) else w ** (1 / (alpha - 1))


def _is(alpha: float | Tensor, value: float) -> bool:
    return not isinstance(alpha, Tensor) and alpha == value


def gradient(p: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
    """The gradient in the scores, from the probabilities (Peters et al. 2019, Proposition 2)."""
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    return s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))


def gradient_in_alpha(p: Tensor, g: Tensor, alpha: float | Tensor) -> Tensor:
    """The same in alpha, one a row, (rows, 1) (Correia et al. 2019, Proposition 1)."""
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    share = s / s.sum(-1, keepdim=True)
    entropy = torch.xlogy(p, p)
    slope = (p - share) / (alpha - 1) ** 2
    slope -= (entropy - share * entropy.sum(-1, keepdim=True)) / (alpha - 1)
    return (slope * g).sum(-1, keepdim=True)


# --- the gate -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What is right for one input: some of its rows in float64, and how far off they may be.

    Half precision is computed in float32 and rounded once: an entry may be off by the rounding of
    the largest of its row, and a gradient, which reads the rounded probabilities and is rounded
    itself, by four of those. In float32, gradients may be off by ten times what probabilities may.
    """

    rows: Tensor
    p: Tensor
    p_slack: Tensor
    sum_slack: float
    gz: Tensor
    gz_slack: Tensor
    galpha: Tensor | None
    galpha_slack: float

    def refuse(self, p: Tensor) -> str | None:
        """Why these probabilities are wrong, or None; the sums of all rows are checked."""
        error = _beyond(p[self.rows], self.p, self.p_slack)
        if error:
            return f"off by {error:.0e}"
        slack = float(p.sum(-1, dtype=torch.float64).sub(1).abs().max())
        if not slack <= self.sum_slack:
            return f"sums off by {slack:.0e}"
        return None

    def refuse_gradient(self, gz: Tensor, galpha: Tensor | None = None) -> str | None:
        """Why these gradients are wrong, or None; none may be infinite or NaN anywhere."""
        error = _beyond(gz[self.rows], self.gz, self.gz_slack)
        if not error and not bool(gz.sum(-1, dtype=torch.float64).isfinite().all()):
            error = math.inf
        if error:
            return f"gradient off by {error:.0e}"
        if self.galpha is None:
            return None
        if galpha is None:
            return "no gradient in alpha"
        off = relative(galpha[self.rows], self.galpha)
        if not off <= self.galpha_slack or not bool(galpha.isfinite().all()):
            return f"gradient in alpha off by {off:.0e} of itself"
        return None


def expect(z: Tensor, g: Tensor, alpha: float | Tensor) -> Expected:
    """Solve some rows of ``z`` in float64; ``g`` is the gradient of their probabilities."""
    rows = spread(len(z), _SAMPLE.get(z.device.type, 64)).to(z.device)
    at = alpha[rows].double() if isinstance(alpha, Tensor) else alpha
    incoming = g[rows].double()
    if _is(at, 1.0):
        p = oracle(z[rows], 1.0)
        jumps = torch.zeros_like(p)
    else:
        w = above(z[rows], at)
        p = _shares(w, at)
        jumps = kinks(w, p, incoming, at, z.dtype)
    gz = gradient(p, incoming, at)
    eps = torch.finfo(z.dtype).eps
    half = z.dtype in (torch.float16, torch.bfloat16)
    steep = not isinstance(at, Tensor) and at > 2
    exact = _STEEP if steep else EXACT
    if half:
        p_slack = eps * p.amax(-1, keepdim=True) + (exact if steep else 0.0)
        gz_slack = 4 * eps * gz.abs().amax(-1, keepdim=True) + 10 * exact
    else:
        p_slack = torch.full_like(p[:, :1], exact)
        gz_slack = 10 * p_slack
    return Expected(
        rows,
        p,
        p_slack,
        eps if half else 1e-6,
        gz,
        gz_slack + jumps,
        gradient_in_alpha(p, incoming, at) if isinstance(at, Tensor) else None,
        # An error of 2e-6 in p counts 1 / (alpha - 1)^2 = 400 times at alpha = 1.05.
        5e-2 if half else 1e-3,
    )


def kinks(w: Tensor, p: Tensor, g: Tensor, alpha: float | Tensor, dtype: torch.dtype) -> Tensor:
    """How much each gradient moves when scores cross the threshold by less than float32 can tell.

    Near alpha = 2 the gradient jumps where a score meets the threshold, which scores of few digits
    do exactly: both sides of the jump are right. The same holds for what the dtype cannot hold.
    """
    power = (2 - alpha) / (alpha - 1)

    def slope(w: Tensor) -> Tensor:
        return torch.where(w > 0, w.clamp(min=0) ** power, 0.0)

    s = slope(w)
    tiny = torch.finfo(dtype).smallest_normal
    jump = (slope(w + _BLUR) - slope(w - _BLUR)).abs() + torch.where(p < tiny, s, 0.0)
    total = s.sum(-1, keepdim=True)
    moved = jump * (g - (s * g).sum(-1, keepdim=True) / total).abs()
    return moved + s * moved.sum(-1, keepdim=True) / total


def relative(got: Tensor, want: Tensor) -> float:
    """The norm of the difference over the norm of what is right; NaN counts as infinite."""
    off = float((got.double() - want).norm() / want.norm().clamp(min=1e-30))
    return math.inf if math.isnan(off) else off


def told(error: Exception) -> str:
    """An error in a few words.

    >>> told(ValueError("  wrong"))
    'ValueError: wrong'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # Compilers show the code first and say what is wrong in the end.
    line = lines[-1] if type(error).__module__.startswith("triton") else lines[0]
    return f"{type(error).__name__}: {line[:80]}"


def poison(like: Tensor, blocks: int = 4) -> None:
    """Leave NaN in the memory that the next results of this size are likely to get."""
    filled = [torch.full_like(like, torch.nan, requires_grad=False) for _ in range(blocks)]
    del filled


def _beyond(got: Tensor, want: Tensor, slack: Tensor) -> float:
    """The largest error among those that are too large; zero when there is none."""
    error = (got.double() - want).abs()
    error = torch.where(error.isnan(), torch.inf, error)
    return float(torch.where(error <= slack, 0.0, error).max())
