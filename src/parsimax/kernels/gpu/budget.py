"""budget: a stand-in by bisection, its backward in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .bisection import BUDGET, by_row, solve


def forward(z: Tensor, k: float | Tensor, out: Tensor) -> None:
    """budget of every row."""
    mass = by_row(k, z)
    one = torch.ones_like(mass)
    solve(z, one, mass, one, BUDGET, out)


def backward(p: Tensor, g: Tensor, k: float | Tensor, out: Tensor, change: Tensor | None) -> None:
    """Gradients in scores and k."""
    wide, g = p.double(), g.double()
    free = ((wide > 0) & (wide < 1)) | wide.isnan()
    mean = torch.where(free, g, 0.0).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    broken = wide.isnan()
    out.copy_(torch.where(broken, torch.nan, torch.where(free, g - mean, 0.0)))
    if change is not None:
        change.copy_(torch.where(broken.any(-1), torch.nan, mean.squeeze(-1)))
