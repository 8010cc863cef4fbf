"""The threshold of every query, from the scores that were written and the largest of every block.

As for many queries, the largest alone give a threshold that lies below the true one, and only
blocks that reach above it are read. As many of them as a program can hold are read once, and Newton
goes on in registers. If there are more, those are a sample, and from the threshold that it gives it
takes one or two sweeps over all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.flash.threshold import HALVINGS, ROUGHLY, unscaled
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

from .lists import first_aligned, list_above, load_tops
from .places import item_keys, seen_blocks

_BELOW = tl.constexpr(1e-5)  # lack of mass that is a rounding

# What is added up
TOPS = tl.constexpr(0)  # largest scores of blocks: those that are held, and the rest of them
HELD = tl.constexpr(1)  # scores that are held
LISTED = tl.constexpr(2)  # all scores of the listed blocks


@triton.jit
def _scores(scores_ptr, list_ptr, places, end, COLUMNS: tl.constexpr):
    """(len(places) * COLUMNS,) scores of listed blocks, -inf from ``end`` on."""
    inside = places < end
    block = tl.load(list_ptr + places, mask=inside, other=0)
    offsets = block[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    s = tl.load(scores_ptr + offsets, mask=inside[:, None], other=-float("inf"))
    return tl.reshape(s, [s.numel])


@triton.jit
def _sums(
    x, top, beta, gamma, held, weight, scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr, WHAT: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """(mass up to a factor, minus its derivative), MANY largest scores or FEW blocks at a time.

    [begin, end) are the blocks of a row or, if LISTED, places in its list.
    Sums are taken at the end: threads do not have to wait for each other before.
    """
    a, b = line(top, x, 1.0, beta, KIND, NEAR)
    if WHAT == LISTED:
        totals = tl.zeros([FEW * COLUMNS], tl.float32)
        slopes = tl.zeros([FEW * COLUMNS], tl.float32)
    else:
        totals, slopes = shares(tl.fma(held, a, b), beta, gamma, KIND, NEAR)
    if WHAT != HELD:
        rest = 0 if WHAT == LISTED else first_aligned(begin) + MANY
        for first in range(rest, end, FEW if WHAT == LISTED else MANY):
            if WHAT == LISTED:
                places = first + tl.arange(0, FEW)
                s = _scores(scores_ptr, list_ptr, places, end, COLUMNS)
            else:
                s = load_tops(tops_ptr, first + tl.arange(0, MANY), begin, end)
            p, u = shares(tl.fma(s, a, b), beta, gamma, KIND, NEAR)
            totals += p
            slopes += u
    total, slope = sum2(totals, slopes, 0)
    one = tl.zeros([1], tl.float32) + weight
    return one * total, one * slope


@triton.jit
def _list(low, good, tops_ptr, list_ptr, begin, end, MANY: tl.constexpr):
    low = tl.where(good, low, float("inf"))
    line_of_row = tl.zeros([1], tl.int64)
    return list_above(tops_ptr, line_of_row, low, list_ptr, begin, end, 0, 1, True, MANY)


@triton.jit
def _held(scores_ptr, list_ptr, count, HOLD: tl.constexpr, COLUMNS: tl.constexpr):
    """(scores of all listed blocks or of every so many of them, how many each of them stands for).

    A list that fits is held as it is.
    """
    # a quotient by the GPU might not be 1 where it should be, a product with a power of two is
    stands_for = tl.maximum(count, HOLD).to(tl.float32) * (1.0 / HOLD)
    places = (tl.arange(0, HOLD).to(tl.float32) * stands_for).to(tl.int32)
    return _scores(scores_ptr, list_ptr, places, count, COLUMNS), stands_for


@triton.jit
def _not_below(x, floor, KIND: tl.constexpr, NEAR: tl.constexpr):
    """The higher of two thresholds; ``floor`` if x is not a number."""
    if KIND == POWER and NEAR != ALWAYS:
        return tl.minimum(x, floor)
    else:
        return tl.maximum(x, floor)


@triton.jit
def _climb(
    x, floor, top, active, beta, gamma, one, enough, held, weight,
    scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr, WHAT: tl.constexpr,
    FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Newton until the surplus of mass is no more than ``enough``, from below or from above.

    The last step is not taken for the largest of blocks: it might go above the true threshold by a
    rounding, and no step goes below ``floor`` again.
    """
    tries = 0
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals, slopes = _sums(
            x, top, beta, gamma, held, weight, scores_ptr, tops_ptr, list_ptr, begin, end,
            KIND, NEAR, WHAT, FEW, COLUMNS, MANY,
        )  # fmt: skip
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = _not_below(move(x, step, one * beta, KIND, NEAR), floor, KIND, NEAR)
        # a step down may open many keys that are almost equal, so it is not the last
        done = ~((surplus > enough) | (surplus < -_BELOW)) | (moved == x)
        if WHAT == TOPS:
            x = tl.where(done, x, moved)
        else:
            x = moved
        active = tl.max(tl.where(done, 0, 1), 0)
    return x


@triton.jit
def _solve(
    top, tops, good, beta, enough,
    scores_ptr, tops_ptr, list_ptr, begin, end,
    KIND: tl.constexpr, NEAR: tl.constexpr,
    HOLD: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """(x, the score at and below which nothing has weight) by Newton."""
    one = tl.zeros([1], tl.float32) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    active = tl.max(tl.where(good, 1, 0), 0)
    x = start(one * beta, one, KIND, NEAR)
    x = _climb(
        x, x, top, active, beta, gamma, one, ROUGHLY, tops, 1.0,
        scores_ptr, tops_ptr, list_ptr, begin, end,
        KIND, NEAR, TOPS, FEW, COLUMNS, MANY,
    )  # fmt: skip
    low = unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
    count = _list(low, good, tops_ptr, list_ptr, begin, end, MANY)
    held, weight = _held(scores_ptr, list_ptr, count, HOLD, COLUMNS)
    floor = x
    x = _climb(
        x, floor, top, active, beta, gamma, one, enough, held, weight,
        scores_ptr, tops_ptr, list_ptr, 0, 0,
        KIND, NEAR, HELD, FEW, COLUMNS, MANY,
    )  # fmt: skip
    active = tl.where(count > HOLD, active, 0)
    x = _climb(
        x, floor, top, active, beta, gamma, one, enough, held, 1.0,
        scores_ptr, tops_ptr, list_ptr, 0, count,
        KIND, NEAR, LISTED, FEW, COLUMNS, MANY,
    )  # fmt: skip
    return x, unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)


@triton.jit
def _halvings(
    high, top, beta, gamma, held, scores_ptr, tops_ptr, list_ptr, begin, end,
    WHAT: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The largest weight, from above."""
    low = tl.zeros([1], tl.float32)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        totals, _slopes = _sums(
            middle, top, beta, gamma, held, 1.0, scores_ptr, tops_ptr, list_ptr, begin, end,
            STEEP, NEVER, WHAT, FEW, COLUMNS, MANY,
        )  # fmt: skip
        enough = totals >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def _halve(
    top, tops, good, beta, scores_ptr, tops_ptr, list_ptr, begin, end,
    HOLD: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """As :func:`_solve` above alpha = 2, by halving; the unknown is the largest weight."""
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    high = _halvings(
        tl.zeros([1], tl.float32) + 1.0, top, beta, gamma, tops, scores_ptr, tops_ptr, list_ptr,
        begin, end, TOPS, FEW, COLUMNS, MANY,
    )  # fmt: skip
    count = _list(top - high * gamma, good, tops_ptr, list_ptr, begin, end, MANY)
    if count <= HOLD:
        held, _weight = _held(scores_ptr, list_ptr, count, HOLD, COLUMNS)
        high = _halvings(
            high, top, beta, gamma, held, scores_ptr, tops_ptr, list_ptr, 0, 0,
            HELD, FEW, COLUMNS, MANY,
        )  # fmt: skip
    else:
        high = _halvings(
            high, top, beta, gamma, tops, scores_ptr, tops_ptr, list_ptr, 0, count,
            LISTED, FEW, COLUMNS, MANY,
        )  # fmt: skip
    return high, top - high * gamma


@quick
@triton.jit(do_not_specialize=["queries", "capacity"])
def solve_kernel(
    a_ptr, lengths_ptr, scores_ptr, tops_ptr, list_ptr, top_ptr, x_ptr, low_ptr,
    arrived_ptr, value, enough, heads, group, queries, capacity, blocks, left, right, lengths_step,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    HOLD: tl.constexpr, FEW: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One query: its largest score, the unknown, and the score below which nothing has weight.

    The last is +inf for a row that sees nothing, or is no row of numbers. Those who will read the
    values are counted from 0, in no more places than there are queries.
    """
    row = tl.program_id(0)
    item, head = row // (heads * group * queries), row // queries % (heads * group)
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    tops_here = tops_ptr + wide(row) * blocks
    list_here = list_ptr + wide(row) * blocks
    scores_here = scores_ptr + wide(row) * blocks * COLUMNS
    aligned = first_aligned(begin)
    tops = load_tops(tops_here, aligned + tl.arange(0, MANY), begin, end)
    most = tops
    for first in range(aligned + MANY, end, MANY):
        most = larger(most, load_tops(tops_here, first + tl.arange(0, MANY), begin, end))
    top = tl.zeros([1], tl.float32) + maximum(most, 0)
    good = (top > -float("inf")) & (top < float("inf"))
    largest = tl.where(good, top, 0.0)
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
        good = good & (
            tl.where((beta >= 0.0) & (beta < 1e30), tl.full([1], 1.0, tl.float32), 0.0) > 0.0
        )
    arguments = (scores_here, tops_here, list_here, begin, end)
    if KIND == ANY:
        if beta < NEAR_ONE:
            x, low = _solve(
                largest, tops, good, beta, enough, *arguments,
                POWER, ALWAYS, HOLD, FEW, COLUMNS, MANY,
            )  # fmt: skip
        elif beta > 1.0:
            x, low = _halve(largest, tops, good, beta, *arguments, HOLD, FEW, COLUMNS, MANY)
        else:
            x, low = _solve(
                largest, tops, good, beta, enough, *arguments,
                POWER, NEVER, HOLD, FEW, COLUMNS, MANY,
            )  # fmt: skip
    elif KIND == STEEP:
        x, low = _halve(largest, tops, good, beta, *arguments, HOLD, FEW, COLUMNS, MANY)
    else:
        x, low = _solve(
            largest, tops, good, beta, enough, *arguments,
            KIND, NEAR, HOLD, FEW, COLUMNS, MANY,
        )  # fmt: skip
    here = row + tl.arange(0, 1)
    tl.store(top_ptr + here, top)
    tl.store(x_ptr + here, x)
    tl.store(low_ptr + here, tl.where(good, low, float("inf")))
    tl.store(arrived_ptr + here, tl.zeros([1], tl.int32))
