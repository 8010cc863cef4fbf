"""Sequences and masks as ``torch.nn.MultiheadAttention`` takes them: there, True hides a key."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax._core.masks import same_shape

from .visibility import Band, band_mask, intersect


def check_sequences(
    query: Tensor, key: Tensor, value: Tensor, sizes: tuple[int, int, int], batch_first: bool
) -> bool:
    """Whether the input is batched, once the three are found to fit."""
    layout = "(N, L, E)" if batch_first else "(L, N, E)"
    for name, x, size in zip(("query", "key", "value"), (query, key, value), sizes, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must have a floating-point dtype, got {x.dtype}")
        if x.ndim not in (2, 3) or x.ndim != query.ndim:
            raise ValueError(
                f"query, key and value must all be batched, {layout}, or all unbatched, (L, E), "
                f"got {name} of shape {tuple(x.shape)} and query of shape {tuple(query.shape)}"
            )
        if x.shape[-1] != size:
            raise ValueError(
                f"{name} must have size {size} in its last dimension, got shape {tuple(x.shape)}"
            )
    batched = query.ndim == 3
    batch = 0 if batch_first else 1
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"key and value must have the same length{' and batch' if batched else ''}, got shapes "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    if batched and query.shape[batch] != key.shape[batch]:
        raise ValueError(
            f"query and key must have the same batch, dimension {batch} in {layout}, got shapes "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    return batched


def read_masks(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    shape: torch.Size,
    batched: bool,
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:
    """Torch's masks for scores (N, H, L, S) as (visible, bias): True where a key may be seen."""
    items, heads, queries, keys = shape
    if key_padding_mask is not None:
        wanted = (items, keys) if batched else (keys,)
        _check_mask(key_padding_mask, "key_padding_mask", [wanted])
        key_padding_mask = key_padding_mask.reshape(items, 1, 1, keys)
    if attn_mask is not None:
        _check_mask(attn_mask, "attn_mask", [(queries, keys), (items * heads, queries, keys)])
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(shape)
    causal = band_mask(Band(right=0 if is_causal else None), torch.Size(shape), device)
    visible = intersect(_shown(key_padding_mask), _shown(attn_mask), causal)
    return visible, _add(_added(key_padding_mask), _added(attn_mask))


def joined(visible: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """One mask, bool or added."""
    if visible is None or bias is None:
        return bias if visible is None else visible
    return torch.where(visible, bias, -torch.inf)


def _check_mask(mask: object, name: str, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} must be bool (True = hidden, as in torch) or floating-point (added to the "
            f"scores), got {mask.dtype}"
        )
    if not any(same_shape(mask.shape, shape) for shape in shapes):
        raise ValueError(
            f"{name} must have shape {' or '.join(map(str, shapes))}, got {tuple(mask.shape)}"
        )


def _shown(mask: Tensor | None) -> Tensor | None:
    return None if mask is None or mask.dtype != torch.bool else ~mask


def _added(mask: Tensor | None) -> Tensor | None:
    return None if mask is None or mask.dtype == torch.bool else mask


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
