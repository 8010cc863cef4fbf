"""Rows of alpha-entmax: forward, and backward with the gradient in alpha.

Write y = z - max(z) and beta = alpha - 1. Then p = [1 + beta (y - t)]_+^(1/beta) for the t >= 0
that makes it sum to one. With r = 1 + beta (y - t), the sum is the (1/beta)-norm of r_+ to the
power 1/beta; that norm is convex and nearly linear in t for beta <= 1, so Newton on *it* climbs
from the left without overshooting, and needs two or three steps where Newton on the sum needs ten.
Every solve ends on the residual that the written output itself has.
"""

from __future__ import annotations

import math

import numpy as np

from .jit import kernel, reduction
from .power import solve_power
from .rows import BLOCK, gather, spread, survey
from .scalar import cast, exp

_NAN = np.nan


@kernel
def split(x, rest, like):
    """``x + rest`` as the unevaluated sum of two numbers of the type of ``like``."""
    high = cast(x, like)
    return high, cast((x - np.float64(high)) + rest, like)


@kernel
def above(y, high, low):
    """``y - (high + low)`` to a relative precision of one ulp, or 0 where that is negative.

    With the threshold in one float32, a thousand words just above it would each be wrong by a
    percent; so this is compiled without leave to reorder.
    """
    r = (y - high) - low
    return r if r > cast(0.0, y) else cast(0.0, y)


# --- alpha = 1 ---------------------------------------------------------------------------------


@reduction
def _softmax_row(z, top, p):
    # A loop that adds and stores is vectorised or not, and so rounds one way or the other, by
    # where the arrays lie in memory: no loop in this file does both.
    for i in range(z.size):
        p[i] = exp(z[i] - top)
    total = 0.0
    for i in range(z.size):
        total += np.float64(p[i])
    scale = cast(1.0 / total, top)
    for i in range(z.size):
        p[i] *= scale


# --- alpha = 2, and sparsegen, which is alpha = 2 with another width ------------------------------


@reduction
def _sum_above(y, theta):
    total, count = 0.0, 0.0
    for i in range(y.size):
        v = np.float64(y[i]) - theta
        inside = v > 0.0
        total += v if inside else 0.0
        count += 1.0 if inside else 0.0
    return total, count


@kernel
def _climb(y, theta, width):
    """Solve sum (y - theta)_+ = width from a theta that is too low: exact, the support shrinks.

    Returns theta and what must still be added to it, which float64 could not hold in one number.
    The step is formed from the differences, not from the scores, whose sum over a long row of
    equal scores would be wrong in its last ten digits.
    """
    before = np.inf
    while True:
        total, count = _sum_above(y, theta)
        if count == 0.0:
            return theta, 0.0
        step = (total - width) / count
        if count >= before:
            return theta, step
        theta += step
        before = count


@reduction
def _write_above(y, high, low, q):
    for i in range(y.size):
        q[i] = above(y[i], high, low)


@kernel
def sparsemax_row(z, top, tops, blocks, width, y, where, p):
    """``p = (z - theta)_+ / width`` with sum one."""
    theta = -width
    if z.size > 2 * BLOCK:
        head = y[:blocks]
        for j in range(blocks):
            head[j] = tops[j] - top
        theta, _ = _climb(head, theta, width)
    # a hair below: the climb over the block maxima may have rounded upwards
    theta -= 1e-6 * abs(theta)
    size, padded = gather(z, top, tops, blocks, theta, y, where)
    kept = y[:padded]
    theta, rest = _climb(kept, theta, width)
    high, low = split(theta, rest, top)
    _write_above(kept, high, low, kept)
    spread(y, size, where, cast(1.0 / width, top), p)


# --- alpha = 3/2 -------------------------------------------------------------------------------


@reduction
def _squares_above(y, theta):
    squares, total = cast(0.0, theta), cast(0.0, theta)
    for i in range(y.size):
        v = y[i] - theta
        v = v if v > cast(0.0, v) else cast(0.0, v)
        squares += v * v
        total += v
    return squares, total


@reduction
def _moments_above(y, theta):
    count, total, squares = 0.0, 0.0, 0.0
    for i in range(y.size):
        v = np.float64(y[i]) - theta
        inside = v > 0.0
        v = v if inside else 0.0
        count += 1.0 if inside else 0.0
        total += v
        squares += v * v
    return count, total, squares


@kernel
def _climb15(y, theta, slack):
    """Newton on the 2-norm of (y - theta)_+, which must become 2, until within ``slack``."""
    while True:
        squares, total = _squares_above(y, cast(theta, y[0]))
        norm2 = np.float64(squares) / 4.0
        if not norm2 > 1.0 + slack:
            return theta
        step = 4.0 * (norm2 - math.sqrt(norm2)) / np.float64(total)
        if theta + step == theta:
            return theta
        theta += step


@kernel
def _exact_step(y, theta):
    """(residual, step to the root) in closed form on the support at theta.

    With v = y - theta on the support, sum (v - s)^2 = 4 is a quadratic in the step s (Peters et
    al. 2019, Proposition 3); it is written so that a small step keeps its digits. Where it has no
    root the support is still too large, and Newton on the norm says how far to go.
    """
    count, total, squares = _moments_above(y, theta)
    if count == 0.0:
        return 0.0, 0.0
    mean = total / count
    inner = (4.0 - max(squares - total * mean, 0.0)) / count
    residual = squares / 4.0 - 1.0
    if inner >= 0.0:
        return residual, (squares - 4.0) / count / (mean + math.sqrt(inner))
    norm2 = squares / 4.0
    return residual, 4.0 * (norm2 - math.sqrt(norm2)) / total


@reduction
def _write_squares(y, high, low, q):
    quarter = cast(0.25, high)
    for i in range(y.size):
        r = above(y[i], high, low)
        q[i] = quarter * r * r


@kernel
def _entmax15_row(z, top, tops, blocks, y, where, p):
    theta = -2.0
    if z.size > 2 * BLOCK:
        head = y[:blocks]
        for j in range(blocks):
            head[j] = tops[j] - top
        theta = _climb15(head, theta, 1e-3)
    theta -= 1e-6
    size, padded = gather(z, top, tops, blocks, theta, y, where)
    kept = y[:padded]
    theta = _climb15(kept, theta, 1e-2)
    # the closed form squares the residual: from 1e-4, or 1e-8, one step reaches rounding
    enough = 1e-4 if y.itemsize == 4 else 1e-8
    residual, step = _exact_step(kept, theta)
    while abs(residual) > enough and theta + step != theta:
        theta += step
        residual, step = _exact_step(kept, theta)
    high, low = split(theta, step, top)
    _write_squares(kept, high, low, kept)
    spread(y, size, where, cast(1.0, top), p)


# --- dispatch ----------------------------------------------------------------------------------


@kernel
def workspace(z):
    """(block maxima, scores, their places): what solving one row after the other needs."""
    d = z.shape[1]
    blocks = (d + BLOCK - 1) // BLOCK
    return np.empty(blocks, z.dtype), np.empty(d, z.dtype), np.empty(d, np.int32)


@kernel
def entmax_forward(start, stop, z, alphas, p):
    """Rows ``start`` to ``stop`` of ``p = entmax(z)``; ``alphas`` holds one value or one a row."""
    tops, y, where = workspace(z)
    entmax_rows(start, stop, z, alphas, p, tops, y, where)


@kernel
def entmax_rows(start, stop, z, alphas, p, tops, y, where):
    """As :func:`entmax_forward`, in the :func:`workspace` given."""
    blocks = tops.size
    for row in range(start, stop):
        alpha = alphas[row if alphas.size > 1 else 0]
        top, nan, _ = survey(z[row], tops)
        if top == -np.inf and not nan:
            p[row, :] = 0.0
        elif nan or top == np.inf or not (1.0 <= alpha < np.inf):
            p[row, :] = _NAN
        elif alpha == 1.0:
            _softmax_row(z[row], top, p[row])
        elif alpha == 2.0:
            sparsemax_row(z[row], top, tops, blocks, 1.0, y, where, p[row])
        elif alpha == 1.5:
            _entmax15_row(z[row], top, tops, blocks, y, where, p[row])
        else:
            solve_power(z[row], top, tops, blocks, alpha - 1.0, False, y, where, p[row])


@kernel
def sparsegen_forward(start, stop, z, lams, p):
    """Rows of ``p = sparsemax(z / (1 - lam))``."""
    d = z.shape[1]
    blocks = (d + BLOCK - 1) // BLOCK
    tops = np.empty(blocks, z.dtype)
    where = np.empty(d, np.int32)
    y = np.empty(d, z.dtype)
    for row in range(start, stop):
        lam = lams[row if lams.size > 1 else 0]
        top, nan, _ = survey(z[row], tops)
        if top == -np.inf and not nan:
            p[row, :] = 0.0
        elif nan or top == np.inf or not (-np.inf < lam < 1.0):
            p[row, :] = _NAN
        else:
            sparsemax_row(z[row], top, tops, blocks, 1.0 - lam, y, where, p[row])
