"""Every key is read once: scores of all queries that share it, and the largest of every block."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import hide, load_rows, product, wide
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import maximum

from .places import cache_rows, head_and_query, item_keys, seen_blocks, share


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "blocks", "pages"])
def scores_kernel(
    q_ptr, k_ptr, seen_ptr, lengths_ptr, table_ptr, scores_ptr, tops_ptr,
    scale, heads, group, queries, capacity, size, row_tiles, blocks, left, right,
    pages, page_size, lengths_step, table_row, table_column,
    q_item, q_head, q_row, k_item, k_head, k_row, k_part,
    seen_item, seen_head, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PAGED: tl.constexpr, STRIDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One of several equal parts of the keys that one tile of queries sees.

    Scores (B, Hq, Lq, blocks * COLUMNS) and their largest (B, Hq, Lq, blocks) are written for the
    blocks that any query of the item may see, and for no other.
    """
    tile = tl.program_id(1)
    item_head = tile // row_tiles
    item, head = item_head // heads, item_head % heads
    count = group * queries
    rows = (tile % row_tiles) * ROWS + tl.arange(0, ROWS)
    q_heads, q_rows = head_and_query(rows, count, head * group, queries)
    q_here = q_ptr + wide(item) * q_item + q_heads.to(tl.int64) * q_head + q_rows * q_row
    q = load_rows(q_here[:, None], rows, 0, count, size, WHOLE, SIZE)
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    begin, end = share(begin, end, tl.program_id(0), tl.num_programs(0))
    k_here = k_ptr + wide(head) * k_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + (wide(item) * seen_item + q_heads.to(tl.int64) * seen_head)[:, None]
    lines = (wide(item_head) * count + rows) * blocks
    for block in range(begin, end):
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        k, lost = cache_rows(
            k_here, item, block, keys, size, k_item, k_row, k_part,
            table_ptr, table_row, table_column, pages, page_size,
            PAGED, STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        s = product(q, tl.trans(k)) * scale
        # what should be on a page that does not exist must show
        s = tl.where(lost[None, :], float("nan"), s)
        s = hide(
            s, q_rows[:, None], columns[None, :], keys - queries, queries, keys, left, right,
            seen_here, seen_row, seen_column, CAUSAL, MASK,
        )  # fmt: skip
        places = lines[:, None] * COLUMNS + columns[None, :]
        tl.store(scores_ptr + places, s, mask=(rows < count)[:, None])
        tl.store(tops_ptr + lines + block, maximum(s, 1), mask=rows < count)
