"""The correctness gate: what a contender returns is compared with float64 before it is timed.

The oracle is bisection on the threshold, in float64, and shares nothing with any solver.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SAMPLE = 64  # rows that are checked, from the first to the last


def spread(rows: int, most: int) -> Tensor:
    """At most so many of the rows, evenly spread, with the first and the last.

    >>> spread(10, 4)
    tensor([0, 3, 6, 9])
    """
    return torch.linspace(0, rows - 1, min(rows, most), dtype=torch.float64).round().long()


def oracle(z: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of the rows of ``z`` by bisection in float64.

    >>> import torch
    >>> oracle(torch.tensor([[1.0, 0.5, -1.0]]), 2.0)
    tensor([[0.7500, 0.2500, 0.0000]], dtype=torch.float64)
    """
    x = z.double() - z.double().amax(-1, keepdim=True)
    if alpha == 1.0:
        return x.softmax(-1)
    x = x * (alpha - 1)
    low = torch.full_like(x[..., :1], -1.0)
    high = torch.full_like(low, -(x.shape[-1] ** (1 - alpha)))
    for _ in range(100):
        tau = (low + high) / 2
        total = ((x - tau).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True)
        low, high = torch.where(total >= 1, tau, low), torch.where(total >= 1, high, tau)
    p = (x - low).clamp(min=0) ** (1 / (alpha - 1))
    return p / p.sum(-1, keepdim=True)


def gradient(p: Tensor, g: Tensor, alpha: float) -> Tensor:
    """The gradient in the scores, from the probabilities (Peters et al. 2019, Proposition 2)."""
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    return s * (g - (s * g).sum(-1, keepdim=True) / s.sum(-1, keepdim=True))


def refuse(z: Tensor, g: Tensor, p: Tensor, gz: Tensor, alpha: float) -> str | None:
    """Why this result may not be timed, or None.

    Probabilities must lie within the tolerance of the numeric contract, and gradients within ten
    times that, because they multiply it by the incoming gradient.
    """
    half = z.dtype in (torch.float16, torch.bfloat16)
    tolerance = torch.finfo(z.dtype).eps if half else (2e-6 if alpha <= 2 else 5e-3)
    sample = spread(len(z), _SAMPLE)
    want = oracle(z[sample], alpha)
    error = _worst(p[sample], want)
    if not error <= tolerance:
        return f"off by {error:.0e}"
    slack = abs(float(p[sample].double().sum(-1).sub(1).abs().max()))
    if not half and not slack <= 1e-6:
        return f"sums off by {slack:.0e}"
    off = _worst(gz[sample], gradient(want, g[sample].double(), alpha))
    if not off <= 10 * tolerance:
        return f"gradient off by {off:.0e}"
    return None


def _worst(got: Tensor, want: Tensor) -> float:
    difference = float((got.double() - want).abs().max())
    return math.inf if math.isnan(difference) else difference
