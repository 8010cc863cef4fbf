"""What is counted where thresholds are known: keys with weight, keys that are seen, and blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.newton import ALWAYS, ENTMAX15, NEAR_ONE, SPARSEMAX
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick

from .blocks import (
    block_of_head,
    load_rows,
    tile_scores,
    unit,
    visible_range,
    whole_blocks,
    wide,
)
from .spans import span_of
from .weights import ANY, LEAST, line


@triton.jit
def _tau(top, x, beta, KIND: tl.constexpr, NEAR: tl.constexpr):
    """The paper's: p^(alpha - 1) = (alpha - 1) score - tau."""
    if KIND == ENTMAX15:
        return x + 0.5 * top
    elif KIND == SPARSEMAX:
        return x + top
    else:
        near = tl.fma(beta, x + top, -1.0)
        far = tl.fma(beta, top, -x)
        if NEAR == ALWAYS:
            return near
        elif KIND == ANY:
            return tl.where(beta < NEAR_ONE, near, far)
        else:
            return far


@triton.jit
def _root(v, beta, KIND: tl.constexpr, NEAR: tl.constexpr):
    """Above zero where p is: p itself may be too small a number.

    It is p^(alpha - 1) for every kind, of what :func:`line` makes of a score.
    """
    if NEAR == ALWAYS:
        return tl.fma(beta, v, 1.0)
    elif KIND == ANY:
        return tl.where(beta < NEAR_ONE, tl.fma(beta, v, 1.0), v)
    else:
        return v


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def count_kernel(
    q_ptr, k_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, live_ptr,
    tau_ptr, low_ptr, support_ptr, visible_ptr, touched_ptr,
    scale, value, heads, group, queries, keys, size, row_blocks, key_blocks, map_rows, map_columns,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    SIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One block of SIDE queries, and its blocks of SIDE keys.

    Of each block it is written whether anything in it is seen (1) and has weight (2). The map of
    live blocks has (map_rows, map_columns) of ROWS by COLUMNS, which hold whole blocks of SIDE.
    """
    row_block, item_head = block_of_head(row_blocks)
    item, head = item_head // heads, item_head % heads
    rows = row_block * SIDE + tl.arange(0, SIDE)
    row = wide(item_head) * queries + rows
    keys, first_key, run_start, run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
    q = load_rows(
        q_ptr + wide(item) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(item) * k_item + wide(head // group) * k_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
    x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
    good = (top > LEAST) & (top < float("inf"))
    if TENSOR:
        good = good & (tl.where((beta >= 0.0) & (beta < 1e30), top, float("inf")) == top)
    largest = tl.where(good, top, 0.0)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    a, b = line(largest, x, unit(scale, MASK), beta, KIND, NEAR)
    first, last = row_block * SIDE, tl.minimum(row_block * SIDE + SIDE, queries) - 1
    begin, end = visible_range(first, last, offset, first_key, keys, left, right, CAUSAL, SIDE)
    inner, outer = whole_blocks(
        row_block, offset, queries, run_start, run_stop, left, right, CAUSAL, SIDE, SIDE
    )  # fmt: skip
    live_line = live_ptr + (wide(item_head) * map_rows + row_block * SIDE // ROWS) * map_columns
    touched_line = touched_ptr + (wide(item_head) * row_blocks + row_block) * key_blocks
    support = tl.zeros([SIDE], tl.int32)
    visible = tl.zeros([SIDE], tl.int32)
    for block in range(begin, end):
        columns = block * SIDE + tl.arange(0, SIDE)
        alive = tl.load(live_line + block * SIDE // COLUMNS) > 0
        s = tl.zeros([SIDE, SIDE], tl.float32)
        # numbers that are added may hide a key, and so may be -inf in a dead block, too
        if alive:
            k = load_rows(k_here, columns, k_row, keys, size, WHOLE, SIZE)
            s = product(q, tl.trans(k))
        s = tile_scores(
            s, scale, block, inner, outer, rows[:, None], columns[None, :],
            offset, queries, keys, left, right, seen_here, seen_row, seen_column, CAUSAL, MASK,
        )  # fmt: skip
        seen = tl.where(s != -float("inf"), 1, 0)
        root = _root(tl.fma(s, a, b[:, None]), beta, KIND, NEAR)
        weighty = tl.where((root > 0.0) & good[:, None] & (seen > 0) & alive, 1, 0)
        visible += tl.sum(seen, 1)
        support += tl.sum(weighty, 1)
        state = tl.max(tl.max(seen, 1), 0) + 2 * tl.max(tl.max(weighty, 1), 0)
        tl.store(touched_line + block, state.to(tl.int8))
    tau = _tau(largest, x, beta, KIND, NEAR)
    low = tl.where(beta > 0.0, tau * gamma, -float("inf"))
    nothing = tl.where(top <= LEAST, float("inf"), float("nan"))
    inside = rows < queries
    tl.store(tau_ptr + row, tl.where(good, tau, nothing), mask=inside)
    tl.store(low_ptr + row, tl.where(good, low, nothing), mask=inside)
    tl.store(support_ptr + row, support, mask=inside)
    tl.store(visible_ptr + row, visible, mask=inside)
