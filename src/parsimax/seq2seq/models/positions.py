"""Sinusoidal positions (Vaswani et al. 2017, Section 3.5), for any length."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def positions(first: int, count: int, like: Tensor) -> Tensor:
    """(count, dim) for positions from ``first`` on, in the dtype and on the device of ``like``."""
    dim = like.shape[-1]
    half = (dim + 1) // 2
    rate = torch.exp(
        torch.arange(half, device=like.device, dtype=torch.float32) * (-math.log(1e4) / half)
    )
    steps = torch.arange(first, first + count, device=like.device, dtype=torch.float32)
    angle = steps[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :dim].to(like.dtype)
