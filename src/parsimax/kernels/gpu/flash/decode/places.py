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
SHORT_PAGES = tl.constexpr(2)  # in pages of which a few make up a block
ANY_PAGES = tl.constexpr(3)  # in pages of any size

_TOGETHER = tl.constexpr(128)  # places of a table that are checked together


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
    return visible_range(0, queries - 1, keys - queries, 0, keys, left, right, CAUSAL, COLUMNS)


@triton.jit
def first_seen(queries, keys, left, CAUSAL: tl.constexpr):
    """The first key that any of the queries may see: pages before it may have been given back."""
    if CAUSAL:
        return tl.maximum(keys - queries - left, 0)
    else:
        return keys * 0


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
def existing_page(page, pages):
    """A page that exists: who asks for another is told so by :func:`lost_pages`."""
    return tl.where((page < 0) | (page >= pages), 0, page).to(tl.int64)


@triton.jit
def lost_pages(
    item, begin, end, low, keys, table_ptr, table_row, table_column, pages,
    PAGE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """1 if keys from ``low`` of the blocks [begin, end) should be on a page that is none, or 0."""
    table_here = table_ptr + wide(item) * table_row
    last = tl.cdiv(tl.minimum(end * COLUMNS, keys), PAGE)
    lost = tl.zeros([_TOGETHER], tl.int32)
    for first in range(tl.maximum(begin * COLUMNS, low) // PAGE, last, _TOGETHER):
        number = first + tl.arange(0, _TOGETHER)
        places = number.to(tl.int64) * table_column
        page = tl.load(table_here + places, mask=number < last, other=0)
        lost = tl.where((page < 0) | (page >= pages), 1, lost)
    return tl.max(lost, 0)


@triton.jit
def cache_rows(
    pointer, item, block, low, keys, size, item_step, row_step, part_step,
    table_ptr, table_row, table_column, pages,
    PAGED: tl.constexpr, PAGE: tl.constexpr, STRIDED: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Rows of one block of a cache, zero from ``keys`` on, and in short pages before ``low``.

    The pointer is that of the head, and pages are what items are elsewhere, PAGE rows each. STRIDED
    says that the numbers of a row do not lie side by side.
    """
    here = tl.arange(0, COLUMNS)
    columns = block * COLUMNS + here
    if STRIDED:  # one of the steps is taken where they are loaded
        pointer = pointer + tl.arange(0, SIZE).to(tl.int64)[None, :] * (part_step - 1)
    if PAGED == WHOLE_CACHE:
        rows = pointer + wide(item) * item_step
        return load_rows(rows, columns, row_step, keys, size, WHOLE, SIZE)
    else:
        table_here = table_ptr + wide(item) * table_row
        if PAGED == WHOLE_PAGES:
            number = block * COLUMNS // PAGE
            page = existing_page(tl.load(table_here + wide(number) * table_column), pages)
            at = columns - number * PAGE
        elif PAGED == SHORT_PAGES:  # places of the table are read once, and not for each row
            page = tl.zeros([COLUMNS], tl.int64)
            for part in tl.static_range(COLUMNS // PAGE):
                number = block * (COLUMNS // PAGE) + part
                place = table_here + wide(number) * table_column
                there = (number * PAGE < keys) & ((number + 1) * PAGE > low)
                one = existing_page(tl.load(place, mask=there, other=0), pages)
                page = tl.where(here // PAGE == part, one, page)
            at = here % PAGE
        else:
            number = columns // PAGE
            places = number.to(tl.int64) * table_column
            there = (columns < keys) & (columns >= low)
            page = existing_page(tl.load(table_here + places, mask=there, other=0), pages)
            at = columns - number * PAGE
        offsets = page * item_step + at.to(tl.int64) * row_step
        rows = columns
        if CAUSAL and PAGED != WHOLE_PAGES:
            rows = tl.where(columns < low, keys, columns)  # none
        return load_rows(pointer + offsets[:, None], rows, 0, keys, size, WHOLE, SIZE)
