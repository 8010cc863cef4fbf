"""Rows of normmax whose threshold float32 does not resolve: Newton in float64.

A threshold that is off by the last digit of float32 is off for a whole crowd of scores next to it,
and the largest probability then by that digit times the size of the crowd. Such rows are rare; they
are read in narrow pieces, since float64 takes registers from the rows that are not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import rounded

_SWEEPS = tl.constexpr(64)
_RESIDUAL = tl.constexpr(1e-13)
_LN2 = tl.constexpr(0.6931471805599453)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(z_ptr, starts, columns, mask, top, b, gamma, LINEAR: tl.constexpr):
    """(w = (1 + b y)_+, w^gamma) with y = z - top."""
    z = tl.load(z_ptr + starts + columns, mask=mask, other=-float("inf")).to(tl.float64)
    v = b * (z - top)
    inside = v > -1.0
    v = tl.where(inside, v, 0.0)
    w = 1.0 + v
    if LINEAR:
        q = w
    else:
        lost = v - (w - 1.0)
        q = tl.exp2(gamma * (tl.log2(w) + (lost / w) * _LOG2E))
    return tl.where(inside, w, 0.0), tl.where(inside, q, 0.0)


@triton.jit
def _minus_expm1(x):
    """1 - exp(-x) for x that may be small."""
    series = x * (1.0 - x / 2 * (1.0 - x / 3 * (1.0 - x / 4 * (1.0 - x / 5))))
    return tl.where(tl.abs(x) < 0.01, series, 1.0 - tl.exp2(x * -_LOG2E))


@triton.jit
def solve_crowded(
    z_ptr, p_ptr, rows, crowded, d, top, u, beta,
    LINEAR: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the rows that are ``crowded``, with thresholds from ``top - u`` up; all in float64."""
    columns = tl.arange(0, WIDE)[None, :]
    starts = (rows * d)[:, None]
    keep = crowded[:, None]
    gamma = 1.0 / beta
    order = gamma + 1.0
    total = tl.full([ROWS], 1.0, tl.float64)
    previous = tl.full([ROWS], float("inf"), tl.float64)
    done = crowded == 0
    sweep = 0
    while (tl.max(tl.where(done, 0, 1), 0) > 0) & (sweep < _SWEEPS):
        sweep += 1
        sames = tl.zeros([ROWS, WIDE], tl.float64)
        mores = tl.zeros([ROWS, WIDE], tl.float64)
        b = 1.0 / u
        for start in range(0, d, WIDE):
            here = columns + start
            w, q = _weights(
                z_ptr, starts, here, keep & (here < d), top[:, None], b[:, None], gamma[:, None],
                LINEAR,
            )  # fmt: skip
            sames += q
            mores += q * w
        same, more = tl.sum(sames, 1), tl.sum(mores, 1)
        # Newton on the norm (sum r^order)^(1/order), which is convex in tau and nearly linear
        log_u = tl.log2(u)
        log_sum = tl.log2(more) + order * log_u
        norm = tl.exp2(log_sum)
        step = norm * _minus_expm1(log_sum / order * _LN2) / (tl.exp2(gamma * log_u) * same)
        residual = tl.abs(norm - 1.0)
        total = tl.where(done, total, same)
        # the last is rounding, which lets the residual shrink no further
        still = (residual < previous) & (u - step != u)
        done = done | (residual <= _RESIDUAL) | (still == 0)
        previous = tl.where(done, previous, residual)
        u = tl.where(done, u, u - step)
    b = 1.0 / u
    scale = 1.0 / total
    for start in range(0, d, WIDE):
        here = columns + start
        mask = keep & (here < d)
        _w, q = _weights(
            z_ptr, starts, here, mask, top[:, None], b[:, None], gamma[:, None], LINEAR
        )
        p = (q * scale[:, None]).to(tl.float32)
        tl.store(p_ptr + starts + here, rounded(p, p_ptr.dtype.element_ty), mask=mask)
