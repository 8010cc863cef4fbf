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
from .rows import BLOCK, gather, spread
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
    """((1 + b y)_+^gamma, 1 / (1 + b y)), the latter 0 off the support."""
    zero, tiny = cast(0.0, y), cast(1e-30, y)
    w, rest = _base(y, high, low)
    inside = w + rest > zero
    kept = w if w > tiny else tiny
    inverse = cast(1.0, y) / kept
    q = exp(gamma * (log(kept) + rest * inverse))
    return (q if inside else zero), (inverse if inside else zero)


@kernel
def _positive(w):
    """``w``, or 0 where it is not positive: a masked score gives -inf, which times 0 is NaN."""
    return w if w > cast(0.0, w) else cast(0.0, w)


@reduction
def _sums(y, high, low, gamma):
    """Sums of q/w, q and q w, in the row's own precision: good enough to take a step by."""
    less, same, more = cast(0.0, high), cast(0.0, high), cast(0.0, high)
    for i in range(y.size):
        q, inverse = _weight(y[i], high, low, gamma)
        less += q * inverse
        same += q
        more += q * _positive(fma(high, y[i], cast(1.0, high)))
    return np.float64(less), np.float64(same), np.float64(more)


@reduction
def _write(y, high, low, gamma, q):
    """The same sums in float64, and the weights themselves into ``q``."""
    less, same, more = 0.0, 0.0, 0.0
    for i in range(y.size):
        v, inverse = _weight(y[i], high, low, gamma)
        less += np.float64(v * inverse)
        same += np.float64(v)
        more += np.float64(v * _positive(fma(high, y[i], cast(1.0, high))))
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
            head[j] = tops[j] - top
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
        if abs(residual) <= tolerance or abs(residual) >= previous:
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
    """entmax with alpha > 2, where the norm is no longer convex: bracketed, in float64.

    p = (beta (y - theta))_+^(1/beta) with theta in [-1/beta, -d^(-beta)/beta].
    """
    gamma = 1.0 / beta
    count = 0
    for i in range(z.size):
        if z[i] > -np.inf:
            count += 1
    low, high = -gamma, -gamma * float(count) ** -beta
    theta, total = low, 1.0
    for k in range(256):
        total, slope = 0.0, 0.0
        for i in range(z.size):
            r = beta * ((np.float64(z[i]) - np.float64(top)) - theta)
            if r > 0.0:
                v = r**gamma
                total += v
                slope += v / r
        if abs(total - 1.0) <= 1e-15 or not high - low > 1e-16 * -low:
            break
        if total > 1.0:
            low = theta
        else:
            high = theta
        better = theta + total * -math.expm1(-beta * math.log(total)) / beta / slope
        if k % 3 == 2 or not low < better < high:
            # thresholds span many orders of magnitude, so halve their logarithm
            better = -math.sqrt(low * high) if low < 4.0 * high else 0.5 * (low + high)
        if better == theta:
            break
        theta = better
    for i in range(z.size):
        r = beta * ((np.float64(z[i]) - np.float64(top)) - theta)
        p[i] = r**gamma / total if r > 0.0 else 0.0
