"""Rows of probabilities with bounds: constrained sparsemax and constrained softmax."""

from __future__ import annotations

import numpy as np

from .jit import kernel, reduction


@kernel
def _load(z, upper, lower, y, high, low, where, slack):
    """Copy what is allowed, relative to the largest score; return (count, solvable, NaN).

    Lower bounds have size 0 where there are none.
    """
    top, nan, count = -np.inf, False, 0
    most, least, crossed = 0.0, 0.0, False
    for i in range(z.size):
        x = np.float64(z[i])
        nan = nan or x != x
        top = max(top, x)
        if x > -np.inf:
            u = min(np.float64(upper[i]), 1.0) if upper[i] == upper[i] else np.nan
            v = np.float64(lower[i]) if lower.size > 0 else 0.0
            y[count], high[count], low[count], where[count] = x, u, v, i
            most += u
            least += v
            crossed = crossed or not 0.0 <= v <= u
            count += 1
    nan = nan or top == np.inf
    for k in range(count):
        y[k] -= top
    return count, not crossed and most >= 1.0 - slack and least <= 1.0 + slack, nan


@reduction
def _clipped(y, high, low, tau):
    """(sum of clip(y - tau, low, high), entries strictly between)."""
    total, free = 0.0, 0.0
    for i in range(y.size):
        v = y[i] - tau
        total += min(max(v, low[i]), high[i])
        free += 1.0 if low[i] < v < high[i] else 0.0
    return total, free


@kernel
def _level(y, high, low):
    """tau with sum(clip(y - tau, low, high)) = 1, by Newton's method kept in a bracket."""
    left, right = np.inf, -np.inf
    for i in range(y.size):
        left = min(left, y[i] - high[i])
        right = max(right, y[i] - low[i])
    tau = max(left, -1.0)  # the largest score is 0: where no upper bound is met, tau is above -1
    for _ in range(300):
        total, free = _clipped(y, high, low, tau)
        if total > 1.0:
            left = tau
        elif total < 1.0:
            right = tau
        else:
            return tau
        better = tau + (total - 1.0) / free if free > 0.0 else left
        if not left < better < right:
            better = 0.5 * (left + right)
        if better == tau or not left < better < right:
            return tau if total > 1.0 else left
        tau = better
    return tau


@kernel
def constrained_sparsemax_forward(start, stop, z, upper, lower, slack, p):
    """A row whose bounds have no solution gives NaN."""
    d = z.shape[1]
    y, high, low, where = np.empty(d), np.empty(d), np.empty(d), np.empty(d, np.int64)
    none = np.empty(0, z.dtype)
    for row in range(start, stop):
        floor = lower[row] if lower.size > 0 else none
        count, solvable, nan = _load(z[row], upper[row], floor, y, high, low, where, slack)
        pr = p[row]
        pr[:] = np.nan if nan or (count > 0 and not solvable) else 0.0
        if nan or count == 0 or not solvable:
            continue
        tau = _level(y[:count], high[:count], low[:count])
        # once more, relative to a free entry: there the others lie near, and lose no digits
        pivot, free, near, bound = tau, 0.0, 0.0, 0.0
        for k in range(count):
            v = y[k] - tau
            if low[k] < v < high[k]:
                if free == 0.0:
                    pivot = y[k]
                free += 1.0
                near += y[k] - pivot
            else:
                bound += min(max(v, low[k]), high[k])
        level = (near - (1.0 - bound)) / free if free > 0.0 else 0.0
        for k in range(count):
            pr[where[k]] = min(max((y[k] - pivot) - level, low[k]), high[k])


@kernel
def _middle(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@kernel
def _share(y, high, reached, places, count, bound):
    """Find the entries at their bounds; return (sum of bounds, highest free score, mass of free).

    An entry is at its bound where c lies below ``reached``, z - log u. Divide the entries that are
    not decided yet at one of these numbers, see on which side c lies, and decide one half: a free
    entry weighs exp(z - c) <= u there, so nothing overflows, however far apart the scores are.
    """
    first, end = 0, count
    taken = 0.0
    top, mass = -np.inf, 0.0  # the free entries weigh mass * exp(top)
    while first < end:
        at = _middle(
            reached[places[first]], reached[places[(first + end) // 2]], reached[places[end - 1]]
        )
        # those above first, those at it in the middle, those below last
        above, k, below = first, first, end
        over, under = 0.0, 0.0
        while k < below:
            i = places[k]
            if reached[i] > at:
                over += high[i]
                places[k], places[above] = places[above], i
                above += 1
                k += 1
            elif reached[i] < at:
                under += np.exp(y[i] - at)
                below -= 1
                places[k], places[below] = places[below], i
            else:
                k += 1
        level = 0.0
        for k in range(above, below):
            level += np.exp(y[places[k]] - at)
        free = mass * np.exp(top - at) if mass > 0.0 else 0.0
        if taken + over + level + under + free >= 1.0:
            for k in range(above, end):  # c lies here or above: these are free
                x = y[places[k]]
                if x > top:
                    mass = mass * np.exp(top - x) + 1.0 if mass > 0.0 else 1.0
                    top = x
                else:
                    mass += np.exp(x - top)
            end = above
        else:
            for k in range(first, below):
                taken += high[places[k]]
                bound[places[k]] = True
            first = below
    return taken, top, mass


@kernel
def constrained_softmax_forward(start, stop, z, upper, lower, slack, p):
    """A row whose bounds have no solution gives NaN; lower bounds are not looked at."""
    d = z.shape[1]
    y, high, low, where = np.empty(d), np.empty(d), np.empty(d), np.empty(d, np.int64)
    reached, places, bound = np.empty(d), np.empty(d, np.int64), np.empty(d, np.bool_)
    none = np.empty(0, z.dtype)
    for row in range(start, stop):
        count, solvable, nan = _load(z[row], upper[row], none, y, high, low, where, slack)
        pr = p[row]
        pr[:] = np.nan if nan or (count > 0 and not solvable) else 0.0
        if nan or count == 0 or not solvable:
            continue
        some = 0
        for k in range(count):
            if high[k] > 0.0:  # the others receive nothing
                reached[k] = y[k] - np.log(high[k])
                bound[k] = False
                places[some] = k
                some += 1
        taken, top, mass = _share(y, high, reached, places, some, bound)
        left = max(1.0 - taken, 0.0)
        for k in range(count):
            if high[k] > 0.0:
                share = high[k]
                if not bound[k]:
                    share = min(left * np.exp(y[k] - top) / mass, high[k])
                pr[where[k]] = share


@kernel
def box_backward(start, stop, p, g, upper, lower, dense, gz, gu, gl):
    """Gradients in scores and bounds; ``gu`` and ``gl`` have size 0 where they are not wanted.

    What is free moves in proportion to p where ``dense``, else all alike. Where nothing is, those
    at their upper bounds make up for a change, else those at positive lower ones.
    """
    for row in range(start, stop):
        pr, gr, ur = p[row], g[row], upper[row]
        total, against = 0.0, 0.0
        tops, of_tops, floors, of_floors = 0.0, 0.0, 0.0, 0.0
        for i in range(pr.size):
            x, v = np.float64(pr[i]), np.float64(gr[i])
            if pr[i] >= ur[i] and ur[i] < 1.0:
                tops += 1.0
                of_tops += v
            elif not pr[i] <= (lower[row, i] if lower.size > 0 else 0.0):
                w = x if dense else 1.0
                total += w
                against += w * v
            elif x > 0.0:
                floors += 1.0
                of_floors += v
        mean = 0.0
        if total > 0.0:
            mean = against / total
        elif tops > 0.0:
            mean = of_tops / tops
        elif floors > 0.0:
            mean = of_floors / floors
        for i in range(pr.size):
            x, change = np.float64(pr[i]), np.float64(gr[i]) - mean
            above = pr[i] >= ur[i] and ur[i] < 1.0
            below = not above and pr[i] <= (lower[row, i] if lower.size > 0 else 0.0)
            if x != x:
                gz[row, i] = np.nan
            else:
                gz[row, i] = 0.0 if above or below else (x * change if dense else change)
            if gu.size > 0:
                gu[row, i] = change if above else 0.0
            if gl.size > 0:
                gl[row, i] = change if below else 0.0
