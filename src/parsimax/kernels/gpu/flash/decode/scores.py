"""Every key is read once: scores of all queries that share it, and the largest of every block.

Weight is only within 1 / (alpha - 1) of the largest score. A block that lies below that in all rows
of a tile, seen from the largest score so far, is opened by nobody, and its scores are not written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .places import WHOLE_CACHE, lost_pages
from .tile import key_scores, tile_of_program

# thresholds have roundings, of which one must not open a block that was not written
_MARGIN = tl.constexpr(1.001)


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "parts", "pages"])
def scores_kernel(
    q_ptr, k_ptr, a_ptr, seen_ptr, lengths_ptr, table_ptr, scores_ptr, tops_ptr,
    scale, value, heads, group, queries, capacity, size, row_tiles, parts, blocks, left, right,
    pages, lengths_step, table_row, table_column,
    q_item, q_head, q_row, k_item, k_head, k_row, k_part,
    seen_item, seen_head, seen_row, seen_column,
    TENSOR: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PAGED: tl.constexpr, PAGE: tl.constexpr, STRIDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One of several equal parts of the keys that one tile of queries sees.

    The largest scores (B, Hq, Lq, blocks) are written for the blocks that any query of the item may
    see, and for no other; all scores (B, Hq, Lq, blocks * COLUMNS) for those of them that may have
    weight.
    """
    which, asking, asked = tile_of_program(
        q_ptr, seen_ptr, lengths_ptr, heads, group, queries, capacity, size, row_tiles, parts,
        left, right, lengths_step, q_item, q_head, q_row, seen_item, seen_head,
        CAUSAL, MASK, LENGTHS, ROWS, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    item_head, item, head, _slot = which
    q, q_rows, rows, count, seen_here = asking
    low, keys, begin, end = asked
    k_here = k_ptr + wide(head) * k_head
    beta = value
    if TENSOR:
        alpha = tl.load(a_ptr + head * group + rows // queries, mask=rows < count, other=2.0)
        beta = (alpha - 1.0).to(tl.float32)
    reach = _MARGIN / tl.maximum(beta, 1e-30) + tl.zeros([ROWS], tl.float32)
    so_far = tl.full([ROWS], -float("inf"), tl.float32)
    lines = (wide(item_head) * count + rows) * blocks
    for block in range(begin, end):
        s = key_scores(
            q, q_rows, k_here, item, block, scale, queries, low, keys, size, left, right,
            k_item, k_row, k_part, table_ptr, table_row, table_column, pages,
            seen_here, seen_row, seen_column,
            CAUSAL, MASK, PAGED, PAGE, STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        tops = maximum(s, 1)
        tl.store(tops_ptr + lines + block, tops, mask=rows < count)
        so_far = larger(so_far, tops)
        if tl.max(tl.where(tops > so_far - reach, 1, 0), 0) > 0:
            columns = block * COLUMNS + tl.arange(0, COLUMNS)
            places = lines[:, None] * COLUMNS + columns[None, :]
            tl.store(scores_ptr + places, s, mask=(rows < count)[:, None])
    if PAGED != WHOLE_CACHE:
        lost = lost_pages(
            item, begin, end, low, keys, table_ptr, table_row, table_column, pages, PAGE, COLUMNS
        )  # fmt: skip
        if lost > 0:  # this must show
            tl.debug_barrier()
            tl.store(tops_ptr + lines + begin, float("nan"), mask=rows < count)
