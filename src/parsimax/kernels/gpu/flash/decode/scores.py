"""Every key is read once: scores of all queries that share it, and the largest of every block.

Weight is only within 1 / (alpha - 1) of the largest score. A block that lies below that in all rows
of a tile, seen from the largest score so far, is opened by nobody, and its scores are not written.
Where bounds of the keys are kept, blocks of which they say so are not even read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .places import WHOLE_CACHE, lost_pages, seen_blocks
from .tile import key_scores, tile_of_program
from .uppers import list_promising

# thresholds have roundings, of which one must not open a block that was not written
_MARGIN = tl.constexpr(1.001)


@triton.jit
def _reach(a_ptr, value, head, group, queries, rows, there, TENSOR: tl.constexpr):
    """How far below the largest score of each row there may be weight."""
    beta = value
    if TENSOR:
        alpha = tl.load(a_ptr + head * group + rows // queries, mask=there, other=2.0)
        beta = (alpha - 1.0).to(tl.float32)
    return _MARGIN / tl.maximum(beta, 1e-30) + tl.zeros([rows.numel], tl.float32)


@triton.jit
def _write(
    s, block, so_far, reach, scores_ptr, tops_ptr, lines, there, COLUMNS: tl.constexpr
):  # fmt: skip
    """The scores of one block, if any may have weight, and the largest; the largest so far."""
    tops = maximum(s, 1)
    tl.store(tops_ptr + lines + block, tops, mask=there)
    so_far = larger(so_far, tops)
    if tl.max(tl.where(tops > so_far - reach, 1, 0), 0) > 0:
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        places = lines[:, None] * COLUMNS + columns[None, :]
        tl.store(scores_ptr + places, s, mask=there[:, None])
    return so_far


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
    reach = _reach(a_ptr, value, head, group, queries, rows, rows < count, TENSOR)
    so_far = tl.full([ROWS], -float("inf"), tl.float32)
    lines = (wide(item_head) * count + rows) * blocks
    for block in range(begin, end):
        s = key_scores(
            q, q_rows, k_here, item, block, scale, queries, low, keys, size, left, right,
            k_item, k_row, k_part, table_ptr, table_row, table_column, pages,
            seen_here, seen_row, seen_column,
            CAUSAL, MASK, PAGED, PAGE, STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        so_far = _write(s, block, so_far, reach, scores_ptr, tops_ptr, lines, rows < count, COLUMNS)
    if PAGED != WHOLE_CACHE:
        lost = lost_pages(
            item, begin, end, low, keys, table_ptr, table_row, table_column, pages, PAGE, COLUMNS
        )  # fmt: skip
        if lost > 0:  # this must show
            tl.debug_barrier()
            tl.store(tops_ptr + lines + begin, float("nan"), mask=rows < count)


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "parts", "pages", "lookers"])
def promising_kernel(
    q_ptr, k_ptr, a_ptr, seen_ptr, lengths_ptr, table_ptr, uppers_ptr, found_ptr, list_ptr,
    scores_ptr, tops_ptr,
    scale, value, heads, group, queries, capacity, size, row_tiles, parts, blocks, lookers, longest,
    left, right,
    pages, lengths_step, table_row, table_column,
    q_item, q_head, q_row, k_item, k_head, k_row, k_part,
    seen_item, seen_head, seen_row, seen_column,
    TENSOR: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PAGED: tl.constexpr, PAGE: tl.constexpr, STRIDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, REAL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The same of one of several equal parts of those blocks whose bounds allow them weight.

    What is written for the other blocks is there already.
    """
    which, asking, asked = tile_of_program(
        q_ptr, seen_ptr, lengths_ptr, heads, group, queries, capacity, size, row_tiles, parts,
        left, right, lengths_step, q_item, q_head, q_row, seen_item, seen_head,
        CAUSAL, MASK, LENGTHS, ROWS, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    item_head, item, head, slot = which
    q, q_rows, rows, count, seen_here = asking
    low, keys, _begin, _end = asked
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    tile, part = slot // parts, slot % parts
    k_here = k_ptr + wide(head) * k_head
    list_here = list_ptr + wide(slot) * longest
    few = (tile % row_tiles) * ROWS + tl.arange(0, REAL)
    of_few = _reach(a_ptr, value, head, group, queries, few, few < count, TENSOR)
    many = list_promising(
        uppers_ptr, found_ptr, of_few, (wide(item_head) * count + few) * blocks, few < count,
        list_here, tile, begin, end, part, parts, lookers, ROWS, REAL, MANY,
    )  # fmt: skip
    reach = _reach(a_ptr, value, head, group, queries, rows, rows < count, TENSOR)
    so_far = tl.full([ROWS], -float("inf"), tl.float32)
    lines = (wide(item_head) * count + rows) * blocks
    for index in range(many):
        block = tl.load(list_here + index)
        s = key_scores(
            q, q_rows, k_here, item, block, scale, queries, low, keys, size, left, right,
            k_item, k_row, k_part, table_ptr, table_row, table_column, pages,
            seen_here, seen_row, seen_column,
            CAUSAL, MASK, PAGED, PAGE, STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        so_far = _write(s, block, so_far, reach, scores_ptr, tops_ptr, lines, rows < count, COLUMNS)
