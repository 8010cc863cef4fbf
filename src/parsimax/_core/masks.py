"""Masks: bool tensors, True where a score may receive probability."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_mask(z: Tensor, mask: object) -> Tensor:
    """``z`` with -inf where ``mask`` is False. The mask must broadcast to the shape of ``z``."""
    if mask is None:
        return z
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a bool tensor or None, got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must have dtype torch.bool (True = allowed), got {mask.dtype}")
    try:
        shape = torch.broadcast_shapes(mask.shape, z.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = None
    if shape != z.shape:
        raise ValueError(
            f"mask must broadcast to the shape of the scores {tuple(z.shape)}, "
            f"got shape {tuple(mask.shape)}"
        )
    return torch.where(mask, z, -torch.inf)
