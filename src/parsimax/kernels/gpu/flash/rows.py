"""What a program that works on queries of one block begins with: where all it needs lies."""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import block_of_head, load_rows, numbers_of, rows_of, unit, whole_blocks, wide
from .sequences import sequence
from .spans import span_of
from .weights import LEAST, line


@triton.jit
def block_in_turn(row_blocks):
    """As :func:`.blocks.block_of_head`; those with many keys come first where it is causal."""
    block, item_head = block_of_head(row_blocks)
    return row_blocks - 1 - block, item_head


@triton.jit
def rows_of_program(
    place, item_head, part, q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr,
    scale, value, heads, group, queries, keys, size, row_blocks, offset, left, right,
    q_item, q_head, q_row, k_item, k_head, v_item, v_head, seen_item, seen_head,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """Where, how many, scores, what is read, and which blocks are seen whole; a tuple of each.

    A program has PART of the ROWS of a block, and so many of such parts come before.
    """
    item, head = item_head // heads, item_head % heads
    row_block, q_at, k_at, first_row = place, item, item, wide(item) * queries
    if PACKED:
        row_block, q_at, queries, k_at, _all, keys, offset, _low = sequence(
            lengths_ptr, place, PACKED
        )
        first_row = q_at
    rows = row_block * ROWS + part * PART + tl.arange(0, PART)
    start = numbers_of(item_head, q_at, head, heads, queries, PACKED)
    first, step = rows_of(start, first_row, head, heads, BY_ROWS)
    keys, _first_key, run_start, run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
    q = load_rows(
        q_ptr + wide(q_at) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(k_at) * k_item + wide(head // group) * k_head
    v_here = v_ptr + wide(k_at) * v_item + wide(head // group) * v_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    row = start + rows
    top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
    x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
    good = (top > LEAST) & (top < float("inf"))
    a, b = line(tl.where(good, top, 0.0), x, unit(scale, MASK), beta, KIND, NEAR, ROUGH)
    # a row that is no row of numbers must show it
    fill = tl.where(good | (top <= LEAST), 0.0, float("nan"))
    inner, outer = whole_blocks(
        row_block, offset, queries, run_start, run_stop, left, right, CAUSAL, ROWS, COLUMNS
    )
    return (
        (rows, row, first, step, wide(item_head) * row_blocks + place),
        (queries, keys, offset),
        (beta, a, b, x, fill),
        (q, k_here, v_here, seen_here),
        (inner, outer),
    )
