"""normmax: a stand-in by bisection, its backward in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .bisection import NORMMAX, by_row, solve


def forward(z: Tensor, alpha: float | Tensor, out: Tensor) -> None:
    """normmax of every row."""
    beta = by_row(alpha, z) - 1
    order = torch.where((beta > 0) & (beta < torch.inf), 1 / beta, torch.nan)
    one = torch.ones_like(order)
    solve(z, order, one, one, NORMMAX, out)


def backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, out: Tensor, change: Tensor | None
) -> None:
    """Gradients in scores and alpha."""
    order = by_row(alpha, p).unsqueeze(-1)
    beta = order - 1
    p, g = p.double(), g.double()
    inside, broken = p > 0, p.isnan()
    log_p = torch.where(inside, p, 1.0).log()
    powers = torch.where(inside, torch.exp(order * log_p), 0.0).sum(-1, keepdim=True)
    log_norm = torch.where(powers > 0, powers, 1.0).log() / order
    s = torch.where(inside, torch.exp((1 - beta) * log_p + beta * log_norm), 0.0)
    h = s / beta * (g - (p * g).sum(-1, keepdim=True))
    h = torch.where(inside, h - p * h.sum(-1, keepdim=True), 0.0)
    out.copy_(torch.where(broken, torch.nan, h))
    if change is None:
        return
    log_r = beta * (log_p - log_norm)
    q = torch.where(inside, torch.exp(log_p - log_norm), 0.0)
    mass = torch.exp(-log_norm)
    dtau = (q * torch.exp(log_r) * log_r).sum(-1, keepdim=True) / ((1 / beta + 1) * mass)
    moved = torch.where(inside, q * (log_r - torch.exp(-log_r) * dtau / beta), 0.0)
    moved = -(moved - p * moved.sum(-1, keepdim=True)) / mass / beta**2
    change.copy_(torch.where(broken, torch.nan, g * moved).sum(-1))
