"""Rows of budget: p = clip(z - tau, 0, 1) with sum k."""

from __future__ import annotations

import numpy as np

from .jit import kernel, reduction


@kernel
def _relative(x, pivot, tau):
    """``x - pivot - tau`` in that order: compiled without leave to reorder."""
    return (np.float64(x) - pivot) - tau


@reduction
def _clipped(z, pivot, tau):
    """(sum of clip(z - pivot - tau, 0, 1), entries strictly between)."""
    total, free = 0.0, 0.0
    for i in range(z.size):
        v = _relative(z[i], pivot, tau)
        inside = 0.0 < v < 1.0
        total += v if inside else (1.0 if v >= 1.0 else 0.0)
        free += 1.0 if inside else 0.0
    return total, free


@kernel
def _threshold(z, kept, count, k):
    """The ceil(k)-th largest score, and tau relative to it, which lies between -1 and 0.

    That bounds a Newton iteration; and next to the pivot tau keeps its digits however large the
    scores are.
    """
    m = int(np.ceil(k))
    pivot = np.float64(np.partition(kept[:count], count - m)[count - m])
    low, high = -1.0, 0.0
    if _clipped(z, pivot, low)[0] <= k:  # a whole k, and nothing between the bounds
        return pivot, low
    tau = -0.5
    for _ in range(200):
        total, free = _clipped(z, pivot, tau)
        if total > k:
            low = tau
        elif total < k:
            high = tau
        else:
            return pivot, tau
        better = tau + (total - k) / free if free > 0.0 else low
        if not low < better < high:
            better = 0.5 * (low + high)
        if better == tau or not low < better < high:
            return pivot, better
        tau = better
    return pivot, tau


@kernel
def budget_forward(start, stop, z, budgets, p):
    """A row with fewer allowed entries than k has no solution and gives NaN."""
    d = z.shape[1]
    kept = np.empty(d, z.dtype)
    for row in range(start, stop):
        k = budgets[row if budgets.size > 1 else 0]
        zr, pr = z[row], p[row]
        count, bad = 0, False
        for i in range(d):
            x = zr[i]
            bad = bad or x != x or x == np.inf
            kept[count] = x
            count += 1 if x > -np.inf else 0
            if count == d:
                break
        if count == 0 and not bad:
            pr[:] = 0.0
        elif bad or not (0.0 <= k <= count):
            pr[:] = np.nan
        elif k == 0.0:
            pr[:] = 0.0
        else:
            pivot, tau = _threshold(zr, kept, count, k)
            for i in range(d):
                pr[i] = min(max(_relative(zr[i], pivot, tau), 0.0), 1.0)


@kernel
def budget_backward(start, stop, p, g, budgets, out, dbudgets):
    """Only entries strictly between the bounds move; together they keep the sum."""
    for row in range(start, stop):
        pr, gr, s = p[row], g[row], out[row]
        free, against = 0.0, 0.0
        for i in range(pr.size):
            if not (pr[i] <= 0.0 or pr[i] >= 1.0):
                free += 1.0
                against += np.float64(gr[i]) if pr[i] > 0.0 else np.nan  # a row of NaN
        mean = against / free if free > 0.0 else 0.0
        for i in range(pr.size):
            s[i] = 0.0 if pr[i] <= 0.0 or pr[i] >= 1.0 else np.float64(gr[i]) - mean
        if dbudgets.size > 0:
            dbudgets[row] = mean
