"""The lowest score of a support and its probability, for rows of logits with alpha above 2.

Sums run over the few scores that a program has kept, or over the whole row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .linear_row import load

_TINY = tl.constexpr(1e-30)
_MOST = tl.constexpr(200)  # steps: a net, not what stops it


@triton.jit
def power(y, c, e, low, bar, beta):
    """p of a score: (beta (y - c) + e)^(1/beta), where e = low^beta; low at c, and 0 below ``bar``.

    What lies between ``bar`` and c is c itself with other last digits.
    """
    v = beta * (y - c)
    log_p = tl.where(v > 0.0, tl.log2(tl.maximum(v + e, _TINY)) / beta, tl.log2(low))
    return tl.where(y >= bar, tl.exp2(log_p), 0.0)  # e may have underflowed, low has not


@triton.jit
def _mass_above(y, c, beta):
    v = beta * (y - c)
    return tl.where(v > 0.0, tl.exp2(tl.log2(tl.maximum(v, _TINY)) / beta), 0.0)


@triton.jit
def _mass(
    few, row, bias, width, top, c, beta,
    SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(mass if c were the threshold, the lowest score above it)."""
    if SWEEP:
        lanes = tl.arange(0, BLOCK)
        mass = tl.zeros([BLOCK], tl.float32)
        found = tl.zeros([BLOCK], tl.float32)
        for k in range(0, width, BLOCK):
            y = load(row, bias, k + lanes, width, BIAS) - top
            mass += _mass_above(y, c, beta)
            found = tl.minimum(found, tl.where(y > c, y, 0.0))
        return tl.sum(mass, 0), tl.min(found, 0)
    else:
        return tl.sum(_mass_above(few, c, beta), 0), tl.min(tl.where(few > c, few, 0.0), 0)


@triton.jit
def _slopes(y, c, e, low, beta):
    p = power(y, c, e, low, c, beta)
    inside = p > 0.0
    log_p = tl.log2(tl.where(inside, p, 1.0))
    slope = tl.where(inside, tl.exp2((beta - 1.0) * (tl.log2(low) - log_p)), 0.0)
    return p, slope, tl.where(inside, 1.0, 0.0)


@triton.jit
def _sums(
    few, row, bias, width, top, c, e, low, beta,
    SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(sum of p, its derivative in low, size of the support)."""
    if SWEEP:
        lanes = tl.arange(0, BLOCK)
        p = tl.zeros([BLOCK], tl.float32)
        slope = tl.zeros([BLOCK], tl.float32)
        one = tl.zeros([BLOCK], tl.float32)
        for k in range(0, width, BLOCK):
            y = load(row, bias, k + lanes, width, BIAS) - top
            p_here, slope_here, one_here = _slopes(y, c, e, low, beta)
            p += p_here
            slope += slope_here
            one += one_here
        return tl.sum(p, 0), tl.sum(slope, 0), tl.sum(one, 0)
    else:
        p, slope, one = _slopes(few, c, e, low, beta)
        return tl.sum(p, 0), tl.sum(slope, 0), tl.sum(one, 0)


@triton.jit
def descend(
    few, row, bias, width, top, beta, active,
    SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(lowest score of the support relative to ``top``, its probability).

    Bisection finds the score; then Newton comes down to the probability without passing it.
    """
    floor = -1.0 / beta
    ceiling = tl.full([], 0.0, tl.float32)
    _s, lowest = _mass(few, row, bias, width, top, floor, beta, SWEEP, BIAS, BLOCK)
    count = 0
    going = active & (lowest < ceiling)
    while going:
        middle = 0.5 * (floor + ceiling)
        s, _found = _mass(few, row, bias, width, top, middle, beta, SWEEP, BIAS, BLOCK)
        collapsed = (middle <= floor) | (middle >= ceiling)
        floor = tl.where(s >= 1.0, middle, floor)
        ceiling = tl.where(s >= 1.0, ceiling, middle)
        _s, lowest = _mass(few, row, bias, width, top, floor, beta, SWEEP, BIAS, BLOCK)
        count += 1
        going = (lowest < ceiling) & (count < _MOST) & (collapsed == 0)
    _p, _slope, size = _sums(few, row, bias, width, top, lowest, 0.0, 1.0, beta, SWEEP, BIAS, BLOCK)
    low = 1.0 / tl.maximum(size, 1.0)
    count = 0
    going = active
    while going:
        e = tl.exp2(beta * tl.log2(low))
        s, slope, _size = _sums(
            few, row, bias, width, top, lowest, e, low, beta, SWEEP, BIAS, BLOCK
        )
        step = (s - 1.0) / slope
        more = step > 1e-6 * low
        low = tl.where(more, tl.maximum(low - step, _TINY), low)
        count += 1
        going = more & (count < _MOST)
    return lowest, low
