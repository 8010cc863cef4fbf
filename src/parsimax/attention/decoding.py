"""Attention of one new query, or of a few, to a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax._core.dtypes import autocast_on
from parsimax._core.validation import values_readable, without_values
from parsimax.mappings import Mapping, parse

from .caches import check_integers, check_lengths, check_table, joined, needed_pages
from .choice import DEFAULT_ALPHA, align_alpha, check_one_choice
from .flash_decoding import decoding_alpha, flash_decode
from .functional import attention, read_text
from .inputs import check_devices, check_flag, check_scale, check_tensor
from .key_bounds import KeyBounds, check_bounds
from .precision import autocast_inputs
from .visibility import Window, read_window, split_mask


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
    enable_gqa: bool = False,
    alpha: float | Tensor = DEFAULT_ALPHA,
    mapping: Mapping | str | None = None,
    window: Window = None,
    bounds: KeyBounds | None = None,
) -> Tensor:
    """``px.attention`` of the newest queries of each item to all that its cache holds.

    The keys and values of these queries are in the cache already: the last query stands at the
    last key, ``lengths - 1``, the others right before it. For each item this is ``px.attention``
    of its keys, cut at its length, with ``causal_align="bottom-right"``.

    Entmax of up to 16 queries on a GPU is done by kernels that read every key once, in its page,
    and values only in blocks that have weight. They give no gradients and never wait for the GPU,
    unless lengths or the table are on the CPU and have to be brought there.

    Args:
        q: Queries (B, Hq, Lq, E), one or a few.
        k_cache: Keys (B, H, capacity, E); with ``block_table`` pages of them, (pages, H, page
            size, E).
        v_cache: Values (B, H, capacity, Ev), or pages of them.
        lengths: Integers (B,): how many keys each item has, from 0 to the capacity, which for
            pages is their size times the columns of the table. ``None`` is all.
        block_table: Integers (B, most pages of an item): the pages of each item in order. Places
            beyond an item's length, and those of pages that ``window`` hides from all queries, are
            not looked at and may have any value.
        attn_mask: As in ``px.attention``; broadcasts to (B, Hq, Lq, capacity).
        is_causal: A query sees the keys up to its own position.
        scale: What the products are multiplied with; ``None`` is 1 / sqrt(E).
        enable_gqa: Query heads share keys and values in groups.
        alpha: Which entmax: a number, a tensor (Hq,), or one that broadcasts to (B, Hq, Lq, 1).
        mapping: Any mapping, or its text, instead of alpha.
        window: How far a query sees to the left and to the right of its position.
        bounds: Of the keys in the cache, up to date: kernels then read no keys of blocks that
            cannot have weight. What is computed is the same; elsewhere bounds are not looked at.

    Returns:
        (B, Hq, Lq, Ev), in the dtype of q.

    >>> import torch, parsimax as px
    >>> q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 4, 16, 8), torch.randn(2, 4, 16, 8)
    >>> px.attention.decode(q, k, v, torch.tensor([16, 5])).shape
    torch.Size([2, 4, 1, 8])
    >>> pages = torch.randn(6, 4, 4, 8)  # six pages of four keys
    >>> table = torch.tensor([[5, 0, 2, 1], [3, 4, -1, -1]])
    >>> px.attention.decode(q, pages, pages, torch.tensor([16, 5]), table).shape
    torch.Size([2, 4, 1, 8])
    """
    is_causal = check_flag(is_causal, "is_causal")
    check_one_choice(alpha, mapping)
    _check_shapes(q, k_cache, v_cache, block_table)
    pages = 1 if block_table is None else block_table.shape[1]
    capacity = k_cache.shape[2] * pages
    _check_keys(mapping, capacity)
    if attn_mask is not None:
        split_mask(attn_mask, torch.Size((*q.shape[:3], capacity)))
    lengths = check_lengths(lengths, q.shape[0], capacity)
    for name, x in (("lengths", lengths), ("block_table", block_table)):
        if x is not None and x.device != q.device and x.device.type != "cpu":
            raise ValueError(
                f"{name} must be where q is, {q.device}, or on the CPU, got {x.device}"
            )
    if bounds is not None:
        check_bounds(bounds, k_cache, block_table is not None)
    left, right = read_window(window)
    behind = None if left is None else left + q.shape[2]
    block_table = check_table(block_table, lengths, k_cache, behind)
    enable_gqa = check_flag(enable_gqa, "enable_gqa")
    scale = check_scale(scale, q.shape[-1])
    lower = autocast_inputs(q, k_cache, v_cache)
    chosen = mapping if mapping is None or isinstance(mapping, Mapping) else read_text(mapping)
    known = decoding_alpha(*lower, attn_mask, enable_gqa, alpha, chosen)
    if known is not None:
        reach = left, 0 if is_causal else right
        return flash_decode(*lower, lengths, block_table, attn_mask, reach, known, scale, bounds)
    request = Request(q, lengths, block_table, attn_mask, is_causal, window, behind)
    options = Options(scale, enable_gqa, alpha, mapping)
    if _readable(lengths):
        return _item_by_item(request, k_cache, v_cache, options)
    return _masked(request, k_cache, v_cache, options)


class Request(NamedTuple):
    """What is asked of the caches."""

    q: Tensor
    lengths: Tensor | None
    block_table: Tensor | None
    attn_mask: Tensor | None
    is_causal: bool
    window: Window
    behind: int | None  # keys from the last that any query sees; before them nothing is read


class Options(NamedTuple):
    """What ``px.attention`` reads."""

    scale: float | None
    enable_gqa: bool
    alpha: float | Tensor
    mapping: Mapping | str | None


def _of_keys(x: Tensor) -> bool:
    return x.ndim > 0 and x.shape[-1] > 1


def _check_keys(mapping: object, capacity: int) -> None:
    """Numbers for keys are for all that the cache has room for, as those of ``attn_mask``."""
    if not isinstance(mapping, Mapping):
        return
    for name, x in ((f.name, getattr(mapping, f.name)) for f in fields(mapping)):
        if isinstance(x, Tensor) and _of_keys(x) and x.shape[-1] != capacity:
            raise ValueError(
                f"{name} of {type(mapping).__name__} must have one number, or one for each of the "
                f"{capacity} keys that the cache has room for, got shape {tuple(x.shape)}"
            )


def _readable(lengths: Tensor | None) -> bool:
    """Whether looking at the lengths is possible and costs nothing."""
    if lengths is None:
        return True
    return lengths.device.type == "cpu" and values_readable() and not without_values(lengths)


# --- items cut at their lengths: nothing beyond is read -------------------------------------------


def _item_by_item(request: Request, k_cache: Tensor, v_cache: Tensor, options: Options) -> Tensor:
    items = request.q.shape[0]
    lengths = None if request.lengths is None else request.lengths.tolist()
    if lengths is None or len(set(lengths)) <= 1:
        return _cut(request, k_cache, v_cache, options, lengths[0] if lengths else None)
    mapping = None if options.mapping is None else parse(options.mapping)
    if mapping is None:
        align_alpha(options.alpha, torch.Size((*request.q.shape[:3], max(lengths))))
    else:
        _check_batch(mapping, items)
    parts = []
    for i in range(items):
        table = request.block_table
        one = request._replace(
            q=request.q[i : i + 1],
            block_table=None if table is None else table[i : i + 1],
            attn_mask=_of_item(request.attn_mask, i),
        )
        caches = k_cache, v_cache
        if table is None:
            caches = k_cache[i : i + 1], v_cache[i : i + 1]
        alpha = options.alpha
        chosen = options._replace(
            alpha=_of_item(alpha, i) if isinstance(alpha, Tensor) else alpha,
            mapping=None if mapping is None else _mapped(mapping, partial(_of_item, i=i)),
        )
        parts.append(_cut(one, *caches, chosen, lengths[i]))
    return torch.cat(parts)


def _of_item(x: Any, i: int) -> Any:
    """Of what broadcasts to (B, Hq, Lq, Lk)."""
    return x[i : i + 1] if x is not None and x.ndim == 4 and x.shape[0] > 1 else x


def _at_keys(x: Tensor, keys: slice) -> Tensor:
    return x[..., keys] if _of_keys(x) else x


def _check_batch(mapping: Mapping, items: int) -> None:
    """An item takes its own part of a tensor, and would not see that there are too many."""
    for name, x in ((f.name, getattr(mapping, f.name)) for f in fields(mapping)):
        if isinstance(x, Tensor) and x.ndim == 4 and x.shape[0] != 1 and x.shape[0] != items:
            raise ValueError(
                f"{name} of {type(mapping).__name__} must have the batch of q, {items}, or 1, got "
                f"shape {tuple(x.shape)}"
            )


def _mapped(mapping: Mapping, change: Callable[[Tensor], Tensor]) -> Mapping:
    """The mapping with other tensors."""
    held = {f.name: getattr(mapping, f.name) for f in fields(mapping)}
    changed = {name: change(x) for name, x in held.items() if isinstance(x, Tensor)}
    return replace(mapping, **changed) if changed else mapping


def _cut(
    request: Request, k_cache: Tensor, v_cache: Tensor, options: Options, length: int | None
) -> Tensor:
    """Items that all have this length."""
    table, mask = request.block_table, request.attn_mask
    size = k_cache.shape[2]
    if length is None:
        length = size * (1 if table is None else table.shape[1])
    first = 0 if request.behind is None else max(0, length - request.behind)
    keys = slice(first, length)
    if mask is not None and _of_keys(mask):
        mask = mask[..., keys]
    mapping = options.mapping
    if isinstance(mapping, Mapping):
        mapping = _mapped(mapping, partial(_at_keys, keys=keys))
    if table is not None:
        before = first // max(1, size)
        table = table[:, before : -(-length // max(1, size))]
        k_cache, v_cache = joined(k_cache, table), joined(v_cache, table)
        keys = slice(first - before * size, length - before * size)
    k_cache, v_cache = k_cache[:, :, keys], v_cache[:, :, keys]
    return attention(
        request.q,
        k_cache,
        v_cache,
        mask,
        0.0,
        request.is_causal,
        options.scale,
        options.enable_gqa,
        alpha=options.alpha,
        mapping=mapping,
        causal_align="bottom-right",
        window=request.window,
    )


# --- all items at once, where nobody may look at the lengths --------------------------------------


def _masked(request: Request, k_cache: Tensor, v_cache: Tensor, options: Options) -> Tensor:
    """The whole caches, with what is beyond the lengths hidden; lengths that cannot be give NaN."""
    q, lengths, table, mask, is_causal, window, behind = request
    assert lengths is not None
    size, pages = k_cache.shape[2], k_cache.shape[0]
    keys = size * (1 if table is None else table.shape[1])
    good = (lengths >= 0) & (lengths <= keys)
    if table is not None:
        needed = torch.where(needed_pages(table, lengths, size, behind), table, 0)
        good = good & ((needed >= 0) & (needed < pages)).all(1)
        needed = needed.clamp(0, max(0, pages - 1))
        k_cache, v_cache = joined(k_cache, needed), joined(v_cache, needed)
    lengths = torch.where(good, lengths, keys)  # so that the NaN of an item is seen
    # what was never written may be NaN, which a weight of 0 does not remove
    place, ends = torch.arange(keys, device=q.device).view(1, 1, -1, 1), lengths.view(-1, 1, 1, 1)
    inside = place < ends
    if behind is not None:
        inside = inside & (place >= ends - behind)
    k, v = (torch.where(inside, x, 0.0) for x in (k_cache, v_cache))
    seen = _seen(lengths, q.shape[2], keys, is_causal, window)
    if mask is None:
        mask = seen
    elif mask.dtype == torch.bool:
        mask = mask & seen
    else:
        mask = torch.where(seen, mask, -torch.inf)
    q = q * torch.where(good, 1.0, torch.nan).to(q.dtype).view(-1, 1, 1, 1)
    return attention(
        q,
        k,
        v,
        mask,
        scale=options.scale,
        enable_gqa=options.enable_gqa,
        alpha=options.alpha,
        mapping=options.mapping,
    )


def _seen(lengths: Tensor, queries: int, keys: int, is_causal: bool, window: Window) -> Tensor:
    """(B, 1, Lq, Lk), True where a key of an item may be seen."""
    left, right = read_window(window)
    ends = lengths.view(-1, 1, 1, 1)
    key = torch.arange(keys, device=lengths.device)
    place = torch.arange(queries, device=lengths.device).unsqueeze(1) + ends - queries
    seen = key < ends
    if is_causal:
        right = 0
    if right is not None:
        seen = seen & (key - place <= right)
    return seen if left is None else seen & (key - place >= -left)


# --- checks ---------------------------------------------------------------------------------------


def _check_shapes(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: object) -> None:
    caches = (("k_cache", k_cache), ("v_cache", v_cache))
    for name, x in (("q", q), *caches):
        check_tensor(name, x)
        if x.ndim != 4:
            raise ValueError(
                f"{name} must have four dimensions (B, heads, length, size), got shape "
                f"{tuple(x.shape)}"
            )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(
            "k_cache and v_cache must have the same batch, heads and length, got shapes "
            f"{tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    check_devices(q=q, k_cache=k_cache, v_cache=v_cache)
    if q.shape[3] != k_cache.shape[3]:
        raise ValueError(
            f"q and k_cache must have the same size in their last dimension, got {q.shape[3]} in q "
            f"{tuple(q.shape)} and {k_cache.shape[3]} in k_cache {tuple(k_cache.shape)}"
        )
    if not (autocast_on(q.device) or q.dtype == k_cache.dtype == v_cache.dtype):
        raise TypeError(
            f"q, k_cache and v_cache must have the same dtype, got {q.dtype}, {k_cache.dtype} and "
            f"{v_cache.dtype}"
        )
    if block_table is None:
        if k_cache.shape[0] != q.shape[0]:
            raise ValueError(
                f"q and k_cache must have the same batch, got {q.shape[0]} in q {tuple(q.shape)} "
                f"and {k_cache.shape[0]} in k_cache {tuple(k_cache.shape)}; a cache of pages needs "
                "block_table"
            )
        return
    check_integers(block_table, "block_table")
    if block_table.ndim != 2 or block_table.shape[0] != q.shape[0]:  # type: ignore[attr-defined]
        raise ValueError(
            f"block_table must have shape ({q.shape[0]}, most pages of an item), got "
            f"{tuple(block_table.shape)}"  # type: ignore[attr-defined]
        )
