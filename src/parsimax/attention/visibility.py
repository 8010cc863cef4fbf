"""Which keys a query may see: masks, causality, windows and lengths, all intersected."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.validation import check_choice, check_dense, check_values, values_readable

ALIGNMENTS = ("top-left", "bottom-right")
_FAR = 1 << 62  # further than any position, and what a tensor of integers can hold
Window = int | tuple[int | None, int | None] | None


def split_mask(attn_mask: object, shape: torch.Size) -> tuple[Tensor | None, Tensor | None]:
    """A mask as (visible, bias): True where a key may be seen, or numbers to add to the scores."""
    if attn_mask is None:
        return None, None
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a tensor or None, got {type(attn_mask).__name__}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise TypeError(
            "attn_mask must be bool (True = may be seen) or floating-point (added to the scores), "
            f"got {attn_mask.dtype}"
        )
    check_dense(attn_mask, "attn_mask")
    if not fits(attn_mask.shape, shape):
        raise ValueError(
            f"attn_mask must broadcast to the scores {tuple(shape)}, got shape "
            f"{tuple(attn_mask.shape)}; a mask of keys (B, Lk) is written mask[:, None, None, :]"
        )
    return (attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)


def fits(shape: torch.Size, target: torch.Size) -> bool:
    """Whether ``shape`` broadcasts to exactly ``target``."""
    missing = len(target) - len(shape)
    return missing >= 0 and all(
        have == 1 or have == want for have, want in zip(shape, target[missing:], strict=True)
    )


def read_window(window: object) -> tuple[int | None, int | None]:
    """How far a query sees to the left and to the right of its position; None is without end."""
    if window is None:
        return None, None
    sides = window if isinstance(window, tuple | list) else (window, window)
    if len(sides) != 2 or not all(_is_reach(side) for side in sides):
        raise ValueError(
            "window must be None, an int from -1 up or a pair (left, right) of such (-1 or None = "
            f"unlimited), got {window!r}"
        )
    left, right = (None if side in (None, -1) else min(side, _FAR) for side in sides)
    return left, right


def _is_reach(side: object) -> bool:
    return side is None or (isinstance(side, int) and not isinstance(side, bool) and side >= -1)


@dataclass(frozen=True)
class Band:
    """Keys from ``left`` before to ``right`` after the position of a query; None is without end.

    Query i stands at key i + ``offset``.
    """

    left: int | None = None
    right: int | None = None
    offset: int = 0


def read_band(shape: torch.Size, is_causal: bool, align: object, window: object) -> Band:
    """The band of causality and window together.

    Query i stands at key i ("top-left"), or at key i + Lk - Lq ("bottom-right"), where the last
    query stands at the last key.
    """
    align = check_choice(align, "causal_align", ALIGNMENTS)
    left, right = read_window(window)
    if left is None and right is None and not is_causal:
        return Band()
    offset = shape[-1] - shape[-2] if align == "bottom-right" else 0
    return Band(left, 0 if is_causal else right, offset)


def band_mask(band: Band, shape: torch.Size, device: torch.device) -> Tensor | None:
    """(Lq, Lk), True for the keys of the band; None if those are all."""
    if band.left is None and band.right is None:
        return None
    position = torch.arange(shape[-2], device=device).unsqueeze(1) + band.offset
    return within_band(band, torch.arange(shape[-1], device=device) - position)


def within_band(band: Band, ahead: Tensor) -> Tensor | None:
    """True for keys of the band that are so far ahead of their queries; None if all are."""
    return intersect(
        None if band.left is None else ahead >= -band.left,
        None if band.right is None else ahead <= band.right,
    )


def as_counts(x: Tensor) -> Tensor:
    """The same integers in a dtype that holds every count they are compared with.

    In int8 a cache of 300 keys would have 44, and torch compares no unsigned ones but uint8.
    """
    return x if x.dtype in (torch.int32, torch.int64) else x.long()


def check_lengths(key_lengths: object, shape: torch.Size) -> Tensor:
    """Integers, one for each item of the first dimension, from 0 to the number of keys."""
    if not isinstance(key_lengths, Tensor):
        raise TypeError(f"key_lengths must be a tensor or None, got {type(key_lengths).__name__}")
    inexact = key_lengths.is_floating_point() or key_lengths.is_complex()
    if key_lengths.dtype == torch.bool or inexact:
        raise TypeError(f"key_lengths must have an integer dtype, got {key_lengths.dtype}")
    batched = len(shape) > 2
    if key_lengths.ndim > 1 or (key_lengths.ndim == 1 and not batched):
        wanted = f"({shape[0]},) or ()" if batched else "() for q, k and v without a batch"
        raise ValueError(
            f"key_lengths must have shape {wanted}, got shape {tuple(key_lengths.shape)}"
        )
    if key_lengths.ndim == 1 and key_lengths.shape[0] != shape[0]:
        raise ValueError(
            f"key_lengths must have one length for each of the {shape[0]} items of the batch, got "
            f"{key_lengths.shape[0]}"
        )
    key_lengths = as_counts(key_lengths)
    if values_readable():  # else the message alone would tie a compiled graph to this length
        keys = shape[-1]
        expected = f"from 0 to {keys}"
        check_values(key_lengths, "key_lengths", lambda n: (n >= 0) & (n <= keys), expected)
    return key_lengths


def within_lengths(key_lengths: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """(visible keys, a factor for the scores: 1, or NaN where a length is out of range).

    Values are only looked at where that is free (see ``check_values``); elsewhere a length that
    cannot be must give NaN in its item, and not the result of another length.
    """
    lengths = key_lengths.reshape(key_lengths.shape + (1,) * (len(shape) - 1))
    good = (lengths >= 0) & (lengths <= shape[-1])
    keys = torch.arange(shape[-1], device=key_lengths.device)
    return (keys < lengths) | ~good, torch.where(good, 1.0, torch.nan)


def hide_beyond(within: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros in keys and values that no length reaches: a weight of 0 would not remove a NaN."""
    inside = within.mT if within.ndim > 1 else within.unsqueeze(-1)
    return _hidden(k, inside), _hidden(v, inside)


def _hidden(x: Tensor, inside: Tensor) -> Tensor:
    """Zeros outside; what items share stays shared, and keeps what the longest of them sees."""
    if inside.ndim == 2:  # one length for all
        return torch.where(inside, x, 0.0)
    together = inside.flatten(0, -3).any(0)
    if x.ndim < inside.ndim:
        return torch.where(together, x, 0.0)
    if x.shape[0] == 1 or x.stride(0) == 0:
        return torch.where(together, x[:1], 0.0).expand(x.shape)
    return torch.where(inside, x, 0.0)


def intersect(*masks: Tensor | None) -> Tensor | None:
    """Where all masks are True; None sees everything."""
    result: Tensor | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result
