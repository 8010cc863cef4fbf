"""Roots of monotone functions in extended precision, the one tool that the row oracles share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# 64 bits of mantissa on x86; where a platform has no more than float64, everything still runs and
# the figures that the tests ask for leave room for it.
Real = np.longdouble
EPS = float(np.finfo(Real).eps)


def root_of_decreasing(f: Callable[[Real], Real], low: Real, high: Real) -> Real:
    """The zero of a decreasing ``f`` with f(low) >= 0 >= f(high), to the last bits of ``Real``.

    Regula falsi (Illinois) with a bisection whenever two steps did not halve the bracket, so that
    it ends whatever ``f`` is: no derivative, no start value, nothing that a solver might share.
    """
    low, high = Real(low), Real(high)
    at_low, at_high = f(low), f(high)
    if at_low <= 0:
        return low
    if at_high >= 0:
        return high
    widths = [high - low, high - low]
    side = 0
    for _ in range(400):
        width = high - low
        if width <= 2 * EPS * max(abs(low), abs(high)):
            break
        if width > widths[-2] / 2:
            middle = low + width / 2
        else:
            middle = low + width * (at_low / (at_low - at_high))
        if not low < middle < high:
            middle = low + width / 2
            if not low < middle < high:
                break
        widths.append(width)
        value = f(middle)
        if value == 0:
            return middle
        if value > 0:
            low, at_low = middle, value
            at_high = at_high / 2 if side > 0 else at_high
            side = 1
        else:
            high, at_high = middle, value
            at_low = at_low / 2 if side < 0 else at_low
            side = -1
    return low + (high - low) / 2


def on_allowed(
    solve: Callable[[np.ndarray], np.ndarray], z: np.ndarray, mass: float = 1.0
) -> np.ndarray:
    """Apply ``solve`` to the entries of a row that are not -inf; what the contract says elsewhere.

    NaN or +inf makes the whole row NaN, and a row with nothing allowed is zero.
    """
    z = np.asarray(z, dtype=Real)
    if np.isnan(z).any() or (z == np.inf).any():
        return np.full(z.shape, np.nan, dtype=Real)
    p = np.zeros(z.shape, dtype=Real)
    allowed = z > -np.inf
    if allowed.any() and mass > 0:
        p[allowed] = solve(z[allowed])
    return p
