"""Attention to a cache by kernels that read every key once, and values only where there is weight.

:mod:`.decoding` says what is computed. Nothing here looks at lengths or page tables on the host, so
a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from parsimax._core.validation import recorded
from parsimax.mappings import Mapping

from .flash import LARGEST_HEAD, UNLIMITED, not_too_steep
from .fused import alphas_of_heads, kernel_alpha
from .key_bounds import KeyBounds
from .visibility import Band

Reach = tuple[int | None, int | None]  # before and after a position; None is without limit

_FEW_SCORES = 1 << 26
_MOST_QUERIES = 16  # more of them are no step of decoding: scores are kept for each


def decoding_alpha(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    attn_mask: Tensor | None,
    enable_gqa: bool,
    alpha: float | Tensor,
    mapping: Mapping | None,
) -> float | Tensor | None:
    """The alpha to call :func:`flash_decode` with, or None if it is not for this problem."""
    heads, shared = q.shape[1], k_cache.shape[1]
    if shared == 0 or (heads % shared if enable_gqa else heads != shared):
        return None
    if q.shape[3] != k_cache.shape[3] or max(q.shape[3], v_cache.shape[3]) > LARGEST_HEAD:
        return None
    if 0 in (*q.shape, *k_cache.shape, *v_cache.shape):
        return None
    if not few_queries(q, k_cache, v_cache, attn_mask, alpha):
        return None
    known = kernel_alpha(q, k_cache, v_cache, alpha, mapping, 0.0, paged=True)
    return known if known is not None and not_too_steep(known) else None


def few_queries(q: Tensor, *others: object) -> bool:
    """Whether there are so few that scores can be kept, all lies here, and none has a gradient."""
    if q.shape[2] > _MOST_QUERIES:
        return False
    learned = q.requires_grad
    for x in others:
        if isinstance(x, Tensor):
            if x.device != q.device:
                return False
            learned = learned or x.requires_grad
    return not (learned and torch.is_grad_enabled())


def few_scores(q: Tensor, k: Tensor) -> bool:
    """Whether the scores, which are kept, take little memory, or half as much as keys at most."""
    items, heads, queries, size = q.shape
    shared, keys = k.shape[1:3]
    return items * heads * queries * keys <= _FEW_SCORES or 4 * heads * queries <= shared * size


def reach_of(band: Band, queries: int, keys: int, lengths: bool) -> Reach | None:
    """The band of ``px.attention`` as :func:`flash_decode` takes it, or None where it cannot.

    There the last query stands at the last key, or at the last of its item's length.
    """
    limited = band.left is not None or band.right is not None
    if limited and (lengths or band.offset != keys - queries):
        return None
    return band.left, band.right


def flash_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    block_table: Tensor | None,
    attn_mask: Tensor | None,
    reach: Reach,
    alpha: float | Tensor,
    scale: float,
    bounds: KeyBounds | None = None,
) -> Tensor:
    """Context (B, Hq, Lq, Ev); ``reach`` is how far a query sees before and after its position."""
    left = UNLIMITED if reach[0] is None else min(reach[0], UNLIMITED)
    right = UNLIMITED if reach[1] is None else min(reach[1], UNLIMITED)
    if q.shape[2] == 1:  # it stands at the last key
        right = UNLIMITED
    if attn_mask is not None:
        pages = 1 if block_table is None else block_table.shape[1]
        attn_mask = attn_mask.expand(*q.shape[:3], k_cache.shape[2] * pages)
    if lengths is not None:
        lengths = lengths.to(q.device)
    if block_table is not None:
        block_table = block_table.to(q.device)
    tensor = alpha if isinstance(alpha, Tensor) else None
    value = 0.0 if isinstance(alpha, Tensor) else alpha
    of_keys = (None, None, None) if bounds is None else bounds.tensors
    arguments = (
        q, k_cache, v_cache, lengths, block_table, attn_mask, tensor, value, scale, left, right,
        *of_keys, 0 if bounds is None else bounds.block,
    )  # fmt: skip
    if recorded():
        compiled: Tensor = _operator(*arguments)
        return compiled
    return _launch(*arguments)


def _launch(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    block_table: Tensor | None,
    attn_mask: Tensor | None,
    tensor: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    middle: Tensor | None,
    width: Tensor | None,
    radius: Tensor | None,
    block: int,
) -> Tensor:
    on_device_of, decode, problems, bounds_of = _kernels()
    alpha = value if tensor is None else alphas_of_heads(tensor)
    band = None if left == right == UNLIMITED else (left, right)
    q = q if q.stride(-1) == 1 else q.contiguous()
    problem = problems.Problem(
        q, k_cache, v_cache, lengths, block_table, attn_mask, alpha, scale, band
    )
    # what is not of these keys as they are read, or too coarse, says nothing
    fine = middle is not None and problems.tiles_for(q, v_cache, alpha).columns % block == 0
    if middle is not None and fine and middle.dtype == k_cache.dtype:
        problem = problem._replace(bounds=bounds_of(middle, width, radius, block))
    with on_device_of(q):
        out: Tensor = decode(problem)
        return out


@cache
def _kernels() -> tuple[Any, ...]:
    """What is imported only where it is needed; to look it up takes a step three microseconds."""
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.decode import problem
    from parsimax.kernels.gpu.flash.decode.bounds import Bounds
    from parsimax.kernels.gpu.flash.decode.launch import decode

    return on_device_of, decode, problem, Bounds


# --- torch.compile --------------------------------------------------------------------------------


@torch.library.custom_op("parsimax::flash_decode", mutates_args=())
def _operator(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    block_table: Tensor | None,
    attn_mask: Tensor | None,
    alpha: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    middle: Tensor | None = None,
    width: Tensor | None = None,
    radius: Tensor | None = None,
    block: int = 0,
) -> Tensor:
    return _launch(
        q, k_cache, v_cache, lengths, block_table, attn_mask, alpha, value, scale, left, right,
        middle, width, radius, block,
    )  # fmt: skip


@_operator.register_fake
def _(q: Tensor, _k_cache: Tensor, v_cache: Tensor, *_rest: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v_cache.shape[3])
