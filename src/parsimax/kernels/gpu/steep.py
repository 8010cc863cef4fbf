"""Rows of alpha-entmax with alpha > 2, forward and backward.

There p has no bound on its slope next to the threshold, so the threshold is not sought among the
scores: the unknown is the smallest probability u, of the lowest score z_0 that receives any. Then
p_i = (beta (z_i - z_0) + u^beta)^(1/beta), whose sum is convex in u, and Newton comes down to the
root without passing it. z_0 is the lowest score that may itself be the threshold without those
above it using up all the mass; it is found by bisection.

A tensor of alpha may hold others, too. The kernels here own the rows that no kernel for
1 <= alpha <= 2 can solve, also those whose alpha is no number or below 1, and leave the others as
they are; a few programs look all rows over, so that to find none costs next to nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .quick import quick
from .sizes import pieces
from .tiles import (
    load_chunk,
    load_scores,
    row_parameter,
    row_tops,
    row_values,
    store_chunk,
    tile_for,
)

PROGRAMS = 512  # that look over a tensor of alpha
SCAN = 32  # tiles whose alpha a program looks at in one go

_HALVINGS = tl.constexpr(24)  # by value; then by the place in the order of all float32 numbers
_SWEEPS = tl.constexpr(64)
_RESIDUAL = tl.constexpr(5e-7)  # of the sum, by which it is then divided
_LEAST = tl.constexpr(1e-37)
_LN2 = tl.constexpr(0.6931471805599453)


def _solved_elsewhere(alpha: float | Tensor) -> bool:
    return not isinstance(alpha, Tensor) and 1.0 <= alpha <= 2.0


def _programs(n: int, rows: int, per_row: bool) -> int:
    blocks = pieces(n, rows)
    return min(blocks, PROGRAMS) if per_row else blocks


def forward(z: Tensor, alpha: float | Tensor, out: Tensor) -> None:
    """Write the rows of ``out`` that are owned here: probabilities, or NaN for a bad alpha."""
    if _solved_elsewhere(alpha):
        return
    n, d = z.shape
    tile = tile_for(d)
    a = row_parameter(alpha, z)
    grid = (_programs(n, tile.ROWS, a.PER_ROW),)
    _forward[grid](
        z, a.values, a.high, a.low, out, n, d, PER_ROW=a.PER_ROW, SCAN=SCAN, **tile.options
    )


def backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, out: Tensor, dalpha: Tensor | None
) -> None:
    """Gradient in the scores, and in alpha where wanted, of the rows that are owned here."""
    if _solved_elsewhere(alpha):
        return
    n, d = p.shape
    tile = tile_for(d)
    a = row_parameter(alpha, p)
    grid = (_programs(n, tile.ROWS, a.PER_ROW),)
    _backward[grid](
        p,
        g,
        a.values,
        a.high,
        a.low,
        out,
        out if dalpha is None else dalpha,
        n,
        d,
        WANT=dalpha is not None,
        PER_ROW=a.PER_ROW,
        SCAN=SCAN,
        **tile.options,
    )


@triton.jit
def _owned(alpha):
    """True for NaN, too."""
    return ((alpha >= 1.0) & (alpha <= 2.0)) == 0


@triton.jit
def _any_owned(alphas, first, programs, n, SCAN: tl.constexpr, ROWS: tl.constexpr):
    """Whether there is a row to do in the next tiles of a program: one wait for all of them."""
    places = (first + programs * tl.arange(0, SCAN)) * ROWS
    rows = places[:, None] + tl.arange(0, ROWS)[None, :]
    alpha = tl.load(alphas + rows, mask=rows < n, other=1.0)
    return tl.max(tl.max(_owned(alpha).to(tl.int32), 1), 0) > 0


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def _power(x, exponent):
    """x^exponent for x >= 0, and 0 at 0."""
    inside = x > 0.0
    return tl.where(inside, tl.exp2(exponent * tl.log2(tl.where(inside, x, 1.0))), 0.0)


@triton.jit
def _key(x):
    """An integer that grows as the float32 number does."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _number(key):
    """Back from :func:`_key`."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _above(tile, z, rows, keep, d, c, beta, gamma, COLUMNS: tl.constexpr, ONE: tl.constexpr):
    """(mass if c were the threshold, smallest score from c up, largest below c)."""
    mass = tl.zeros_like(c)
    up = tl.full(c.shape, float("inf"), tl.float32)
    down = tl.full(c.shape, float("-inf"), tl.float32)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        distance = tl.maximum(x - c[:, None], 0.0)
        mass += tl.sum(_power(beta[:, None] * distance, gamma[:, None]), 1)
        below = x < c[:, None]
        up = tl.minimum(up, tl.min(tl.where(below, float("inf"), x), 1))
        down = tl.maximum(down, tl.max(tl.where(below, x, float("-inf")), 1))
    return mass, up, down


@triton.jit
def _lowest(
    tile, z, rows, keep, d, top, beta, gamma, good, COLUMNS: tl.constexpr, ONE: tl.constexpr
):
    """The lowest score of the support: the smallest with mass below one above it.

    ``high`` is a score known to be so, ``low`` a number known not to be; ``first`` and ``last`` are
    the ends of the scores that may still lie between, as far as they are known.
    """
    high, last = top, top
    first = tl.full(top.shape, float("-inf"), tl.float32)
    # two ulps further down, because 1/beta may be less than one ulp of the scores
    low = _number(_key(top - gamma) - 2)
    done = good == 0
    sweep = 0
    while (tl.max((done == 0).to(tl.int32), 0) > 0) & (sweep < _SWEEPS):
        left, right = _key(low), _key(last)
        between = _number((left & right) + ((left ^ right) >> 1))
        middle = tl.where(sweep < _HALVINGS, 0.5 * low + 0.5 * last, between)
        c = tl.where((middle > low) & (middle < last) & (first < last), middle, last)
        mass, up, down = _above(tile, z, rows, keep, d, c, beta, gamma, COLUMNS, ONE)
        fits = mass < 1.0
        none = (up == high) & (up > c)  # nothing stands between a failure and a success
        better_high = tl.where(fits, up, high)
        better_low = tl.where(fits, low, c)
        better_last = tl.where(fits, down, tl.where(none, float("-inf"), last))
        first = tl.where(fits | (up == c), first, up)
        high = tl.where(done, high, better_high)
        low = tl.where(done, low, better_low)
        last = tl.where(done, last, better_last)
        done = done | (last <= low)
        sweep += 1
    return high


@triton.jit
def _from_lowest(x, lowest, u, beta, gamma):
    """(p, log2 p) with p = (beta distance + u^beta)^(1/beta), which is u at 0 if that underflows.

    p is 0 below the lowest score.
    """
    distance = x - lowest
    log_u = tl.log2(u)
    inside = distance >= 0.0
    w = beta * tl.where(inside, distance, 0.0) + tl.exp2(beta * log_u)
    log_p = tl.where(distance > 0.0, gamma * tl.log2(tl.where(distance > 0.0, w, 1.0)), log_u)
    log_p = tl.maximum(log_p, log_u)
    return tl.where(inside, tl.exp2(log_p), 0.0), log_p


@triton.jit
def _solve(
    z,
    out,
    rows,
    keep,
    alpha,
    d,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    tile = load_scores(z, rows, keep, 0, d, COLUMNS)
    top = row_tops(tile, z, rows, keep, d, COLUMNS, ONE)
    empty = top == float("-inf")
    good = (empty == 0) & (top < float("inf")) & (alpha > 2.0) & (alpha < float("inf"))
    top = tl.where(good, top, 0.0)
    beta = tl.where(good, alpha - 1.0, 2.0).to(tl.float32)
    gamma = 1.0 / beta
    lowest = _lowest(tile, z, rows, keep, d, top, beta, gamma, good, COLUMNS, ONE)

    mass = tl.zeros([ROWS], tl.float32)
    size = tl.zeros([ROWS], tl.float32)
    ties = tl.zeros([ROWS], tl.float32)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        distance = x - lowest[:, None]
        mass += tl.sum(_power(beta[:, None] * tl.maximum(distance, 0.0), gamma[:, None]), 1)
        size += tl.sum((distance >= 0.0).to(tl.float32), 1)
        ties += tl.sum((distance == 0.0).to(tl.float32), 1)
    # both are above the root: p is at least u, and at least what it would be at u = 0
    u = tl.minimum(1.0 / tl.maximum(size, 1.0), (1.0 - mass) / tl.maximum(ties, 1.0))
    u = tl.maximum(u, _LEAST)

    total = tl.full([ROWS], 1.0, tl.float64)
    done = good == 0
    sweep = 0
    while (tl.max((done == 0).to(tl.int32), 0) > 0) & (sweep < _SWEEPS):
        sum_p = tl.zeros([ROWS], tl.float64)
        slope = tl.zeros([ROWS], tl.float64)
        for start in range(0, COLUMNS if ONE else d, COLUMNS):
            x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
            p, log_p = _from_lowest(x, lowest[:, None], u[:, None], beta[:, None], gamma[:, None])
            s = tl.exp2((beta[:, None] - 1.0) * (tl.log2(u)[:, None] - log_p))
            sum_p += tl.sum(p.to(tl.float64), 1)
            slope += tl.sum(tl.where(p > 0.0, s, 0.0).to(tl.float64), 1)
        total = tl.where(done, total, sum_p)
        step = ((total - 1.0) / slope).to(tl.float32)
        better = tl.maximum(u - step, _LEAST)
        done = done | (total - 1.0 <= _RESIDUAL) | ((better < u) == 0)
        u = tl.where(done, u, better)
        sweep += 1

    scale = (1.0 / total).to(tl.float32)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        p, _ = _from_lowest(x, lowest[:, None], u[:, None], beta[:, None], gamma[:, None])
        other = tl.where(empty, 0.0, float("nan"))
        p = tl.where(good[:, None], p * scale[:, None], other[:, None])
        store_chunk(out, rows, keep, start, d, p, COLUMNS)


@triton.jit
def solve_owned(
    z,
    alphas,
    out,
    program,
    programs,
    n,
    d,
    SCAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """The share of one of several programs in the rows that are owned here."""
    blocks = tl.cdiv(n, ROWS)
    for first in range(program, blocks, programs * SCAN):
        if _any_owned(alphas, first, programs, n, SCAN, ROWS):
            for block in range(first, tl.minimum(blocks, first + programs * SCAN), programs):
                rows = block * ROWS + tl.arange(0, ROWS)
                values = row_values(alphas, 0.0, 0.0, rows, rows < n, True)
                keep = (rows < n) & _owned(values)
                if tl.max(keep.to(tl.int32), 0) > 0:
                    _solve(z, out, rows, keep, values, d, ROWS, COLUMNS, ONE)


@quick
@triton.jit(do_not_specialize=["n"])
def _forward(
    z,
    alphas,
    high,
    low,
    out,
    n,
    d,
    PER_ROW: tl.constexpr,
    SCAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    program = tl.program_id(0)
    if PER_ROW:
        solve_owned(z, alphas, out, program, tl.num_programs(0), n, d, SCAN, ROWS, COLUMNS, ONE)
    else:
        rows = program * ROWS + tl.arange(0, ROWS)
        values = row_values(alphas, high, low, rows, rows < n, PER_ROW)
        _solve(z, out, rows, rows < n, values, d, ROWS, COLUMNS, ONE)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def _weight(p, least, exponent):
    """(p / least)^exponent on the support, at most 1 because the exponent is negative."""
    inside = p > 0.0
    ratio = tl.where(inside, p, 1.0) / tl.where(inside, least, 1.0)
    ratio = tl.minimum(tl.maximum(ratio, 1.0), 3e38)
    return tl.where(inside, tl.exp2(exponent * tl.log2(ratio)), 0.0)


@triton.jit
def _multiply(
    p,
    g,
    out,
    dalpha,
    rows,
    keep,
    alpha,
    d,
    WANT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """(diag(s) - s s' / sum(s)) g with s = p^(2 - alpha), which grows without bound as p -> 0.

    Weights are relative to the largest, and g is centred on the entry that has it: that takes the
    cancellation out of a row that one tiny probability dominates.
    """
    p_tile = load_chunk(p, rows, keep, 0, d, 0.0, COLUMNS)
    g_tile = load_chunk(g, rows, keep, 0, d, 0.0, COLUMNS)
    broken = tl.zeros([ROWS], tl.int32)
    least = tl.full([ROWS], float("inf"), tl.float32)
    centre = tl.full([ROWS], float("-inf"), tl.float32)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        broken = tl.maximum(broken, tl.max((x != x).to(tl.int32), 1))
        smallest = tl.min(tl.where(x > 0.0, x, float("inf")), 1)
        there = tl.max(tl.where(x == smallest[:, None], v, float("-inf")), 1)
        centre = tl.where(
            smallest < least,
            there,
            tl.where(smallest == least, tl.maximum(there, centre), centre),
        )
        least = tl.minimum(least, smallest)
    some = least < float("inf")
    least = tl.where(some, least, 1.0)
    centre = tl.where(some, centre, 0.0)
    exponent = tl.where(some, 2.0 - alpha, 0.0).to(tl.float32)

    total = tl.zeros([ROWS], tl.float64)
    against = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        s = _weight(x, least[:, None], exponent[:, None])
        moved = tl.where(x > 0.0, s * (v - centre[:, None]), 0.0)
        total += tl.sum(s.to(tl.float64), 1)
        against += tl.sum(moved.to(tl.float64), 1)
    mean = tl.where(some, against / tl.where(some, total, 1.0), 0.0).to(tl.float32)
    # as in the reference, no weight is beyond the root of the largest number
    scale = tl.exp2(tl.minimum(exponent * tl.log2(least), 64.0))

    change = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        s = _weight(x, least[:, None], exponent[:, None])
        inside = x > 0.0
        off = (v - centre[:, None]) - mean[:, None]
        value = tl.where(inside, s * off * scale[:, None], 0.0)
        value = tl.where(broken[:, None] > 0, float("nan"), value)
        store_chunk(out, rows, keep, start, d, value, COLUMNS)
        if WANT:
            # dp/dalpha at a fixed threshold, less the multiple of s, against which g is centred
            beta = (alpha - 1.0).to(tl.float32)[:, None]
            log_p = tl.log2(tl.where(inside, x, 1.0)) * _LN2
            direct = tl.where(inside, off * (x / (beta * beta) - x * log_p / beta), 0.0)
            change += tl.sum(direct.to(tl.float64), 1)
    if WANT:
        change = tl.where(some, change, 0.0)
        change = tl.where(broken > 0, float("nan"), change)
        tl.store(dalpha + rows, change.to(tl.float32), mask=keep)


@triton.jit
def multiply_owned(
    p,
    g,
    alphas,
    out,
    dalpha,
    program,
    programs,
    n,
    d,
    WANT: tl.constexpr,
    SCAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """The share of one of several programs in the rows that are owned here, backward."""
    blocks = tl.cdiv(n, ROWS)
    for first in range(program, blocks, programs * SCAN):
        if _any_owned(alphas, first, programs, n, SCAN, ROWS):
            for block in range(first, tl.minimum(blocks, first + programs * SCAN), programs):
                rows = block * ROWS + tl.arange(0, ROWS)
                values = row_values(alphas, 0.0, 0.0, rows, rows < n, True)
                keep = (rows < n) & _owned(values)
                if tl.max(keep.to(tl.int32), 0) > 0:
                    _multiply(p, g, out, dalpha, rows, keep, values, d, WANT, ROWS, COLUMNS, ONE)


@quick
@triton.jit(do_not_specialize=["n"])
def _backward(
    p,
    g,
    alphas,
    high,
    low,
    out,
    dalpha,
    n,
    d,
    WANT: tl.constexpr,
    PER_ROW: tl.constexpr,
    SCAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    program = tl.program_id(0)
    if PER_ROW:
        multiply_owned(
            p, g, alphas, out, dalpha, program, tl.num_programs(0), n, d, WANT, SCAN, ROWS,
            COLUMNS, ONE,
        )  # fmt: skip
    else:
        rows = program * ROWS + tl.arange(0, ROWS)
        values = row_values(alphas, high, low, rows, rows < n, PER_ROW)
        _multiply(p, g, out, dalpha, rows, rows < n, values, d, WANT, ROWS, COLUMNS, ONE)
