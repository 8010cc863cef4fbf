"""The threshold of every query, and which blocks of keys lie above it.

A program reads the keys once and keeps the largest score of every query in every block.
On these few numbers it solves for a threshold, which lies below the true one, since less mass is
there. Only the blocks that reach above it can hold support, and only those are read again, once or
twice, until the threshold stands. The largest scores of the blocks then tell which are live.
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
    start,
)
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import maximum

from .blocks import (
    load_rows,
    numbers_of,
    product,
    tile_scores,
    unit,
    visible_range,
    whole_blocks,
    wide,
)
from .sequences import sequence
from .weights import STEEP, line, shares

_HALVINGS = tl.constexpr(26)
_ROUGHLY = tl.constexpr(1e-2)  # surplus of the largest scores, whose threshold is a start


@triton.jit
def _block_scores(
    q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EDGE: tl.constexpr,
    COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(rows, COLUMNS) of one block of keys; hidden ones are -inf."""
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    k = load_rows(k_ptr, columns, k_row, keys, size, WHOLE, SIZE)
    return tile_scores(
        product(q, tl.trans(k)), scale, block, inner, outer, rows[:, None], columns[None, :],
        offset, queries, keys, left, right, seen_ptr, seen_row, seen_column, CAUSAL, MASK, EDGE,
    )  # fmt: skip


@triton.jit
def _keep_tops(
    top, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, begin, end,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EDGE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The largest scores of blocks from ``begin`` to ``end`` into memory; the largest of all."""
    here = tl.arange(0, ROWS)
    for block in range(begin, end):
        s = _block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, CAUSAL, MASK, EDGE, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        largest = maximum(s, 1) * unit(scale, MASK)
        tl.store(tops_ptr + block * ROWS + here, largest)
        top = tl.maximum(top, largest, propagate_nan=tl.PropagateNan.ALL)
    return top


@triton.jit
def _load_tops(tops_ptr, first, begin, end, ROWS: tl.constexpr, MANY: tl.constexpr):
    """(rows, MANY) largest scores of blocks from ``first``, -inf but from ``begin`` to ``end``."""
    blocks = first + tl.arange(0, MANY)
    offsets = blocks[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (blocks >= begin) & (blocks < end)
    return tl.load(tops_ptr + offsets, mask=inside[None, :], other=-float("inf"))


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
        a, b = line(top, x, 1.0, beta, KIND, NEAR)
        for first in range(begin, end, MANY):
            v = tl.fma(_load_tops(tops_ptr, first, begin, end, ROWS, MANY), a, b[:, None])
            p, u, _log = shares(v, beta, gamma, KIND, NEAR)
            totals += tl.sum(p, 1)
            slopes += tl.sum(u, 1)
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = move(x, step, one * beta, KIND, NEAR)
        # the last step is not taken: it might go above the true threshold by a rounding
        done = done | ~(surplus > _ROUGHLY) | (moved == x)
        x = tl.where(done, x, moved)
        active = tl.max(tl.where(done, 0, 1), 0)
    return x


@triton.jit
def _reaching(
    tops_ptr, first, begin, end, low, good,
    ROWS: tl.constexpr, GRAIN: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """(ROWS / GRAIN, MANY), 1 where some of GRAIN rows has a score above ``low``, or 0."""
    tops = _load_tops(tops_ptr, first, begin, end, ROWS, MANY)
    above = tl.where((tops > low[:, None]) & good[:, None], 1, 0)
    return tl.max(tl.reshape(above, [ROWS // GRAIN, GRAIN, MANY]), 1)


@triton.jit
def _list_above(
    tops_ptr, begin, end, low, good, list_ptr, ROWS: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    """Write the blocks with a score above ``low`` in any row, in order; how many there are."""
    count = 0
    for first in range(begin, end, MANY):
        found = tl.max(_reaching(tops_ptr, first, begin, end, low, good, ROWS, ROWS, MANY), 0)
        place = count + tl.cumsum(found, 0) - found
        tl.store(list_ptr + place, first + tl.arange(0, MANY), mask=found > 0)
        count += tl.sum(found, 0)
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
    a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
    for index in range(count):
        block = tl.load(list_ptr + index)
        s = _block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, CAUSAL, MASK, True, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        p, u, _log = shares(tl.fma(s, a, b[:, None]), beta, gamma, KIND, NEAR)
        totals += tl.sum(p, 1)
        slopes += tl.sum(u, 1)
    return totals, slopes


@triton.jit
def _solve(
    top, good, beta, enough, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
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
        arrived = ~(surplus > enough) | (moved == x)
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
        a, b = line(top, middle, 1.0, beta, STEEP, NEVER)
        totals = tl.zeros([ROWS], tl.float32)
        for first in range(begin, end, MANY):
            v = tl.fma(_load_tops(tops_ptr, first, begin, end, ROWS, MANY), a, b[:, None])
            p, _u, _log = shares(v, beta, gamma, STEEP, NEVER)
            totals += tl.sum(p, 1)
        enough = totals >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    count = _list_above(tops_ptr, begin, end, top - high * gamma, good, list_ptr, ROWS, MANY)
    tl.debug_barrier()
    low = tl.zeros([ROWS], tl.float32)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        totals, _slopes = _sweep(
            middle, top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
            left, right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
            CAUSAL, MASK, STEEP, NEVER, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
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
    scale, value, enough, heads, group, queries, keys, size, tiles, tall_blocks, row_blocks,
    key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    ROWS: tl.constexpr, GRAIN: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Tiles one after the other, head by head; each program has its own scratch.

    Programs that run at the same time read the same keys, which stay in the cache.
    """
    slot = tl.program_id(0)
    programs = tl.num_programs(0)
    tops_ptr = scratch_ptr + wide(slot) * key_blocks * (ROWS + 1)
    list_ptr = (tops_ptr + wide(key_blocks) * ROWS).to(tl.pointer_type(tl.int32))
    for tile in range(slot, tiles, programs):
        item_head = tile // tall_blocks
        place = tall_blocks - 1 - tile % tall_blocks
        item, head = item_head // heads, item_head % heads
        row_block, q_at, k_at, many, nothing = place, item, item, keys, -float("inf")
        if PACKED:
            row_block, q_at, queries, k_at, _all, many, offset, nothing = sequence(
                lengths_ptr, place * (ROWS // GRAIN), PACKED
            )
            row_block = row_block // (ROWS // GRAIN)
        rows = row_block * ROWS + tl.arange(0, ROWS)
        if LENGTHS:
            many = tl.minimum(tl.load(lengths_ptr + item), keys)
        q = load_rows(
            q_ptr + wide(q_at) * q_item + wide(head) * q_head,
            rows, q_row, queries, size, WHOLE, SIZE,
        )  # fmt: skip
        k_here = k_ptr + wide(k_at) * k_item + wide(head // group) * k_head
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
        top = tl.full([ROWS], nothing, tl.float32)
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, begin, inner,
            CAUSAL, MASK, True, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, inner, outer,
            CAUSAL, MASK, False, ROWS, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        top = _keep_tops(
            top, q, k_here, k_row, rows, scale, many, size, queries, offset, left, right,
            seen_here, seen_row, seen_column, inner, outer, tops_ptr, outer, end,
            CAUSAL, MASK, True, ROWS, COLUMNS, WHOLE, SIZE,
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
                    largest, good, beta, enough, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer,
                    tops_ptr, list_ptr, begin, end,
                    CAUSAL, MASK, POWER, ALWAYS, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
            elif beta > 1.0:
                x, low = _halve(
                    largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer,
                    tops_ptr, list_ptr, begin, end,
                    CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
            else:
                x, low = _solve(
                    largest, good, beta, enough, q, k_here, k_row, rows, scale, many, size, queries,
                    offset, left, right, seen_here, seen_row, seen_column, inner, outer,
                    tops_ptr, list_ptr, begin, end,
                    CAUSAL, MASK, POWER, NEVER, ROWS, COLUMNS, WHOLE, SIZE, MANY,
                )  # fmt: skip
        elif KIND == STEEP:
            x, low = _halve(
                largest, good, beta, q, k_here, k_row, rows, scale, many, size, queries,
                offset, left, right, seen_here, seen_row, seen_column, inner, outer,
                tops_ptr, list_ptr, begin, end,
                    CAUSAL, MASK, ROWS, COLUMNS, WHOLE, SIZE, MANY,
            )  # fmt: skip
        else:
            x, low = _solve(
                largest, good, beta, enough, q, k_here, k_row, rows, scale, many, size, queries,
                offset, left, right, seen_here, seen_row, seen_column, inner, outer,
                tops_ptr, list_ptr, begin, end,
                    CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, WHOLE, SIZE, MANY,
            )  # fmt: skip
        row = numbers_of(item_head, q_at, head, heads, queries, PACKED) + rows
        tl.store(top_ptr + row, top, mask=rows < queries)
        tl.store(x_ptr + row, x, mask=rows < queries)
        # which blocks are live, for each of the smaller blocks of queries that others work on
        grains = place * (ROWS // GRAIN) + tl.arange(0, ROWS // GRAIN)
        lines = (wide(item_head) * row_blocks + grains) * key_blocks
        # a row that is no row of numbers must show it
        broken = ~good & (top != -float("inf")) & (rows < queries)
        spoilt = tl.max(tl.reshape(tl.where(broken, 1, 0), [ROWS // GRAIN, GRAIN]), 1)
        for chunk in range(0, key_blocks, MANY):
            blocks = chunk + tl.arange(0, MANY)
            found = _reaching(tops_ptr, chunk, begin, end, low, good, ROWS, GRAIN, MANY)
            seen_blocks = (blocks >= begin) & (blocks < end)
            alive = tl.where(seen_blocks[None, :], tl.maximum(found, spoilt[:, None]), 0)
            tl.store(
                live_ptr + lines[:, None] + blocks[None, :], alive.to(tl.int8),
                mask=(grains < row_blocks)[:, None] & (blocks < key_blocks)[None, :],
            )  # fmt: skip
        tl.debug_barrier()
