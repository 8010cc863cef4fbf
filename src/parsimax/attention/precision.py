"""Autocast and half precision: attention is cast as torch's is, and computed in float32 inside."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from parsimax._core.dtypes import autocast_on


def autocast_inputs(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs in autocast's dtype, as torch casts those of scaled_dot_product_attention."""
    if not autocast_on(q.device):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return _lower(q, dtype), _lower(k, dtype), _lower(v, dtype)


def _lower(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Autocast leaves float64 alone."""
    return x if x.dtype == torch.float64 else x.to(dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keeps autocast from lowering the float32 that scores of half precision are computed in."""
    return torch.autocast(device.type, enabled=False) if autocast_on(device) else nullcontext()
