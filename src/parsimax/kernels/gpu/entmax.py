"""entmax, sparsegen and the loss of entmax: a stand-in by bisection."""

from __future__ import annotations

import torch
from torch import Tensor

from .bisection import ENTMAX, by_row, solve


def forward(z: Tensor, alpha: float | Tensor, out: Tensor) -> None:
    """entmax of every row."""
    order = by_row(alpha, z) - 1
    order = torch.where((order >= 0) & (order < torch.inf), order, torch.nan)
    one = torch.ones_like(order)
    solve(z, order, one, one, ENTMAX, out)


def sparsegen_forward(z: Tensor, lam: float | Tensor, out: Tensor) -> None:
    """sparsegen of every row."""
    width = 1 - by_row(lam, z)
    good = (width > 0) & (width < torch.inf)
    one = torch.ones_like(width)
    solve(z, torch.where(good, 1.0, torch.nan), one, 1 / width, ENTMAX, out)


def loss(
    z: Tensor,
    alpha: float | Tensor,
    index: Tensor | None,
    p: Tensor,
    gap: Tensor,
    lag: Tensor,
    top: Tensor,
) -> None:
    """Probabilities, and what the loss needs of each row."""
    exact = torch.empty_like(z, dtype=torch.float32)
    forward(z, alpha, exact)
    p.copy_(exact)
    wide, y = exact.double(), z.double()
    order = by_row(alpha, z).unsqueeze(-1)
    best = y.amax(-1)
    top.copy_(torch.where(best.isfinite(), best, 0.0))
    inner = torch.where(wide > 0, y - top.double().unsqueeze(-1), 0.0)
    log_p = torch.where(wide > 0, wide, 1.0).log()
    beta = order - 1
    slope = torch.where(beta < 1e-8, log_p, torch.expm1(beta * log_p) / beta.clamp(min=1e-8))
    values = (wide * (inner - slope / order)).sum(-1)
    gap.copy_(torch.where(best == -torch.inf, 0.0, values.clamp(min=0)))
    if index is None:
        lag.zero_()
    else:
        lag.copy_(top.double() - y.gather(-1, index.unsqueeze(-1)).squeeze(-1))
