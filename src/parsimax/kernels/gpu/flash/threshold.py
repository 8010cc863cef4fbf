"""The threshold of every query, and which blocks of keys lie above it.

A program reads the keys once and keeps the largest score of every query in every block. On these
few numbers it solves for a threshold, which lies below the true one, since less mass is there. Only
the blocks that reach above it can hold support, and only those are read again, two or three times,
until the threshold stands. The largest scores of the blocks tell then which of them are live.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.newton import (
    ALWAYS,
    NEAR_ONE,
    NEVER,
    POWER,
    TRIES,
    lowest,
    move,
    newton,
    relative,
    start,
    terms,
)
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import maximum

from .blocks import hide_at_edges, load_rows, product, visible_range, whole_blocks, wide
from .weights import STEEP, steep

_HALVINGS = tl.constexpr(26)
_ROUGHLY = tl.constexpr(1e-2)  # surplus of the largest scores, whose threshold is a start
_ENOUGH = tl.constexpr(2e-3)  # surplus at which one more step is the last: it leaves its square


@triton.jit
def _block_scores(
    q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(rows, COLUMNS) of one block of keys; hidden ones are -inf.

    If not EDGE, the block is one of those from ``inner`` to ``outer``, of which all is seen.
    """
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    k = load_rows(k_ptr, columns, k_row, keys, size, WHOLE, SIZE)
    s = product(q, tl.trans(k)) * scale
    if EDGE or MASK > 0:
        s = hide_at_edges(
            s, block, inner, outer, rows, columns, offset, queries, keys, left, right,
            seen_ptr, seen_row, seen_column, CAUSAL, MASK,
        )  # fmt: skip
    return s


@triton.jit
def _keep_tops(
    top, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, begin, end,
    EDGE: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The largest scores of blocks from ``begin`` to ``end`` into memory; the largest of all."""
    here = tl.arange(0, ROWS)
    for block in range(begin, end):
        s = _block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, EDGE, CAUSAL, MASK, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        largest = maximum(s, 1)
        tl.store(tops_ptr + block * ROWS + here, largest)
        top = tl.maximum(top, largest, propagate_nan=tl.PropagateNan.ALL)
    return top


@triton.jit
def _load_tops(tops_ptr, first, end, ROWS: tl.constexpr, MANY: tl.constexpr):
    """(rows, MANY) largest scores of blocks from ``first`` on, -inf from ``end`` on."""
    blocks = first + tl.arange(0, MANY)
    offsets = blocks[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    return tl.load(tops_ptr + offsets, mask=(blocks < end)[None, :], other=-float("inf"))


@triton.jit
def _solve_tops(
    tops_ptr, begin, end, x, top, good, beta, gamma, one,
    KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals = tl.zeros([ROWS], tl.float32)
        slopes = tl.zeros([ROWS], tl.float32)
        for first in range(begin, end, MANY):
            y = relative(_load_tops(tops_ptr, first, end, ROWS, MANY), top[:, None], KIND)
            q, slope = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
            totals += tl.sum(q, 1)
            slopes += tl.sum(slope, 1)
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = move(x, step, one * beta, KIND, NEAR)
        # the last step is not taken: it might go above the true threshold by a rounding
        done = done | ~(surplus > _ROUGHLY) | (moved == x)
        x = tl.where(done, x, moved)
        active = tl.max(tl.where(done, 0, 1), 0)
    return x


@triton.jit
def _list_above(
    tops_ptr, begin, end, low, good, list_ptr,
    ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Write the blocks with a score above ``low`` in any row, in order; how many there are."""
    count = 0
    for first in range(begin, end, MANY):
        tops = _load_tops(tops_ptr, first, end, ROWS, MANY)
        above = (tops > low[:, None]) & good[:, None]
        any_row = tl.max(tl.where(above, 1, 0), 0)
        place = count + tl.cumsum(any_row, 0) - any_row
        tl.store(list_ptr + place, first + tl.arange(0, MANY), mask=any_row > 0)
        count += tl.sum(any_row, 0)
    return count


@triton.jit
def _sweep(
    x, top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(mass up to a factor, minus its derivative) over the listed blocks."""
    totals = tl.zeros([ROWS], tl.float32)
    slopes = tl.zeros([ROWS], tl.float32)
    for index in range(count):
        block = tl.load(list_ptr + index)
        s = _block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, True, CAUSAL, MASK, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        y = relative(s, top[:, None], KIND)
        share, slope = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
        totals += tl.sum(share, 1)
        slopes += tl.sum(slope, 1)
    return totals, slopes


@triton.jit
def _solve(
    top, good, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, list_ptr, begin, end,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """(x, the score at and below which nothing has weight) of every row."""
    one = tl.zeros([ROWS], tl.float32) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    x = start(one * beta, one, KIND, NEAR)
    x = _solve_tops(
        tops_ptr, begin, end, x, top, good, beta, gamma, one, KIND, NEAR, ROWS, MANY
    )  # fmt: skip
    low = _unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
    count = _list_above(tops_ptr, begin, end, low, good, list_ptr, ROWS, MANY)
    tl.debug_barrier()
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals, slopes = _sweep(
            x, top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left,
            right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
            CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = move(x, step, one * beta, KIND, NEAR)
        arrived = ~(surplus > _ENOUGH) | (moved == x)
        x = tl.where(done, x, moved)
        done = done | arrived
        active = tl.max(tl.where(done, 0, 1), 0)
    return x, _unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)


@triton.jit
def _halve(
    top, good, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, list_ptr, begin, end,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """As :func:`_solve` above alpha = 2, where Newton has no slope to hold on to: by halving.

    The unknown is the largest weight; the fewer scores, the larger it must be.
    """
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    low = tl.zeros([ROWS], tl.float32)
    high = low + 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        totals = tl.zeros([ROWS], tl.float32)
        for first in range(begin, end, MANY):
            y = _load_tops(tops_ptr, first, end, ROWS, MANY) - top[:, None]
            share, _u = steep(y, middle[:, None], beta, gamma)
            totals += tl.sum(share, 1)
        enough = totals >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    count = _list_above(tops_ptr, begin, end, top - high * gamma, good, list_ptr, ROWS, MANY)
    tl.debug_barrier()
    low = tl.zeros([ROWS], tl.float32)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        totals = tl.zeros([ROWS], tl.float32)
        for index in range(count):
            s = _block_scores(
                q, k_ptr, k_row, tl.load(list_ptr + index), rows, scale, keys, size, queries,
                offset, left, right, seen_ptr, seen_row, seen_column, inner, outer,
                True, CAUSAL, MASK, COLUMNS, WHOLE, SIZE,
            )  # fmt: skip
            share, _u = steep(s - top[:, None], middle[:, None], beta, gamma)
            totals += tl.sum(share, 1)
        enough = totals >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high, top - high * gamma


@triton.jit
def _unscaled(low, top, KIND: tl.constexpr):
    """From a place among :func:`relative` scores to one among scores."""
    if KIND == 2:  # ENTMAX15
        return 2.0 * low + top
    else:
        return low + top


@quick
@triton.jit(do_not_specialize=["queries", "keys", "tiles"])
def threshold_kernel(
    q_ptr, k_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, live_ptr, scratch_ptr,
    scale, value, heads, group, queries, keys, size, tiles, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """Tiles one after the other, those with most keys first; each program has its own scratch."""
    slot = tl.program_id(0)
    programs = tl.num_programs(0)
    tops_ptr = scratch_ptr + wide(slot) * key_blocks * (ROWS + 1)
    list_ptr = (tops_ptr + wide(key_blocks) * ROWS).to(tl.pointer_type(tl.int32))
    for tile in range(slot, tiles, programs):
        item_head = tile % (tiles // row_blocks)
        row_block = row_blocks - 1 - tile // (tiles // row_blocks)
        item, head = item_head // heads, item_head % heads
        rows = row_block * ROWS + tl.arange(0, ROWS)
        many = keys
        if LENGTHS:
            many = tl.minimum(tl.load(lengths_ptr + item), keys)
        q = load_rows(
            q_ptr + wide(item) * q_item + wide(head) * q_head,
            rows, q_row, queries, size, WHOLE, SIZE,
        )  # fmt: skip
        k_here = k_ptr + wide(item) * k_item + wide(head // group) * k_head
        seen_here = seen_ptr
        if MASK > 0:
            seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
        first, last = row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, queries) - 1
        begin, end = visible_range(first, last, offset, many, left, right, CAUSAL, COLUMNS)
        inner, outer = whole_blocks(
            row_block, offset, queries, many, left, right, CAUSAL, ROWS, COLUMNS
        )
        inner = tl.minimum(tl.maximum(inner, begin), end)
        outer = tl.minimum(tl.maximum(outer, inner), end)
        top = tl.full([ROWS], -float("inf"), tl.float32)
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, begin, inner,
            True, CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, inner, outer,
            False, CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, outer, end,
            True, CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        tl.debug_barrier()
        good = (top > -float("inf")) & (top < float("inf"))
        largest = tl.where(good, top, 0.0)
        one = tl.zeros([ROWS], tl.float32) + 1.0
        beta = value
        if TENSOR:
            beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
            fits = (beta >= 0.0) & (beta < 1e30)
            good = good & (tl.where(fits, one, 0.0) > 0.0)
        if TENSOR:
            if beta < NEAR_ONE:
                x, low = _solve(
                    largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer, tops_ptr,
                    list_ptr,
                    begin, end, CAUSAL, MASK, POWER, ALWAYS, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
            elif beta > 1.0:
                x, low = _halve(
                    largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer, tops_ptr,
                    list_ptr,
                    begin, end, CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
            else:
                x, low = _solve(
                    largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer, tops_ptr,
                    list_ptr,
                    begin, end, CAUSAL, MASK, POWER, NEVER, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
        elif KIND == STEEP:
            x, low = _halve(
                largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                offset, left, right, seen_here, seen_row, seen_column, inner, outer, tops_ptr,
                    list_ptr,
                begin, end, CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE, MANY,
            )  # fmt: skip
        else:
            x, low = _solve(
                largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                offset, left, right, seen_here, seen_row, seen_column, inner, outer, tops_ptr,
                    list_ptr,
                begin, end, CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, WHOLE, SIZE, MANY,
            )  # fmt: skip
        row = wide(item_head) * queries + rows
        tl.store(top_ptr + row, top, mask=rows < queries)
        tl.store(x_ptr + row, x, mask=rows < queries)
        # which blocks are live, for this tile
        live_here = live_ptr + (wide(item_head) * row_blocks + row_block) * key_blocks
        for chunk in range(0, key_blocks, MANY):
            blocks = chunk + tl.arange(0, MANY)
            tops = _load_tops(tops_ptr, chunk, end, ROWS, MANY)
            seen_blocks = (blocks >= begin) & (blocks < end)
            above = (tops > low[:, None]) & good[:, None] & seen_blocks[None, :]
            # a row that is no row of numbers must show it
            broken = ~good & (top != -float("inf")) & (rows < queries)
            alive = tl.max(tl.where(above | (broken[:, None] & seen_blocks[None, :]), 1, 0), 0)
            tl.store(live_here + blocks, alive.to(tl.int8), mask=blocks < key_blocks)
        tl.debug_barrier()
