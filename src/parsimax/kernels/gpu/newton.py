"""What the entmax kernels add up over a row, and the step towards its threshold that follows.

Write y = z - max(z) and beta = alpha - 1. Four kinds of rows are solved, each for one unknown x:

- ``SOFTMAX`` needs none.
- ``SPARSEMAX``: p = (y - x)_+ / width, which is sparsemax at width 1 and sparsegen elsewhere.
- ``ENTMAX15``: p = (y / 2 - x)_+^2, where y / 2 is what :func:`relative` gives.
- ``POWER``: p = w^(1/beta) with w = [1 + beta (y - t)]_+. The unknown is the largest weight,
  x = 1 - beta t, which keeps its digits in a long row; or t itself where alpha is near 1, and w is
  too near 1 for a plain logarithm.

Newton is taken on the (1/beta)-norm of the weights, which is convex and nearly linear: it climbs
to the threshold from below, and from a fair start it is there in two or three steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import exp2, log2, reciprocal, square_root
from .reductions import solid, sum2

SOFTMAX = tl.constexpr(0)
SPARSEMAX = tl.constexpr(1)
ENTMAX15 = tl.constexpr(2)
POWER = tl.constexpr(3)

# Which rows of a POWER kernel have alpha near 1
NEVER = tl.constexpr(0)
ALWAYS = tl.constexpr(1)
SOME = tl.constexpr(2)
NEAR_ONE = tl.constexpr(0.06)  # beta below which the logarithm is taken of 1 + v, not of w

TRIES = tl.constexpr(64)  # no row needs so many steps; a loop on a GPU must not run for ever

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _far(y, x, beta, gamma):
    w = tl.maximum(tl.fma(y, beta, x), 0.0)
    # at alpha = 2 the exponent would be 0, and 0 times the logarithm of 0 is not a number
    slope = exp2(tl.maximum(gamma - 1.0, 1e-7) * log2(w))
    return slope * w, slope


@triton.jit
def terms_near(y, x, beta, gamma):
    """As :func:`_far` with x = t: log w by the series of atanh where w is near 1."""
    u = tl.maximum(y, -1e30) - x
    v = beta * u
    w = 1.0 + v
    r = reciprocal(2.0 + v)
    s = v * r
    s2 = s * s
    series = 1.0 + s2 * (1.0 / 3 + s2 * (1.0 / 5 + s2 * (1.0 / 7 + s2 * (1.0 / 9))))
    log_q = tl.where(v > -0.3, (2.0 * _LOG2E) * u * (r * series), gamma * log2(tl.maximum(w, 0.0)))
    q = tl.where(w > 0.0, exp2(log_q), 0.0)
    return q, q * reciprocal(tl.maximum(w, 1e-30))


@triton.jit
def relative(z, largest, KIND: tl.constexpr):
    """Scores relative to the largest; halved for ENTMAX15."""
    if KIND == ENTMAX15:
        return tl.fma(z, 0.5, -0.5 * largest)
    else:
        return z - largest


@triton.jit
def any_near(beta, NEAR: tl.constexpr):
    """Whether some row of a SOME kernel is near 1."""
    if NEAR == SOME:
        return tl.min(beta, 0) < NEAR_ONE
    else:
        return NEAR == ALWAYS


@triton.jit
def terms(y, x, beta, gamma, near, KIND: tl.constexpr, NEAR: tl.constexpr):
    """(what adds up to the mass, up to a factor; minus its derivative, up to a factor)."""
    if KIND == SPARSEMAX:
        v = tl.maximum(y - x, 0.0)
        return v, tl.where(v > 0.0, 1.0, 0.0)
    elif KIND == ENTMAX15:
        v = tl.maximum(y - x, 0.0)
        return v * v, v
    elif NEAR == ALWAYS:
        return terms_near(y, x, beta, gamma)
    elif NEAR == NEVER:
        return _far(y, x, beta, gamma)
    elif beta.numel == 1:
        if near:
            q, slope = terms_near(y, x, beta, gamma)
        else:
            q, slope = _far(y, x, beta, gamma)
        return q, slope
    else:
        q, slope = _far(y, x, beta, gamma)
        if near:
            near_q, near_slope = terms_near(y, x, beta, gamma)
            q = tl.where(beta < NEAR_ONE, near_q, q)
            slope = tl.where(beta < NEAR_ONE, near_slope, slope)
        return q, slope


@triton.jit
def start(beta, width, KIND: tl.constexpr, NEAR: tl.constexpr):
    """The lowest threshold: all mass on the largest score."""
    if KIND == SPARSEMAX:
        return -width
    elif KIND == ENTMAX15:
        return tl.full(beta.shape, -1.0, tl.float32)
    elif NEAR == ALWAYS:
        return tl.zeros_like(beta)
    elif NEAR == NEVER:
        return tl.zeros_like(beta) + 1.0
    else:
        return tl.where(beta < NEAR_ONE, 0.0, 1.0)


@triton.jit
def newton(total, slope, beta, gamma, width, KIND: tl.constexpr, NEAR: tl.constexpr):
    """(surplus of mass, how far the threshold must rise at least)."""
    if KIND == SPARSEMAX:
        step = (total - width) * reciprocal(tl.maximum(slope, 1.0))
        return total * reciprocal(width) - 1.0, step
    elif KIND == ENTMAX15:
        step = (total - square_root(total)) * reciprocal(tl.maximum(slope, 1e-30))
        return total - 1.0, step
    else:
        # total (1 - total^-beta) / beta, or its limit
        log_total = log2(total)
        rise = (1.0 - exp2(-beta * log_total)) * gamma
        if NEAR != NEVER:
            x = beta * log_total * _LN2
            flat = log_total * _LN2 * (1.0 - x * (0.5 - x * (1.0 / 6 - x * (1.0 / 24))))
            rise = tl.where(x < 0.2, flat, rise)
        return total - 1.0, total * rise * reciprocal(slope)


@triton.jit
def last_newton(total, slope, beta):
    """The same for POWER by a series, where the surplus is small and a logarithm has few digits."""
    surplus = total - 1.0
    curve = 0.5 * (1.0 - beta)
    rise = surplus * (1.0 + surplus * curve * (1.0 - (1.0 + beta) * surplus * (1.0 / 3)))
    return surplus, rise * reciprocal(slope)


@triton.jit
def move(x, step, beta, KIND: tl.constexpr, NEAR: tl.constexpr):
    """The unknown after the threshold has risen by ``step``."""
    if KIND != POWER or NEAR == ALWAYS:
        return x + step
    elif NEAR == NEVER:
        return tl.fma(-beta, step, x)
    else:
        return tl.where(beta < NEAR_ONE, x + step, tl.fma(-beta, step, x))


@triton.jit
def threshold(x, beta, gamma, KIND: tl.constexpr, NEAR: tl.constexpr):
    """t of p = [1 + beta (y - t)]^(1/beta); width 1 is meant for SPARSEMAX."""
    if KIND == SPARSEMAX:
        return x + 1.0
    elif KIND == ENTMAX15:
        return 2.0 * x + 2.0
    elif NEAR == ALWAYS:
        return x
    elif NEAR == NEVER:
        return (1.0 - x) * gamma
    else:
        return tl.where(beta < NEAR_ONE, x, (1.0 - x) * gamma)


@triton.jit
def lowest(x, beta, gamma, KIND: tl.constexpr, NEAR: tl.constexpr):
    """The score at and below which p is 0."""
    if KIND != POWER:
        return x
    else:
        return threshold(x, beta, gamma, KIND, NEAR) - gamma


@triton.jit
def exact_step(squares, total, count):
    """ENTMAX15 on a known support: sum (v - s)^2 = 1 for v = y / 2 - x, in closed form.

    Written so that a small step keeps its digits (Peters et al. 2019, Proposition 3).
    """
    share = reciprocal(tl.maximum(count, 1.0))
    mean = total * share
    inner = tl.maximum((1.0 - (squares - total * mean)) * share, 0.0)
    return (squares - 1.0) * share * reciprocal(mean + square_root(inner))


@triton.jit
def row_sums(a, b, FEW: tl.constexpr):
    """Sums over all but the rows of two tiles (columns, rows, columns)."""
    return sum2(solid(tl.sum(a, 0), FEW), solid(tl.sum(b, 0), FEW), 1)


@triton.jit
def climb(
    y, x, good, beta, gamma, width, near, tolerance,
    KIND: tl.constexpr, NEAR: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Newton over a tile in registers until no row has more surplus than it may have.

    A row that has arrived no longer changes, whatever its neighbours do.
    """
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        q, slope = terms(
            y, x[None, :, None], beta[None, :, None], gamma[None, :, None], near, KIND, NEAR
        )
        total, slopes = row_sums(q, slope, FEW)
        surplus, step = newton(total, slopes, beta, gamma, width, KIND, NEAR)
        moved = move(x, step, beta, KIND, NEAR)
        done = done | (moved == x)
        x = tl.where(done, x, moved)
        done = done | ~(surplus > tolerance)
        active = tl.max(tl.where(done, 0, 1), 0)
    return x
