"""Rows of alpha-entmax for 1 <= alpha <= 2, and of sparsegen: probabilities and losses.

A row is solved first on the largest score of each group of its columns, which costs little and
lands just below the threshold, then on all of it, if that changes anything. Rows that fit are held
in registers; longer ones are read once for the tops, again as long as the threshold moves, and
once to write: each time in the other direction, since what was read last is still in the cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .approx import exp2, reciprocal, rounded
from .layout import Tile, forward_tile
from .newton import (
    ALWAYS,
    ENTMAX15,
    NEAR_ONE,
    NEVER,
    POWER,
    SOFTMAX,
    SOME,
    SPARSEMAX,
    TRIES,
    any_near,
    climb,
    exact_step,
    last_newton,
    lowest,
    move,
    newton,
    relative,
    row_sums,
    start,
    terms,
    threshold,
)
from .quick import Prepared, prepare, quick
from .reductions import larger, maximum, maximum2, solid, sum3
from .steep import PROGRAMS, SCAN, solve_owned

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_ENOUGH = tl.constexpr(4e-7)  # what the sum of a row may be off
_SHARP = tl.constexpr(
    0.35
)  # beta from which p^(2 - alpha), the gradient, is steep at the threshold


@triton.jit
def _tops(z, GROUP: tl.constexpr, PAIRS: tl.constexpr):
    """(largest, second largest) of each group of columns that one thread holds."""
    if GROUP > 1:
        z = tl.reshape(z, [z.shape[0], z.shape[1], z.shape[2] // GROUP, GROUP])
    if PAIRS:
        pairs = (z, tl.full(z.shape, -float("inf"), tl.float32))
        if GROUP > 1:
            pairs = maximum2(pairs[0], pairs[1], 3)
        return maximum2(pairs[0], pairs[1], 0)
    else:
        if GROUP > 1:
            z = maximum(z, 3)
        tops = maximum(z, 0)
        return tops, tops


@triton.jit
def step_on_support(total, slopes, count, width, before, KIND: tl.constexpr):
    """(step that is exact if the support stays, Newton's step, whether to take only the latter).

    The exact step goes too far if scores leave the support on the way, Newton's not far enough:
    the truth lies between them. If rounding has lost some, Newton takes them in again. SPARSEMAX
    has one step, right once the support has settled.
    """
    surplus, less = newton(total, slopes, total, total, width, KIND, NEVER)
    # down by a digit that does not count, a crowd might come back that does
    if KIND == ENTMAX15:
        step = tl.maximum(exact_step(total, slopes, count), 0.0)
        return step, less, ((step - less) * slopes > 0.5 * _ENOUGH) | (surplus < -_ENOUGH)
    else:
        step = tl.maximum(less, 0.0)
        return step, less, (tl.abs(surplus) > _ENOUGH) & (slopes != before)


@triton.jit
def settle(y, x, good, width, KIND: tl.constexpr, FEW: tl.constexpr):
    """The rest by which the threshold lies above x.

    It is kept apart, since one float cannot hold the threshold of a crowd of scores that lie just
    above it.
    """
    rest = tl.zeros_like(x)
    before = tl.zeros_like(x)
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        v = tl.maximum((y - x[None, :, None]) - rest[None, :, None], 0.0)
        one = tl.where(v > 0.0, 1.0, 0.0)
        if KIND == ENTMAX15:
            squares = solid(tl.sum(v * v, 0), FEW)
            total, slopes, count = sum3(squares, tl.sum(v, 0), tl.sum(one, 0), 1)
        else:
            total, slopes = row_sums(v, one, False)
            count = slopes
        step, less, more = step_on_support(total, slopes, count, width, before, KIND)
        before = slopes
        moved = rest + tl.where(more, less, step)
        arrived = ~more | (moved == rest)
        rest = tl.where(done, rest, moved)
        done = done | arrived
        active = tl.max(tl.where(done, 0, 1), 0)
    return rest


@triton.jit
def _write(y, x, rest, scale, fill, KIND: tl.constexpr):
    """Probabilities; ``fill`` is 0, or NaN in a row that has none."""
    v = tl.maximum((y - x) - rest, 0.0)
    if KIND == ENTMAX15:
        return tl.fma(v, v, fill)
    else:
        return tl.fma(v, scale, fill)


@triton.jit
def _finish(y, x, good, beta, gamma, near, NEAR: tl.constexpr):
    """(x, p, mass): powers with their last step taken on p itself.

    What the step neglects is of second order, and what leaves the support on the way. Where that
    could show in p, Newton goes on.
    """
    p = tl.zeros_like(y)
    mass = tl.zeros_like(x) + 1.0
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        q, slope = terms(
            y, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, POWER, NEAR
        )
        total, slopes = row_sums(q, slope, False)
        surplus, step = last_newton(total, slopes, beta)
        largest, _slope = terms(tl.zeros_like(x), x, beta, gamma, near, POWER, NEAR)
        q = tl.maximum(tl.fma(slope, -step[None, :, None], q), 0.0)
        p = tl.where(done[None, :, None], p, q)
        sums = tl.sum(tl.sum(q, 0), 1)
        mass = tl.where(done, mass, sums)
        moved = move(x, step, beta, POWER, NEAR)
        left = sums - (total - step * slopes)
        more = (surplus * surplus * largest > _ENOUGH) | (tl.abs(surplus) > 2e-3) | (left > _ENOUGH)
        arrived = ~more | (moved == x)
        x = tl.where(done, x, moved)
        done = done | arrived
        active = tl.max(tl.where(done, 0, 1), 0)
    return x, p, mass


@triton.jit
def _finish_sharply(y, heads, hidden, x, good, beta, gamma, near, NEAR: tl.constexpr):
    """The same where the gradient, p^(2 - alpha), is steep at the threshold.

    p is computed anew at the last threshold, until it sums to one; only what one float could not
    hold of that is taken as a step on p.
    """
    p = tl.zeros_like(y)
    mass = tl.zeros_like(x) + 1.0
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        # where nothing is hidden, the tops have all the mass
        few, few_slopes = terms(
            heads, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, POWER, NEAR
        )
        total, slopes = row_sums(few, few_slopes, True)
        if tl.max(tl.where(hidden & ~done, 1, 0), 0) > 0:
            every, every_slope = terms(
                y, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, POWER, NEAR
            )
            all_total, all_slopes = row_sums(every, every_slope, False)
            total = tl.where(hidden, all_total, total)
            slopes = tl.where(hidden, all_slopes, slopes)
        _surplus, step = last_newton(total, slopes, beta)
        moved = move(x, step, beta, POWER, NEAR)
        lost = step - (x - moved) * gamma
        q, slope = terms(
            y, moved[None, :, None], beta[None, :, None], gamma[None, :, None], near, POWER, NEAR
        )
        q = tl.maximum(tl.fma(slope, -lost[None, :, None], q), 0.0)
        sums = tl.sum(tl.sum(q, 0), 1)
        p = tl.where(done[None, :, None], p, q)
        mass = tl.where(done, mass, sums)
        arrived = ~(tl.abs(sums - 1.0) > 1e-6) | ((moved == x) & hidden)
        x = tl.where(done, x, moved)
        hidden = hidden | ~arrived
        done = done | arrived
        active = tl.max(tl.where(done, 0, 1), 0)
    return x, p, mass


@triton.jit
def _power(y, heads, deepest, good, beta, gamma, near, NEAR: tl.constexpr):
    """(x, p, mass) of POWER rows in registers: first on the tops, ``heads``, then on all of ``y``.

    ``deepest`` is the largest score that is not a top; it may lie above the threshold, too.
    """
    x = start(beta, beta, POWER, NEAR)
    x = climb(heads, x, good, beta, gamma, beta, near, 3e-2, POWER, NEAR, True)
    low = lowest(x, beta, gamma, POWER, NEAR)
    hidden = deepest > low - 1e-5 * tl.abs(low)
    x = climb(heads, x, good & ~hidden, beta, gamma, beta, near, 1e-3, POWER, NEAR, True)
    # Newton leaves about a third of beta times the square of the surplus
    roughly = tl.minimum(0.3, tl.sqrt(0.006 / beta))
    x = climb(y, x, good & hidden, beta, gamma, beta, near, roughly, POWER, NEAR, False)
    sharp = beta > _SHARP
    if beta.numel == 1:
        if tl.max(tl.where(sharp, 1, 0), 0) > 0:
            x, p, mass = _finish_sharply(y, heads, hidden, x, good, beta, gamma, near, NEAR)
        else:
            x, p, mass = _finish(y, x, good, beta, gamma, near, NEAR)
    else:
        x, p, mass = _finish(y, x, good & ~sharp, beta, gamma, near, NEAR)
        if tl.max(tl.where(sharp, 1, 0), 0) > 0:
            x, q, sums = _finish_sharply(y, heads, hidden, x, good & sharp, beta, gamma, near, NEAR)
            p = tl.where(sharp[None, :, None], q, p)
            mass = tl.where(sharp, sums, mass)
    return x, p, mass


@triton.jit
def _parameters(a_ptr, value, rows, inside, KIND: tl.constexpr, TENSOR: tl.constexpr):
    """(beta, gamma, width, whether this kernel solves the row, whether the parameter is bad).

    ``value`` is beta or 1 - lambda. Differences are taken before a double is rounded.
    """
    one = tl.zeros([rows.shape[0]], tl.float32) + 1.0
    if KIND == SPARSEMAX:  # sparsegen: lambda below 1
        if TENSOR:
            width = (1.0 - tl.load(a_ptr + rows, mask=inside, other=0.0)).to(tl.float32)
        else:
            width = one * value
        fits = (width > 0.0) & (width < float("inf"))
        return one, one, tl.where(fits, width, 1.0), inside, ~fits
    else:
        if TENSOR:
            alpha = tl.load(a_ptr + rows, mask=inside, other=1.5)
            mine = inside & (alpha >= 1.0) & (alpha <= 2.0)
            beta = (alpha - 1.0).to(tl.float32)
        else:
            mine = inside
            beta = one * value
        beta = tl.where(mine, beta, 0.5)
        return beta, 1.0 / tl.maximum(beta, 1e-30), one, mine, ~inside


@triton.jit
def _loss_rows(
    gap_ptr, lag_ptr, top_ptr, index_ptr, z_ptr, rows, mine, good, d, top, inner, t, beta,
    INDEX: tl.constexpr,
):  # fmt: skip
    """gap = (beta <p, y> + t) / alpha, which is what <p, y> - Omega(p) comes to."""
    gap = tl.maximum((beta * inner + t) / (1.0 + beta), 0.0)
    gap = tl.where(good, gap, tl.where(top == -float("inf"), 0.0, float("nan")))
    tl.store(gap_ptr + rows, gap, mask=mine)
    finite = tl.where(good, top, 0.0)
    tl.store(top_ptr + rows, finite, mask=mine)
    if INDEX:
        index = tl.load(index_ptr + rows, mask=mine, other=0)
        known = mine & (index >= 0) & (index < d)
        score = tl.load(z_ptr + rows * d + index, mask=known, other=0.0).to(tl.float32)
        tl.store(lag_ptr + rows, finite - score, mask=mine)
    else:
        tl.store(lag_ptr + rows, tl.zeros_like(finite), mask=mine)


@triton.jit
def _held(
    program, z_ptr, p_ptr, a_ptr, gap_ptr, lag_ptr, top_ptr, index_ptr, value, n, d,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    LOSS: tl.constexpr, INDEX: tl.constexpr, GROUP: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Rows held in registers, as a tile (DEEP, ROWS, WIDE)."""
    rows = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    beta, gamma, width, mine, bad = _parameters(a_ptr, value, rows, rows < n, KIND, TENSOR)
    near = any_near(beta, NEAR)
    columns = (tl.arange(0, DEEP) * WIDE)[:, None, None] + tl.arange(0, WIDE)[None, None, :]
    offsets = (rows * d)[None, :, None] + columns
    inside = (columns < d) & (rows < n)[None, :, None]  # not to wait for the parameters
    z = tl.load(z_ptr + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    tops, seconds = _tops(z, GROUP, KIND == POWER)
    top = maximum(tops, 1)
    good = (top > -float("inf")) & (top < float("inf")) & mine & ~bad
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan"))
    largest = tl.where(good, top, 0.0)
    y = relative(z, largest[None, :, None], KIND)
    if KIND == SOFTMAX:
        p = exp2(y * _LOG2E)
        total = tl.sum(tl.sum(p, 0), 1)
        scale = tl.where(good, reciprocal(total), 0.0)
        p = tl.fma(p, scale[None, :, None], fill[None, :, None])
        t = tl.log2(total) * _LN2
    else:
        heads = relative(tops, largest[:, None], KIND)[None, :, :]
        if KIND == POWER:
            deepest = tl.max(seconds, 1) - largest
            if NEAR == SOME and ROWS == 1:
                if near:
                    x, p, mass = _power(y, heads, deepest, good, beta, gamma, near, ALWAYS)
                else:
                    x, p, mass = _power(y, heads, deepest, good, beta, gamma, near, NEVER)
            else:
                x, p, mass = _power(y, heads, deepest, good, beta, gamma, near, NEAR)
            p = tl.fma(p, reciprocal(mass)[None, :, None], fill[None, :, None])
            t = threshold(x, beta, gamma, KIND, NEAR)
        else:
            x = start(beta, width, KIND, NEAR)
            x = climb(heads, x, good, beta, gamma, width, near, 0.2, KIND, NEAR, True)
            x = climb(y, x, good, beta, gamma, width, near, 0.05, KIND, NEAR, False)
            rest = settle(y, x, good, width, KIND, False)
            scale = 1.0 / width
            p = _write(
                y, x[None, :, None], rest[None, :, None], scale[None, :, None],
                fill[None, :, None], KIND,
            )  # fmt: skip
            t = threshold(x, beta, gamma, KIND, NEAR)
            t += 2.0 * rest if KIND == ENTMAX15 else rest
    inside = (columns < d) & mine[None, :, None]
    tl.store(p_ptr + offsets, rounded(p, p_ptr.dtype.element_ty), mask=inside)
    if LOSS:
        inner = tl.sum(tl.sum(tl.where(p > 0.0, p * y, 0.0), 0), 1)
        inner = 2.0 * inner if KIND == ENTMAX15 else inner
        _loss_rows(
            gap_ptr, lag_ptr, top_ptr, index_ptr, z_ptr, rows, mine, good, d, top, inner, t, beta,
            INDEX,
        )  # fmt: skip


@triton.jit
def _piece(k, d, backwards, WIDE: tl.constexpr):
    """The first column of the k-th piece of a row, from either end."""
    pieces = tl.cdiv(d, WIDE)
    return tl.where(backwards > 0, pieces - 1 - k, k) * WIDE


@triton.jit
def _sweep(
    z_ptr, row_start, columns, d, backwards, largest, base, x, beta, gamma, near,
    KIND: tl.constexpr, NEAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The sums of a climb over a row in memory, and the size of the support for ENTMAX15.

    The threshold is ``base`` + ``x``; there is no base for POWER.
    """
    totals = tl.zeros([1, 1, WIDE], tl.float32)
    slopes = tl.zeros([1, 1, WIDE], tl.float32)
    counts = tl.zeros([1, 1, WIDE], tl.float32)
    for k in range(tl.cdiv(d, WIDE)):
        here = columns + _piece(k, d, backwards, WIDE)
        z = tl.load(z_ptr + row_start + here, mask=here < d, other=-float("inf")).to(tl.float32)
        y = relative(z, largest[None, :, None], KIND)
        if KIND != POWER:
            y -= base[None, :, None]
        q, slope = terms(
            y, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, KIND, NEAR
        )
        totals += q
        slopes += slope
        if KIND == ENTMAX15:
            counts += tl.where(slope > 0.0, 1.0, 0.0)
    return sum3(tl.sum(totals, 0), tl.sum(slopes, 0), tl.sum(counts, 0), 1)


@triton.jit
def _streamed(
    program, z_ptr, p_ptr, a_ptr, gap_ptr, lag_ptr, top_ptr, index_ptr, value, n, d,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    LOSS: tl.constexpr, INDEX: tl.constexpr, GROUP: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One row a program, in pieces of WIDE columns; DEEP, ROWS and GROUP are 1."""
    rows = program.to(tl.int64) + tl.arange(0, 1)
    beta, gamma, width, mine, bad = _parameters(a_ptr, value, rows, rows < n, KIND, TENSOR)
    near = any_near(beta, NEAR)
    columns = tl.arange(0, WIDE)[None, None, :]
    row_start = program.to(tl.int64) * d
    pieces = tl.where(tl.max(tl.where(mine, 1, 0), 0) > 0, tl.cdiv(d, WIDE), 0)
    first = tl.full([1, 1, WIDE], -float("inf"), tl.float32)
    second = first
    third = first
    for k in range(pieces):
        here = columns + k * WIDE
        z = tl.load(z_ptr + row_start + here, mask=here < d, other=-float("inf")).to(tl.float32)
        if KIND != SOFTMAX:
            less = tl.minimum(first, z)
            if KIND != POWER:
                third = tl.maximum(third, tl.minimum(second, less))
            second = tl.maximum(second, less)
        first = larger(first, z)
    top = maximum(maximum(first, 0), 1)
    good = (top > -float("inf")) & (top < float("inf")) & mine & ~bad
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan"))
    largest = tl.where(good, top, 0.0)
    x = start(beta, width, KIND, NEAR)
    rest = tl.zeros_like(x)
    scale = 1.0 / width
    backwards = 1
    if KIND == SOFTMAX:
        total = tl.zeros([1, 1, WIDE], tl.float32)
        for k in range(pieces):
            here = columns + _piece(k, d, backwards, WIDE)
            z = tl.load(z_ptr + row_start + here, mask=here < d, other=-float("inf"))
            total += exp2((z.to(tl.float32) - largest[None, :, None]) * _LOG2E)
        sums = tl.sum(tl.sum(total, 0), 1)
        backwards = 1 - backwards
        scale = tl.where(good, reciprocal(sums), 0.0)
        t = tl.log2(sums) * _LN2
    elif KIND == POWER:
        heads = relative(first, largest[None, :, None], KIND)
        x = climb(heads, x, good, beta, gamma, width, near, 1e-3, KIND, NEAR, True)
        low = lowest(x, beta, gamma, KIND, NEAR)
        deepest = tl.max(tl.max(second, 0), 1) - largest
        hidden = good & (deepest > low - 1e-5 * tl.abs(low))
        q, slope = terms(
            heads, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, KIND, NEAR
        )
        total, slopes = row_sums(q, slope, True)
        _surplus, rest = last_newton(total, slopes, beta)
        tolerance = tl.where(beta > _SHARP, 3e-6, 1e-3)
        tries = 0
        active = tl.max(tl.where(hidden, 1, 0), 0)
        while (active > 0) & (tries < TRIES):
            tries += 1
            total, slopes, _count = _sweep(
                z_ptr, row_start, columns, d, backwards, largest, x, x, beta, gamma, near,
                KIND, NEAR, WIDE,
            )  # fmt: skip
            backwards = 1 - backwards
            surplus, step = newton(total, slopes, beta, gamma, width, KIND, NEAR)
            _same, rest = last_newton(total, slopes, beta)
            moved = move(x, tl.where(tl.abs(surplus) < 0.05, rest, step), beta, KIND, NEAR)
            more = (tl.abs(surplus) > tolerance) & (moved != x)
            x = tl.where(more, moved, x)
            active = tl.max(tl.where(more, 1, 0), 0)
        # the last step is taken on p itself: what the powers have wrong, the sum has, too
        scale = tl.where(good, reciprocal(total - rest * slopes), 1.0)
        t = threshold(x, beta, gamma, KIND, NEAR) + rest
    else:
        two = tl.join(tl.reshape(first, [1, WIDE]), tl.reshape(second, [1, WIDE]))
        heads = relative(tl.permute(two, (2, 0, 1)), largest[None, :, None], KIND)
        x = climb(heads, x, good, beta, gamma, width, near, 1e-2, KIND, NEAR, True)
        deepest = relative(tl.max(tl.max(third, 0), 1), largest, KIND)
        hidden = good & (deepest > x - 1e-5 * tl.abs(x))
        rest = settle(heads, x, good & ~hidden, width, KIND, True)
        before = tl.zeros_like(x)
        tries = 0
        active = tl.max(tl.where(hidden, 1, 0), 0)
        while (active > 0) & (tries < TRIES):
            tries += 1
            total, slopes, count = _sweep(
                z_ptr, row_start, columns, d, backwards, largest, x, rest, beta, gamma, near,
                KIND, NEAR, WIDE,
            )  # fmt: skip
            backwards = 1 - backwards
            step, less, more = step_on_support(total, slopes, count, width, before, KIND)
            before = slopes
            moved = rest + tl.where(more, less, step)
            active = tl.max(tl.where(more & (moved != rest), 1, 0), 0)
            rest = moved
        t = threshold(x, beta, gamma, KIND, NEAR)
        t += 2.0 * rest if KIND == ENTMAX15 else rest
    inner = tl.zeros([1, 1, WIDE], tl.float32)
    for k in range(pieces):
        here = columns + _piece(k, d, backwards, WIDE)
        z = tl.load(z_ptr + row_start + here, mask=here < d, other=-float("inf")).to(tl.float32)
        y = relative(z, largest[None, :, None], KIND)
        if KIND == SOFTMAX:
            q = exp2(y * _LOG2E)
            p = tl.fma(q, scale[None, :, None], fill[None, :, None])
        elif KIND == POWER:
            q, slope = terms(
                y, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, KIND, NEAR
            )
            q = tl.maximum(tl.fma(slope, -rest[None, :, None], q), 0.0)
            p = tl.fma(q, scale[None, :, None], fill[None, :, None])
        else:
            p = _write(
                y, x[None, :, None], rest[None, :, None], scale[None, :, None],
                fill[None, :, None], KIND,
            )  # fmt: skip
        tl.store(p_ptr + row_start + here, rounded(p, p_ptr.dtype.element_ty), mask=here < d)
        if LOSS:
            inner += tl.where(p > 0.0, p * y, 0.0)
    if LOSS:
        inners = tl.sum(tl.sum(inner, 0), 1)
        inners = 2.0 * inners if KIND == ENTMAX15 else inners
        _loss_rows(
            gap_ptr, lag_ptr, top_ptr, index_ptr, z_ptr, rows, mine, good, d, top, inners, t, beta,
            INDEX,
        )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["n", "scanners"])
def _kernel(
    z_ptr, p_ptr, a_ptr, gap_ptr, lag_ptr, top_ptr, index_ptr, value, n, d, scanners,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    LOSS: tl.constexpr, INDEX: tl.constexpr, GROUP: tl.constexpr, SCANNED: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """The first programs look for rows with an alpha outside [1, 2]: one launch for all rows."""
    program = tl.program_id(0)
    if program < scanners:
        if SCANNED > 0:
            # in pieces, even if they fit: these rows are rare, and registers are not free
            solve_owned(z_ptr, a_ptr, p_ptr, program, scanners, n, d, SCANNED, ROWS, WIDE, False)
    else:
        program -= scanners
        if STREAM:
            _streamed(
                program, z_ptr, p_ptr, a_ptr, gap_ptr, lag_ptr, top_ptr, index_ptr, value, n, d,
                KIND, NEAR, TENSOR, LOSS, INDEX, GROUP, DEEP, ROWS, WIDE,
            )  # fmt: skip
        else:
            _held(
                program, z_ptr, p_ptr, a_ptr, gap_ptr, lag_ptr, top_ptr, index_ptr, value, n, d,
                KIND, NEAR, TENSOR, LOSS, INDEX, GROUP, DEEP, ROWS, WIDE,
            )  # fmt: skip


# --- launching ------------------------------------------------------------------------------------


def kind_of(alpha: float | Tensor) -> tuple[int, int]:
    """The kernel for this alpha, and which of its rows lie near 1."""
    return _ANY_ROWS if isinstance(alpha, Tensor) else _kind_of_number(alpha)


@lru_cache
def _kind_of_number(alpha: float) -> tuple[int, int]:
    kinds = {1.0: SOFTMAX, 1.5: ENTMAX15, 2.0: SPARSEMAX}
    near = ALWAYS if alpha - 1.0 < NEAR_ONE.value else NEVER
    return kinds.get(alpha, POWER).value, near.value


_ANY_ROWS = (POWER.value, SOME.value)


class Plan(NamedTuple):
    """What need not be worked out again for rows of the same length and dtype."""

    rows: int  # of a program
    steep: bool  # whether some programs look for rows with an alpha outside [1, 2]
    options: dict[str, Any]
    aligned: Prepared | None  # where all pointers are multiples of 16


@lru_cache(maxsize=1024)
def _plan(
    kind: int,
    near: int,
    d: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    parameter: torch.dtype | None,
    loss: bool,
    index: torch.dtype | None,
    tile: Tile | None,
) -> Plan:
    tensor = parameter is not None
    tile = tile or forward_tile(d, dtypes[0].itemsize, kind == POWER.value, tensor)
    steep = tensor and kind == POWER.value and not loss
    options = {
        "KIND": kind,
        "NEAR": near,
        "TENSOR": tensor,
        "LOSS": loss,
        "INDEX": index is not None,
        "GROUP": tile.group,
        "SCANNED": SCAN if steep else 0,
        **tile.sizes,
    }
    sort = (*dtypes, parameter, loss, index, d == 1, d % 16 == 0, d < 2**31)
    return Plan(tile.rows, steep, options, prepare(_kernel, sort, options))


def _launch(z, p, parameter, kind, near, loss, index, tile=None):
    n, d = z.shape
    tensor = isinstance(parameter, Tensor)
    plan = _plan(
        kind,
        near,
        d,
        (z.dtype, p.dtype),
        parameter.dtype if tensor else None,
        loss is not None,
        None if index is None else index.dtype,
        tile,
    )
    programs = -(-n // plan.rows)
    scanners = min(programs, PROGRAMS) if plan.steep else 0
    pointers = z.data_ptr() | p.data_ptr()
    if tensor:
        pointers |= parameter.data_ptr()
        values, value = parameter, 0.0
    else:
        values, value = z, float(parameter)
    if loss is None:
        gap = lag = top = z
    else:
        gap, lag, top = loss
        pointers |= gap.data_ptr() | lag.data_ptr() | top.data_ptr()
    if index is None:
        index = z
    else:
        pointers |= index.data_ptr()
    arguments = (z, p, values, gap, lag, top, index, value, n, d, scanners)
    if pointers % 16 == 0 and n < 2**31 and plan.aligned is not None:
        plan.aligned((scanners + programs, 1, 1), *arguments)
    else:
        _kernel[(scanners + programs,)](*arguments, **plan.options)


def _value(alpha: float | Tensor, kind: int) -> float | Tensor:
    """What a kernel takes: beta, or 1 - lambda, which is 1 for sparsemax."""
    if isinstance(alpha, Tensor):
        return alpha
    return 1.0 if kind == SPARSEMAX.value else alpha - 1.0


def forward(z: Tensor, alpha: float | Tensor, p: Tensor, tile: Tile | None = None) -> None:
    """Probabilities of the rows of ``z`` (n, d) into ``p``.

    A number alpha lies between 1 and 2; a tensor has one value a row, and of any size.
    """
    kind, near = kind_of(alpha)
    _launch(z, p, _value(alpha, kind), kind, near, None, None, tile)


def sparsegen_forward(z: Tensor, lam: float | Tensor, p: Tensor) -> None:
    """The same for sparsegen, with one lambda below 1, or one a row."""
    value = lam if isinstance(lam, Tensor) else 1.0 - lam
    _launch(z, p, value, SPARSEMAX.value, NEVER.value, None, None)


def loss(
    z: Tensor,
    alpha: float | Tensor,
    index: Tensor | None,
    p: Tensor,
    gap: Tensor,
    lag: Tensor,
    top: Tensor,
) -> None:
    """Probabilities, and what a Fenchel-Young loss takes of each row: see losses.conjugate.

    Rows with an alpha outside [1, 2] are left as they are.
    """
    kind, near = kind_of(alpha)
    _launch(z, p, _value(alpha, kind), kind, near, (gap, lag, top), index)
