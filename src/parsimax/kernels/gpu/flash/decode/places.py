"""Where things lie: rows of a tile, the keys of an item, and rows of a cache.

The rows of a tile are all queries of all heads that share keys: first those of the first head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import load_rows, visible_range, wide

# How a cache lies
WHOLE_CACHE = tl.constexpr(0)  # item after item
WHOLE_PAGES = tl.constexpr(1)  # in pages that are one or several blocks long
ANY_PAGES = tl.constexpr(2)  # in pages of any size


@triton.jit
def item_keys(lengths_ptr, step, item, capacity, LENGTHS: tl.constexpr):
    """(how many keys an item has, whether its length is one that cannot be)."""
    if LENGTHS:
        length = tl.load(lengths_ptr + wide(item) * step).to(tl.int64)
        keys = tl.minimum(tl.maximum(length, 0), capacity).to(tl.int32)
        return keys, length != keys
    else:
        return capacity, capacity < 0


@triton.jit
def seen_blocks(queries, keys, left, right, CAUSAL: tl.constexpr, COLUMNS: tl.constexpr):
    """Blocks [begin, end) that any of the queries may see; the last stands at the last key."""
    return visible_range(0, queries - 1, keys - queries, keys, left, right, CAUSAL, COLUMNS)


@triton.jit
def share(begin, end, part, parts):
    """The part of [begin, end) that one of several programs takes."""
    many = end - begin
    return begin + many * part // parts, begin + many * (part + 1) // parts


@triton.jit
def head_and_query(rows, count, first_head, queries):
    """(head, query) of rows of a tile; the query of those from ``count`` on is none."""
    return first_head + rows // queries, tl.where(rows < count, rows % queries, queries)


@triton.jit
def cache_rows(
    pointer, item, block, keys, size, item_step, row_step, part_step,
    table_ptr, table_row, table_column, pages, page_size,
    PAGED: tl.constexpr, STRIDED: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(rows of one block of a cache, zero from ``keys`` on; which of them are on no page).

    The pointer is that of the head, and pages are what items are elsewhere. STRIDED says that the
    numbers of a row do not lie side by side.
    """
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < keys
    lost = columns < 0
    if STRIDED:  # one of the steps is taken where they are loaded
        pointer = pointer + tl.arange(0, SIZE).to(tl.int64)[None, :] * (part_step - 1)
    if PAGED == WHOLE_CACHE:
        here = pointer + wide(item) * item_step
        return load_rows(here, columns, row_step, keys, size, WHOLE, SIZE), lost
    else:
        table_here = table_ptr + wide(item) * table_row
        if PAGED == WHOLE_PAGES:
            number = block * COLUMNS // page_size
            page = tl.load(table_here + wide(number) * table_column).to(tl.int64)
            lost = inside & ((page < 0) | (page >= pages))
            page = tl.where((page < 0) | (page >= pages), 0, page)
            at = columns - number * page_size
        else:
            number = columns // page_size
            places = number.to(tl.int64) * table_column
            page = tl.load(table_here + places, mask=inside, other=0).to(tl.int64)
            lost = (page < 0) | (page >= pages)
            page = tl.where(lost, 0, page)
            at = columns - number * page_size
        offsets = page * item_step + at.to(tl.int64) * row_step
        x = load_rows(pointer + offsets[:, None], columns, 0, keys, size, WHOLE, SIZE)
        return x, lost
