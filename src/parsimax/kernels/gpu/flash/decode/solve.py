"""The threshold of every query, from the scores that were written and the largest of every block.

As for many queries, the largest alone give a threshold that lies below the true one; only blocks
that reach above it are read, until the threshold stands.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.flash.threshold import _HALVINGS, _ROUGHLY, _unscaled
from parsimax.kernels.gpu.flash.weights import ANY, STEEP, line, shares
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
from parsimax.kernels.gpu.reductions import larger, maximum, sum2

from .lists import list_above
from .places import item_keys, seen_blocks


@triton.jit
def _tops(tops_ptr, first, end, MANY: tl.constexpr):
    """(1, MANY) largest scores of blocks, -inf from ``end`` on."""
    blocks = first + tl.arange(0, MANY)[None, :]
    return tl.load(tops_ptr + blocks, mask=blocks < end, other=-float("inf"))


@triton.jit
def _sums(
    x, top, beta, gamma, scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr, LISTED: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """(mass up to a factor, minus its derivative) of places [begin, end).

    These are largest scores of blocks, MANY at a time; or, if LISTED, all scores of listed blocks,
    FEW at a time. Sums are taken at the end: threads do not have to wait for each other before.
    """
    a, b = line(top, x, 1.0, beta, KIND, NEAR)
    totals = tl.zeros([FEW if LISTED else 1, COLUMNS if LISTED else MANY], tl.float32)
    slopes = tl.zeros([FEW if LISTED else 1, COLUMNS if LISTED else MANY], tl.float32)
    for first in range(begin, end, FEW if LISTED else MANY):
        if LISTED:
            places = first + tl.arange(0, FEW)
            inside = places < end
            block = tl.load(list_ptr + places, mask=inside, other=0)
            offsets = block[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
            s = tl.load(scores_ptr + offsets, mask=inside[:, None], other=-float("inf"))
        else:
            s = _tops(tops_ptr, first, end, MANY)
        p, u, _log = shares(tl.fma(s, a, b[:, None]), beta, gamma, KIND, NEAR)
        totals += p
        slopes += u
    total, slope = sum2(tl.sum(totals, 1), tl.sum(slopes, 1), 0)
    return tl.zeros([1], tl.float32) + total, tl.zeros([1], tl.float32) + slope


@triton.jit
def _list(low, good, tops_ptr, list_ptr, begin, end, MANY: tl.constexpr):
    low = tl.where(good, low, float("inf"))
    line_of_row = tl.zeros([1], tl.int64)
    return list_above(tops_ptr, line_of_row, low, list_ptr, begin, end, 0, 1, True, MANY)


@triton.jit
def _climb(
    x, top, good, beta, gamma, one, enough, scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr, LISTED: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Newton until the surplus of mass is no more than ``enough``.

    The last step is taken for all scores alone: on the largest of blocks it might go above the true
    threshold by a rounding.
    """
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals, slopes = _sums(
            x, top, beta, gamma, scores_ptr, tops_ptr, list_ptr, begin, end,
            KIND, NEAR, LISTED, FEW, COLUMNS, MANY,
        )  # fmt: skip
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = move(x, step, one * beta, KIND, NEAR)
        done = done | ~(surplus > enough) | (moved == x)
        if LISTED:
            x = moved
        else:
            x = tl.where(done, x, moved)
        active = tl.max(tl.where(done, 0, 1), 0)
    return x


@triton.jit
def _solve(
    top, good, beta, enough, scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """(x, the score at and below which nothing has weight) by Newton."""
    one = tl.zeros([1], tl.float32) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    x = start(one * beta, one, KIND, NEAR)
    x = _climb(
        x, top, good, beta, gamma, one, _ROUGHLY, scores_ptr, tops_ptr, list_ptr, begin, end,
        KIND, NEAR, False, FEW, COLUMNS, MANY,
    )  # fmt: skip
    low = _unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
    count = _list(low, good, tops_ptr, list_ptr, begin, end, MANY)
    x = _climb(
        x, top, good, beta, gamma, one, enough, scores_ptr, tops_ptr, list_ptr, 0, count,
        KIND, NEAR, True, FEW, COLUMNS, MANY,
    )  # fmt: skip
    return x, _unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)


@triton.jit
def _halvings(
    high, top, beta, gamma, scores_ptr, tops_ptr, list_ptr, begin, end,
    LISTED: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The largest weight, from above."""
    low = tl.zeros([1], tl.float32)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        totals, _slopes = _sums(
            middle, top, beta, gamma, scores_ptr, tops_ptr, list_ptr, begin, end,
            STEEP, NEVER, LISTED, FEW, COLUMNS, MANY,
        )  # fmt: skip
        enough = totals >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def _halve(
    top, good, beta, scores_ptr, tops_ptr, list_ptr, begin, end,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """As :func:`_solve` above alpha = 2, by halving; the unknown is the largest weight."""
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    high = _halvings(
        tl.zeros([1], tl.float32) + 1.0, top, beta, gamma, scores_ptr, tops_ptr, list_ptr,
        begin, end, False, FEW, COLUMNS, MANY,
    )  # fmt: skip
    count = _list(top - high * gamma, good, tops_ptr, list_ptr, begin, end, MANY)
    high = _halvings(
        high, top, beta, gamma, scores_ptr, tops_ptr, list_ptr, 0, count,
        True, FEW, COLUMNS, MANY,
    )  # fmt: skip
    return high, top - high * gamma


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "blocks"])
def solve_kernel(
    a_ptr, lengths_ptr, scores_ptr, tops_ptr, list_ptr, top_ptr, x_ptr, low_ptr,
    value, enough, heads, queries, capacity, blocks, left, right, lengths_step,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One query: its largest score, the unknown, and the score below which nothing has weight.

    The last is +inf for a row that sees nothing, or is no row of numbers.
    """
    row = tl.program_id(0)
    item, head = row // (heads * queries), row // queries % heads
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    tops_here = tops_ptr + wide(row) * blocks
    list_here = list_ptr + wide(row) * blocks
    scores_here = scores_ptr + wide(row) * blocks * COLUMNS
    tops = tl.full([1, MANY], -float("inf"), tl.float32)
    for first in range(begin, end, MANY):
        tops = larger(tops, _tops(tops_here, first, end, MANY))
    top = maximum(tops, 1)
    good = (top > -float("inf")) & (top < float("inf"))
    largest = tl.where(good, top, 0.0)
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
        good = good & (
            tl.where((beta >= 0.0) & (beta < 1e30), tl.full([1], 1.0, tl.float32), 0.0) > 0.0
        )
    if KIND == ANY:
        if beta < NEAR_ONE:
            x, low = _solve(
                largest, good, beta, enough, scores_here, tops_here, list_here, begin, end,
                POWER, ALWAYS, FEW, COLUMNS, MANY,
            )  # fmt: skip
        elif beta > 1.0:
            x, low = _halve(
                largest, good, beta, scores_here, tops_here, list_here, begin, end,
                FEW, COLUMNS, MANY,
            )  # fmt: skip
        else:
            x, low = _solve(
                largest, good, beta, enough, scores_here, tops_here, list_here, begin, end,
                POWER, NEVER, FEW, COLUMNS, MANY,
            )  # fmt: skip
    elif KIND == STEEP:
        x, low = _halve(
            largest, good, beta, scores_here, tops_here, list_here, begin, end, FEW, COLUMNS, MANY
        )  # fmt: skip
    else:
        x, low = _solve(
            largest, good, beta, enough, scores_here, tops_here, list_here, begin, end,
            KIND, NEAR, FEW, COLUMNS, MANY,
        )  # fmt: skip
    here = row + tl.arange(0, 1)
    tl.store(top_ptr + here, top)
    tl.store(x_ptr + here, x)
    tl.store(low_ptr + here, tl.where(good, low, float("inf")))
