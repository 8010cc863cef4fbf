"""How far the keys of each block of a cache reach: kept beside it, and found anew for new keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.flash.blocks import block_of_head, wide
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import maximum
from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .places import WHOLE_CACHE, WHOLE_PAGES, cache_rows, existing_page, item_keys

_WIDER = tl.constexpr(1.0 + 2.0**-7)  # so that no rounding makes a block narrower
_OF_SUMS = tl.constexpr(2.0**-16)  # of the middle: what sums of products may be off by


class Bounds(NamedTuple):
    """Of each block of keys of a cache, as the cache lies: (items or pages, H, blocks, E).

    In each of its numbers, a key of the block is within ``width`` of ``middle``; as a vector, it is
    within ``radius`` (items or pages, H, blocks) of it. None has gaps. What is infinite or not a
    number says nothing of the keys.
    """

    middle: Tensor
    width: Tensor
    radius: Tensor
    block: int  # keys of each: a power of two which divides pages


@triton.jit
def length_of(x, AXIS: tl.constexpr):
    """Of vectors along an axis; their squares neither vanish nor overflow."""
    largest = tl.maximum(maximum(tl.abs(x), AXIS), 1e-30)
    parts = x / tl.expand_dims(largest, AXIS)
    return largest * tl.sqrt(tl.sum(parts * parts, AXIS))


@quick
@triton.jit(do_not_specialize=["capacity", "new", "many", "pages"])
def bounds_kernel(
    k_ptr, lengths_ptr, table_ptr, middle_ptr, width_ptr, radius_ptr,
    heads, capacity, size, new, many, blocks,
    pages, lengths_step, table_row, table_column, k_item, k_head, k_row, k_part,
    LENGTHS: tl.constexpr, PAGED: tl.constexpr, PAGE: tl.constexpr, STRIDED: tl.constexpr,
    BLOCK: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One of the ``many`` blocks of an item, from that on which has the first of ``new`` keys."""
    number, item_head = block_of_head(many)
    item, head = item_head // heads, item_head % heads
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    block = tl.maximum(keys - new, 0) // BLOCK + number
    if block * BLOCK < keys:
        k = cache_rows(
            k_ptr + wide(head) * k_head, item, block, 0, keys, size, k_item, k_row, k_part,
            table_ptr, table_row, table_column, pages,
            PAGED, PAGE, STRIDED, BLOCK, WHOLE, SIZE, False,
        ).to(tl.float32)  # fmt: skip
        there = block * BLOCK + tl.arange(0, BLOCK) < keys
        count = tl.minimum(keys - block * BLOCK, BLOCK)
        middle = rounded(tl.sum(k, 0) / count, middle_ptr.dtype.element_ty)
        apart = tl.where(there[:, None], tl.abs(k - middle.to(tl.float32)[None, :]), 0.0)
        of_middle = tl.abs(middle.to(tl.float32)) * _OF_SUMS
        width = (maximum(apart, 0) + of_middle) * _WIDER
        radius = (maximum(length_of(apart, 1), 0) + length_of(of_middle, 0)) * _WIDER
        width = rounded(width, width_ptr.dtype.element_ty)
        at, place, known = wide(item), block, keys > 0
        if PAGED != WHOLE_CACHE:
            where = table_ptr + wide(item) * table_row + wide(block * BLOCK // PAGE) * table_column
            page = tl.load(where)
            known = (page >= 0) & (page < pages)
            at, place = existing_page(page, pages), block % (PAGE // BLOCK)
        if known:
            line = (at * heads + head) * blocks + place
            parts = tl.arange(0, SIZE)
            tl.store(middle_ptr + line * size + parts, middle, mask=parts < size)
            tl.store(width_ptr + line * size + parts, width, mask=parts < size)
            tl.store(radius_ptr + line, radius)


def update(
    bounds: Bounds, k: Tensor, lengths: Tensor | None, table: Tensor | None, new: int
) -> None:
    """Write those of all blocks that have one of the last ``new`` keys of an item."""
    items = k.shape[0] if table is None else table.shape[0]
    heads, page, size = k.shape[1:]
    capacity = page * (1 if table is None else table.shape[1])
    block = bounds.block
    new = min(new, capacity)
    # so many keys in a row begin one block, and may end in the middle of another
    many = min(pieces(capacity, block), pieces(max(0, new - 1), block) + 1)
    if 0 in (*k.shape, items, capacity, new):
        return
    step = 0 if lengths is None else lengths.stride(0)
    steps = (0, 0) if table is None else table.stride()
    padded = max(16, power_of_two(size))
    options: dict[str, Any] = {
        "LENGTHS": lengths is not None,
        "PAGED": int((WHOLE_CACHE if table is None else WHOLE_PAGES).value),
        "PAGE": 1 if table is None else page,
        "STRIDED": k.stride(3) != 1, "BLOCK": block, "WHOLE": padded == size, "SIZE": padded,
    }  # fmt: skip
    bounds_kernel[(many * items * heads,)](
        k, k if lengths is None else lengths, k if table is None else table, *bounds[:3],
        heads, capacity, size, new, many, bounds.middle.shape[2],
        k.shape[0], step, *steps, *k.stride(), **options,
    )  # fmt: skip
