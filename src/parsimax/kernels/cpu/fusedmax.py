"""Rows of fusedmax: the proximal operator of total variation, then the simplex.

Total variation by dynamic programming (Johnson 2013). The cost of what lies to the left of an
entry, as a function of its value, has a derivative made of straight pieces; the next entry adds a
line to it, and the penalty clips it to [-lam, lam]. The knots between the pieces are kept in order,
and each is added and removed once: linear time, whatever the row.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel

_MASKED = -1.0  # as in mappings.fusedmax


@kernel
def _clips(y, count, lam, below, above, knots, slopes, offsets):
    """The range that the penalty leaves each entry's left neighbour; return the last value.

    ``below[i]`` and ``above[i]`` are where the derivative up to entry i is -lam and lam.
    """
    left = right = count  # the knots from left to right, both included, lie in the middle
    below[0], above[0] = y[0] - lam, y[0] + lam
    knots[left], slopes[left], offsets[left] = below[0], 1.0, lam - y[0]
    right = left + 1
    knots[right], slopes[right], offsets[right] = above[0], -1.0, lam + y[0]
    for i in range(1, count):
        slope, offset = 1.0, -lam - y[i]
        while left <= right and slope * knots[left] + offset <= -lam:
            slope += slopes[left]
            offset += offsets[left]
            left += 1
        below[i] = (-lam - offset) / slope
        end, shift = 1.0, lam - y[i]
        while right >= left and end * knots[right] + shift >= lam:
            end -= slopes[right]
            shift -= offsets[right]
            right -= 1
        above[i] = max((lam - shift) / end, below[i])
        left -= 1
        knots[left], slopes[left], offsets[left] = below[i], slope, offset + lam
        right += 1
        knots[right], slopes[right], offsets[right] = above[i], -end, lam - shift
    # where the derivative of the whole is 0: it is -lam at the first knot, and grows
    slope, offset = 0.0, -lam
    while left <= right and slope * knots[left] + offset <= 0.0:
        slope += slopes[left]
        offset += offsets[left]
        left += 1
    return -offset / slope if slope > 0.0 else below[count - 1]


@kernel
def _runs(x, count, last, lam, below, above, first, runs, begins, ends, values):
    """From the last entry back: runs of equal values, added to the ``runs`` there are already.

    Entry 0 has number ``first`` there. Values are means of scores, moved by what the neighbours
    pull, which loses less than what was carried along the row.
    """
    level = last
    end, total, pull = count, 0.0, 0.0
    for i in range(count - 1, -1, -1):
        if i < count - 1:
            moved = min(max(level, below[i]), above[i])
            if moved != level:
                towards = lam if moved > level else -lam  # what lies to the left pulls
                begins[runs], ends[runs] = first + i + 1, first + end
                values[runs] = (total + pull + towards) / (end - i - 1)
                runs += 1
                level = moved
                end, total, pull = i + 1, 0.0, -towards
        total += x[i]
    begins[runs], ends[runs], values[runs] = first, first + end, (total + pull) / end
    return runs + 1


@kernel
def _threshold(begins, ends, values, runs):
    """(tau, largest value): the runs' values minus tau, where positive, sum to one.

    Newton from the left, relative to the largest value, which ends where the support stays.
    """
    top = values[0]
    for k in range(1, runs):
        top = max(top, values[k])
    tau = -1.0
    while True:
        mass, size = 0.0, 0
        for k in range(runs):
            lag = values[k] - top
            if lag > tau:
                mass += lag * (ends[k] - begins[k])
                size += ends[k] - begins[k]
        better = (mass - 1.0) / size
        if not better > tau:
            return tau, top
        tau = better


@kernel
def _look(z):
    """(largest score, whether one is NaN, whether one is masked)."""
    top, nan, masked = -np.inf, 0, 0
    for i in range(z.size):
        x = np.float64(z[i])
        top = max(top, x)
        nan |= 1 if x != x else 0
        masked |= 1 if x == -np.inf else 0
    return top, nan != 0, masked != 0


@kernel
def fusedmax_forward(start, stop, z, lams, p):
    """Probabilities, and ``_MASKED`` where a score is -inf.

    The largest smoothed value is at least the largest score minus 2 lam, and what lies 1 below it
    receives nothing. A score another 2 lam below that is not lifted above it by its neighbours,
    whatever they are: it costs more than what two steps less may save. So such scores cut the row
    into pieces that know nothing of each other but that there is something lower between them.
    """
    d = z.shape[1]
    x, below, above = np.empty(d), np.empty(d), np.empty(d)
    knots, slopes, offsets = np.empty(2 * d + 2), np.empty(2 * d + 2), np.empty(2 * d + 2)
    begins, ends, values = np.empty(d, np.int64), np.empty(d, np.int64), np.empty(d)
    where = np.empty(d, np.int64)
    for row in range(start, stop):
        lam = lams[row if lams.size > 1 else 0]
        zr, pr = z[row], p[row]
        top, nan, masked = _look(zr)
        if nan or top == np.inf or (top > -np.inf and not (0.0 <= lam < np.inf)):
            pr[:] = np.nan
            continue
        pr[:] = 0.0
        if top == -np.inf:
            continue
        bar = -4.0 * lam - 1.0 - 1e-9
        runs, size, first = 0, 0, 0  # of the piece at hand, which begins at number ``first``
        lower = False  # whether something lower lies to its left
        for i in range(d + 1):
            if i < d:
                if masked and zr[i] == -np.inf:
                    pr[i] = _MASKED
                    continue
                y = np.float64(zr[i]) - top
                if y >= bar:
                    where[first + size] = i
                    x[size] = y
                    size += 1
                    continue
            if size > 0:
                if lower:
                    x[0] -= lam
                if i < d:
                    x[size - 1] -= lam
                last = _clips(x, size, lam, below, above, knots, slopes, offsets)
                runs = _runs(x, size, last, lam, below, above, first, runs, begins, ends, values)
                first += size
                size = 0
            lower = True
        tau, highest = _threshold(begins, ends, values, runs)
        for k in range(runs):
            share = (values[k] - highest) - tau
            if share > 0.0:
                for j in range(begins[k], ends[k]):
                    pr[where[j]] = share


@kernel
def fusedmax_backward(start, stop, p, g, lams, out, dlams):
    """Runs of equal neighbours move as one; all together keep the sum."""
    d = p.shape[1]
    for row in range(start, stop):
        pr, gr, s = p[row], g[row], out[row]
        if pr[0] != pr[0]:
            s[:] = np.nan
            if dlams.size > 0:
                dlams[row] = np.nan
            continue
        alone = lams[row if lams.size > 1 else 0] == 0.0
        total, size = 0.0, 0.0
        for i in range(d):
            if pr[i] > 0.0:
                total += np.float64(gr[i])
                size += 1.0
        mean = total / size if size > 0.0 else 0.0
        pulled = 0.0  # sum over runs of mean gradient times pull, and of pull
        pulls = 0.0
        i, before = 0, -1.0  # what stands to the left of a run: nothing
        while i < d:
            if pr[i] <= 0.0:
                s[i] = 0.0
                before = 0.0 if pr[i] == 0.0 else before
                i += 1
                continue
            value = pr[i]
            against, members, end, after = 0.0, 0.0, i, -1.0
            for j in range(i, d):
                if pr[j] == value:
                    against += np.float64(gr[j])
                    members += 1.0
                    end = j
                elif pr[j] >= 0.0:
                    after = pr[j]
                    break
            shared = against / members
            for j in range(i, end + 1):
                own = np.float64(gr[j]) if alone else shared
                s[j] = own - mean if pr[j] == value else 0.0
            pull = 0.0
            if before >= 0.0:
                pull += 1.0 if before > value else -1.0
            if after >= 0.0:
                pull += 1.0 if after > value else -1.0
            pulled += shared * pull
            pulls += pull
            before = np.float64(value)
            i = end + 1
        if dlams.size > 0:
            dlams[row] = pulled - mean * pulls
