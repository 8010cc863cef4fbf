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
    if not same_shape(mask.shape, z.shape) and not _broadcasts(mask.shape, z.shape):
        raise ValueError(
            f"mask must broadcast to the shape of the scores {tuple(z.shape)}, "
            f"got shape {tuple(mask.shape)}"
        )
    return torch.where(mask, z, -torch.inf)


def same_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes are the same.

    Those of different lengths are told apart by that alone. Python would compare their first sizes,
    and what is recorded could then never be called with sizes that happen to be the same.
    """
    return len(a) == len(b) and a == b


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    """Whether one shape broadcasts to the other; torch's own answer takes ten times as long."""
    if len(shape) > len(to):
        return False
    ends = zip(reversed(shape), reversed(to), strict=False)
    return all(size == 1 or size == wanted for size, wanted in ends)
