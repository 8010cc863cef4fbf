"""The largest score of every query in every block of keys.

All keys are read for this, and nothing else is done with their scores, so its tiles are the
largest: the taller one is, the less often keys come from the cache, which is what it waits for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import maximum

from .blocks import (
    block_of_slot,
    block_scores,
    load_rows,
    numbers_of,
    unit,
    visible_range,
    whole_blocks,
    wide,
)
from .sequences import sequence
from .spans import span_of


@triton.jit
def _keep_tops(
    top, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, key_blocks, begin, end,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EDGE: tl.constexpr,
    ROWS: tl.constexpr, GRAIN: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Those of wide blocks from ``begin`` to ``end`` into memory; the largest of all."""
    PARTS: tl.constexpr = WIDE // COLUMNS
    for block in range(begin, end):
        s = block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, CAUSAL, MASK, EDGE, not EDGE,
            WIDE, WHOLE, SIZE,
        )  # fmt: skip
        largest = maximum(tl.reshape(s, [ROWS, PARTS, COLUMNS]), 2) * unit(scale, MASK)
        narrow = block * PARTS + tl.arange(0, PARTS)
        places = tops_ptr[:, None] + narrow[None, :] * GRAIN
        if EDGE:
            tl.store(places, largest, mask=(narrow < key_blocks)[None, :])
        else:
            tl.store(places, largest)
        top = tl.maximum(top, largest, propagate_nan=tl.PropagateNan.ALL)
    return top


@quick
@triton.jit(do_not_specialize=["queries", "keys", "tile"])
def tops_kernel(
    q_ptr, k_ptr, seen_ptr, lengths_ptr, top_ptr, tops_ptr,
    scale, heads, group, queries, keys, size, tile, tall_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, seen_item, seen_head, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    ROWS: tl.constexpr, GRAIN: tl.constexpr, WIDE: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One tall block of queries, counted from the first of all heads; scratch begins at ``tile``.

    It holds (blocks of GRAIN queries, blocks of keys, GRAIN).
    """
    slot = tl.program_id(0)
    row_block, item_head = block_of_slot(slot, tile, tall_blocks, 1)
    item, head = item_head // heads, item_head % heads
    here = tl.arange(0, ROWS)
    q_at, k_at, nothing = item, item, -float("inf")
    if PACKED:
        row_block, q_at, queries, k_at, _all, keys, offset, nothing = sequence(
            lengths_ptr, row_block * (ROWS // GRAIN), PACKED
        )
        row_block = row_block // (ROWS // GRAIN)
    rows = row_block * ROWS + here
    keys, first_key, run_start, run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    q = load_rows(
        q_ptr + wide(q_at) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(k_at) * k_item + wide(head // group) * k_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    first, last = row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, queries) - 1
    begin, end = visible_range(first, last, offset, first_key, keys, left, right, CAUSAL, WIDE)
    inner, outer = whole_blocks(
        row_block, offset, queries, run_start, run_stop, left, right, CAUSAL, ROWS, WIDE
    )
    inner = tl.minimum(tl.maximum(inner, begin), end)
    outer = tl.minimum(tl.maximum(outer, inner), end)
    tops_here = tops_ptr + wide(slot) * key_blocks * ROWS
    tops_here = tops_here + (here // GRAIN) * (key_blocks * GRAIN) + here % GRAIN
    top = tl.full([ROWS, WIDE // COLUMNS], nothing, tl.float32)
    top = _keep_tops(
        top, q, k_here, k_row, rows, scale, keys, size, queries, offset, left, right,
        seen_here, seen_row, seen_column, inner, outer, tops_here, key_blocks, begin, inner,
        CAUSAL, MASK, True, ROWS, GRAIN, WIDE, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    top = _keep_tops(
        top, q, k_here, k_row, rows, scale, keys, size, queries, offset, left, right,
        seen_here, seen_row, seen_column, inner, outer, tops_here, key_blocks, inner, outer,
        CAUSAL, MASK, False, ROWS, GRAIN, WIDE, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    top = _keep_tops(
        top, q, k_here, k_row, rows, scale, keys, size, queries, offset, left, right,
        seen_here, seen_row, seen_column, inner, outer, tops_here, key_blocks, outer, end,
        CAUSAL, MASK, True, ROWS, GRAIN, WIDE, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    row = numbers_of(item_head, q_at, head, heads, queries, PACKED) + rows
    tl.store(top_ptr + row, maximum(top, 1), mask=rows < queries)
