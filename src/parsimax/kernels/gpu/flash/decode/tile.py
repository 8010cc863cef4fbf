"""What a program that reads keys begins with, and the scores of one block of them."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import block_of_head, hide, load_rows, wide
from parsimax.kernels.gpu.products import product

from .places import cache_rows, first_seen, head_and_query, item_keys, seen_blocks, share


@triton.jit
def tile_of_program(
    q_ptr, seen_ptr, lengths_ptr, heads, group, queries, capacity, size, row_tiles, parts,
    left, right,
    lengths_step, q_item, q_head, q_row, seen_item, seen_head,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Which head, its queries, and the part of the keys that is this program's; a tuple of each."""
    part, tile = block_of_head(parts)
    item_head = tile // row_tiles
    item, head = item_head // heads, item_head % heads
    count = group * queries
    rows = (tile % row_tiles) * ROWS + tl.arange(0, ROWS)
    q_heads, q_rows = head_and_query(rows, count, head * group, queries)
    q_here = q_ptr + wide(item) * q_item + q_heads.to(tl.int64) * q_head + q_rows * q_row
    q = load_rows(q_here[:, None], rows, 0, count, size, WHOLE, SIZE)
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + (wide(item) * seen_item + q_heads.to(tl.int64) * seen_head)[:, None]
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    begin, end = share(begin, end, part, parts)
    low = first_seen(queries, keys, left, CAUSAL)
    which = item_head, item, head, tile * parts + part
    return which, (q, q_rows, rows, count, seen_here), (low, keys, begin, end)


@triton.jit
def key_scores(
    q, q_rows, k_here, item, block, scale, queries, low, keys, size, left, right,
    k_item, k_row, k_part,
    table_ptr, table_row, table_column, pages, seen_here, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PAGED: tl.constexpr, PAGE: tl.constexpr,
    STRIDED: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(rows, COLUMNS) of one block of keys; hidden ones are -inf."""
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    k = cache_rows(
        k_here, item, block, low, keys, size, k_item, k_row, k_part,
        table_ptr, table_row, table_column, pages,
        PAGED, PAGE, STRIDED, COLUMNS, WHOLE, SIZE, CAUSAL,
    )  # fmt: skip
    return hide(
        product(q, tl.trans(k)) * scale, q_rows[:, None], columns[None, :],
        keys - queries, queries, keys, left, right,
        seen_here, seen_row, seen_column, CAUSAL, MASK,
    )  # fmt: skip
