"""Backward of entmax and sparsegen: a stand-in in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .bisection import by_row


def _centred(
    p: Tensor, g: Tensor, s: Tensor, direct: Tensor, out: Tensor, change: Tensor | None
) -> None:
    total = s.sum(-1, keepdim=True)
    g = torch.where(p > 0, g, 0.0)
    highest = g.gather(-1, s.argmax(-1, keepdim=True))
    g = g - highest
    g = g - (s * g).sum(-1, keepdim=True) / torch.where(total == 0, 1.0, total)
    broken = p.isnan()
    out.copy_(torch.where(broken, torch.nan, s * g))
    if change is not None:
        change.copy_(torch.where(broken, torch.nan, torch.where(p > 0, direct * g, 0.0)).sum(-1))


def backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, out: Tensor, change: Tensor | None
) -> None:
    """Gradients in scores and alpha."""
    beta = by_row(alpha, p).unsqueeze(-1) - 1
    p, g = p.double(), g.double()
    log_p = torch.where(p > 0, p, 1.0).log()
    s = torch.where(p > 0, torch.exp((1 - beta) * log_p), 0.0)
    v = -beta * log_p
    series = torch.full_like(v, 0.0)
    for k in range(20, -1, -1):
        series = 1 / (k + 2) * (1 + series * v) if k else 0.5 * (1 + series * v)
    far = (torch.expm1(v) - v) / torch.where(v == 0, 1.0, v) ** 2
    excess = torch.where(v < 1, series, far)
    steep = (p - beta * p * log_p) / beta.clamp(min=1) ** 2
    direct = torch.where(beta > 1, steep, -p * log_p**2 * excess)
    _centred(p, g, s, direct, out, change)


def sparsegen_backward(
    p: Tensor, g: Tensor, lam: float | Tensor, out: Tensor, change: Tensor | None
) -> None:
    """Gradients in scores and lam."""
    width = 1 - by_row(lam, p).unsqueeze(-1)
    p, g = p.double(), g.double()
    _centred(p, g / width, (p > 0).double(), p, out, change)
