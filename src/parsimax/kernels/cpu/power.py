"""Rows of the form p proportional to (1 + b y)_+^gamma: entmax of any alpha, and normmax.

With y = z - max(z) <= 0 the largest entry has weight one, as in a softmax, so the output is
divided by its own sum and loses nothing to rounding however close alpha is to 1. The base
1 + b y is what cancels, near the threshold: b is kept in two parts and the product is formed by
fused multiply-add, so the base keeps its relative precision.
"""

from __future__ import annotations

import math

import numpy as np

from .jit import kernel, reduction
from .rows import BLOCK, NOWHERE, gather, spread
from .scalar import cast, exp, fma, log

_ENOUGH = 3e-4  # residual from which one more quadratically convergent step is enough


@kernel
def _base(y, high, low):
    """(1 + b y, what rounding took from it) for b = high + low."""
    one, half, zero = cast(1.0, y), cast(0.5, y), cast(0.0, y)
    w = fma(high, y, one)
    lost = fma(high, y, one - w) if w > half else zero  # 1 - w is exact from one half on
    return w, fma(low, y, lost)


@kernel
def _weight(y, high, low, gamma):
    """(q = (1 + b y)_+^gamma, q / (1 + b y), q (1 + b y)), all 0 off the support."""
    zero, tiny = cast(0.0, y), cast(1e-30, y)
    w, rest = _base(y, high, low)
    total = w + rest
    inside = total > zero
    kept = total if total > tiny else tiny
    inverse = cast(1.0, y) / kept
    left = (w - total) + rest if inside else zero  # what the sum of the two did not hold
    q = exp(gamma * (log(kept) + left * inverse))
    q = q if inside else zero
    return q, q * inverse, q * kept


@reduction
def _sums(y, high, low, gamma):
    """Sums of q/w, q and q w, in the row's own precision: good enough to take a step by."""
    less, same, more = cast(0.0, high), cast(0.0, high), cast(0.0, high)
    for i in range(y.size):
        q, divided, multiplied = _weight(y[i], high, low, gamma)
        less += divided
        same += q
        more += multiplied
    return np.float64(less), np.float64(same), np.float64(more)


@reduction
def _write(y, high, low, gamma, q):
    """The same sums in float64, and the weights themselves into ``q``."""
    less, same, more = 0.0, 0.0, 0.0
    for i in range(y.size):
        v, divided, multiplied = _weight(y[i], high, low, gamma)
        less += np.float64(divided)
        same += np.float64(v)
        more += np.float64(multiplied)
        q[i] = v
    return less, same, more


@kernel
def _step(t, beta, norm, less, same, more):
    """(residual, Newton step in t) from the three sums at t.

    entmax: u = 1 - beta t, b = beta / u, p = u^(1/beta) q, and the sum of p must be one.
    normmax: u = 1 - t = -tau, b = 1 / u, r = u (1 + b y), and the sum of r^(gamma+1) must be one.
    """
    if norm:
        order = 1.0 + 1.0 / beta
        log_u = math.log1p(-t)
        log_sum = math.log(more) + order * log_u
        total = math.exp(log_sum)
        slope = math.exp(log_u / beta) * same  # sum r^gamma
        return total - 1.0, -total * math.expm1(-log_sum / order) / slope
    log_top = math.log1p(-beta * t) / beta  # log of the largest probability
    log_sum = math.log(same) + log_top
    total = math.exp(log_sum)
    slope = math.exp(log_top * (1.0 - beta)) * less  # sum p^(1-beta)
    return total - 1.0, -total * math.expm1(-beta * log_sum) / beta / slope


@kernel
def _ratio(t, beta, norm, like):
    b = 1.0 / (1.0 - t) if norm else beta / (1.0 - beta * t)
    high = cast(b, like)
    return b, high, cast(b - np.float64(high), like)


@kernel
def _climb(y, t, beta, norm, slack):
    gamma = cast(1.0 / beta, y[0])
    for _ in range(64):
        _b, high, low = _ratio(t, beta, norm, y[0])
        less, same, more = _sums(y, high, low, gamma)
        residual, step = _step(t, beta, norm, less, same, more)
        if not residual > 0.0 or t + step == t:
            return t
        t += step
        if residual <= slack:
            return t
    return t


@kernel
def solve_power(z, top, tops, blocks, beta, norm, y, where, p):
    """One row of entmax (``norm`` false) or normmax (true) with alpha = 1 + beta."""
    if beta > 1.0 and not norm:
        _solve_steep(z, top, beta, p)
        return
    single = y.itemsize == 4
    tolerance = 4e-7 if single else 2e-14
    t = 0.0
    if z.size > 2 * BLOCK:
        head = y[:blocks]
        for j in range(blocks):
            head[j] = max(tops[j] - top, cast(NOWHERE, top))
        t = _climb(head, t, beta, norm, 1e-3)
        t -= 1e-6 * t
    b, high, low = _ratio(t, beta, norm, top)
    size, padded = gather(z, top, tops, blocks, -1.0 / b * (1.0 + 1e-6), y, where)
    kept = y[:padded]
    gamma = cast(1.0 / beta, top)
    t = _climb(kept, t, beta, norm, _ENOUGH)
    q = p[: kept.size]
    previous = np.inf
    scale = 1.0
    for _ in range(64):
        b, high, low = _ratio(t, beta, norm, top)
        less, same, more = _write(kept, high, low, gamma, q)
        scale = 1.0 / same
        residual, step = _step(t, beta, norm, less, same, more)
        # stop on the residual of what was written, or when rounding lets it shrink no further
        if abs(residual) <= tolerance:
            break
        if abs(residual) >= previous or t + step == t:
            # a step that t cannot hold still moves b, whose slope in t is b^2, in its second part
            _, same, _ = _write(kept, high, low + cast(b * b * step, top), gamma, q)
            scale = 1.0 / same
            break
        previous = abs(residual)
        t += step
    if size < p.size:
        kept[:] = q
        spread(y, size, where, cast(scale, top), p)
    else:
        p *= cast(scale, top)


@kernel
def _solve_steep(z, top, beta, p):
    """entmax with alpha > 2, in float64.

    There p has no bound on its slope next to the threshold, so the threshold is not sought among
    the scores: the unknown is the smallest probability u, of the lowest score z_0 that receives
    any. Then p_i = (beta (z_i - z_0) + u^beta)^(1/beta), whose sum is convex in u, and Newton comes
    down to the root from u = 1/size without passing it. z_0 is the lowest score that may itself be
    the threshold without those above it using up all the mass.
    """
    gamma = 1.0 / beta
    reach = np.float64(top) - gamma
    x = np.empty(z.size)
    size = 0
    for i in range(z.size):
        if np.float64(z[i]) > reach or z[i] == top:
            x[size] = z[i]
            size += 1
    x = x[:size]
    x.sort()
    first, last = 0, size - 1
    while first < last:
        middle = (first + last) // 2
        total = 0.0
        for i in range(middle, size):
            total += (beta * (x[i] - x[middle])) ** gamma
        if total < 1.0:
            last = middle
        else:
            first = middle + 1
    lowest = x[first]
    u = 1.0 / (size - first)
    while True:
        power = u**beta
        total, slope = 0.0, 0.0
        for i in range(first, size):
            v = _from_lowest(x[i] - lowest, beta, gamma, u, power)
            total += v
            slope += (u / v) ** (beta - 1.0)
        step = (total - 1.0) / slope
        if not step > 1e-16 * u:
            break
        u -= step
    power = u**beta
    for i in range(z.size):
        p[i] = 0.0
        if z[i] >= lowest:
            p[i] = _from_lowest(np.float64(z[i]) - lowest, beta, gamma, u, power)


@kernel
def _from_lowest(distance, beta, gamma, u, power):
    """(beta distance + u^beta)^(1/beta), which is u at 0 even where u^beta underflows."""
    return (beta * distance + power) ** gamma if distance > 0.0 else u
