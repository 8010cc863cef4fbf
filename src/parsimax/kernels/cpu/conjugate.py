"""Rows of a Fenchel-Young loss: probabilities, the gap Omega*(z) - s max(z) and the target's lag.

With y = z - max(z) the gap is <p, y> - Omega(p) for p = argmax, plus what Omega is at a one-hot
vector for the mappings onto the simplex: there it is at least 0, and 0 exactly when p is one-hot.
Nothing here depends on the size of the scores, only on their differences. Sums are kept in
float64. The rows are solved a few at a time, so that they are still in the cache when summed.
"""

from __future__ import annotations

import math

import numpy as np

from .budget import budget_forward
from .entmax import entmax_rows, sparsegen_forward, workspace
from .jit import kernel, reduction
from .normmax import normmax_forward
from .rows import BLOCK
from .scalar import (
    block_above,
    cast,
    decay,
    excess,
    exp,
    log,
    lowest_bit,
    ordered,
    unordered,
)

_TOGETHER = 1 << 15  # scores solved before they are summed


@kernel
def _highest(z):
    top = ordered(z[0])
    for i in range(z.size):
        top = max(top, ordered(z[i]))
    return unordered(top, z[0])


@kernel
def _settle(row, z, p, index, gap, lag, tops):
    """Maximum and lag of the target; the gap too where it is no sum. Whether one is needed."""
    top = _highest(z[row])
    if p[row, 0] != p[row, 0]:
        tops[row], gap[row] = 0.0, np.nan
        needed = False
    elif top == -np.inf:
        tops[row], gap[row] = 0.0, 0.0
        needed = False
    else:
        tops[row] = top
        needed = True
    lag[row] = tops[row] - np.float64(z[row, index[row]]) if index.size > 0 else 0.0
    return needed


@reduction
def _inner(z, p, top):
    """<p, z - top>, where 0 times infinity is 0."""
    zero = cast(0.0, top)
    total = 0.0
    for i in range(p.size):
        y = z[i] - top if p[i] > zero else zero
        total += np.float64(p[i] * y)
    return total


# --- entmax -------------------------------------------------------------------------------------


@kernel
def entmax_gap(row, z, alpha, index, p, gap, lag, tops):
    """Gap, lag and top of a solved row: gap = (beta <p, y> + t) / alpha.

    Here t >= 0 is such that p = [1 + beta (y - t)]_+^(1/beta). On the support p^alpha =
    p (1 + beta (y - t)), which turns the entropy into <p, y> and t; and y is 0 at the largest p,
    which gives t = (1 - p_max^beta) / beta. So there are no powers to take but that one.
    """
    if _settle(row, z, p, index, gap, lag, tops):
        beta = alpha - 1.0
        minus_log = max(-math.log(np.float64(_highest(p[row]))), 0.0)
        t = minus_log * decay(beta * minus_log)
        inner = _inner(z[row], p[row], cast(tops[row], z[row, 0]))
        gap[row] = max((beta * inner + t) / alpha, 0.0)


@kernel
def entmax_conjugate(start, stop, z, alphas, index, p, gap, lag, tops):
    """Solve rows ``start`` to ``stop`` into ``p``; ``gap``, ``lag`` and ``tops`` a row each.

    ``lag`` is max(z) - z[index], or 0 where ``index`` has size 0. A row with nothing allowed has
    gap 0 and ``tops`` 0; its lag is infinite, as that of any target that is not allowed.
    """
    heads, y, where = workspace(z)
    for row in range(start, stop):
        entmax_rows(row, row + 1, z, alphas, p, heads, y, where)
        entmax_gap(row, z, alphas[row if alphas.size > 1 else 0], index, p, gap, lag, tops)


@kernel
def _steepness(v):
    """``(1 - (1 + v) e**-v) / v**2`` for v >= 0, without cancellation or overflow."""
    one = cast(1.0, v)
    if v < one:
        return exp(-v) * excess(v)
    return (one - (one + v) * exp(-v)) / (v * v)


@kernel
def _domega_term(p, beta, inverse):
    """p m (m s(beta m) + d(beta m) / alpha) / alpha for m = -log p and ``inverse`` = 1 / alpha.

    Here d(v) = (1 - e^-v) / v and s(v) = (1 - (1 + v) e^-v) / v^2.
    """
    tiny = cast(1.2e-38, p)
    m = -log(p if p > tiny else tiny)
    return p * m * (m * _steepness(beta * m) + decay(beta * m) * inverse) * inverse


@kernel
def domega_row(p, alpha):
    """dOmega/dalpha at fixed p: a sum over the support."""
    if p[0] != p[0]:
        return np.nan
    zero = cast(0.0, p[0])
    beta, inverse = cast(alpha - 1.0, zero), cast(1.0 / alpha, zero)
    full = p.size // BLOCK * BLOCK
    total = 0.0
    for start in range(0, full, BLOCK):
        hits = block_above(p, start, zero)
        while hits != 0:
            total += np.float64(_domega_term(p[start + lowest_bit(hits)], beta, inverse))
            hits &= hits - 1
    for i in range(full, p.size):
        if p[i] > zero:
            total += np.float64(_domega_term(p[i], beta, inverse))
    return total


@kernel
def entmax_domega(start, stop, p, alphas, out):
    """:func:`domega_row` of rows ``start`` to ``stop``."""
    for row in range(start, stop):
        out[row] = domega_row(p[row], alphas[row if alphas.size > 1 else 0])


# --- the other mappings ---------------------------------------------------------------------------


@reduction
def _squares(z, p, top, width):
    """<p, y> + width (p - p^2) / 2."""
    zero, one, half = cast(0.0, top), cast(1.0, top), cast(0.5 * width, top)
    total = 0.0
    for i in range(p.size):
        y = z[i] - top if p[i] > zero else zero
        total += np.float64(p[i] * (y + half * (one - p[i])))
    return total


@kernel
def sparsegen_conjugate(start, stop, z, lams, index, p, gap, lag, tops):
    """As :func:`entmax_conjugate`; Omega is (1 - lam) (|p|^2 - 1) / 2."""
    rows = max(1, _TOGETHER // z.shape[1])
    for first in range(start, stop, rows):
        last = min(first + rows, stop)
        sparsegen_forward(first, last, z, lams, p)
        for row in range(first, last):
            if _settle(row, z, p, index, gap, lag, tops):
                width = 1.0 - lams[row if lams.size > 1 else 0]
                gap[row] = max(_squares(z[row], p[row], cast(tops[row], z[row, 0]), width), 0.0)


@reduction
def _powers(p, order):
    total = 0.0
    for i in range(p.size):
        if p[i] > 0.0:
            total += np.float64(p[i]) ** order
    return total


@kernel
def normmax_conjugate(start, stop, z, alphas, index, p, gap, lag, tops):
    """As :func:`entmax_conjugate`; Omega is the alpha-norm, 1 at a one-hot vector."""
    rows = max(1, _TOGETHER // z.shape[1])
    for first in range(start, stop, rows):
        last = min(first + rows, stop)
        normmax_forward(first, last, z, alphas, p)
        for row in range(first, last):
            if _settle(row, z, p, index, gap, lag, tops):
                alpha = alphas[row if alphas.size > 1 else 0]
                norm = _powers(p[row], alpha) ** (1.0 / alpha)
                total = _inner(z[row], p[row], cast(tops[row], z[row, 0])) + (1.0 - norm)
                gap[row] = max(total, 0.0)


@kernel
def budget_conjugate(start, stop, z, budgets, index, p, gap, lag, tops):
    """As :func:`entmax_conjugate`; Omega is |p|^2 / 2, and the gap may be negative unless k = 1."""
    rows = max(1, _TOGETHER // z.shape[1])
    for first in range(start, stop, rows):
        last = min(first + rows, stop)
        budget_forward(first, last, z, budgets, p)
        for row in range(first, last):
            if _settle(row, z, p, index, gap, lag, tops):
                k = budgets[row if budgets.size > 1 else 0]
                linear = _inner(z[row], p[row], cast(tops[row], z[row, 0]))
                total = linear + 0.5 * (k - _powers(p[row], 2.0))
                gap[row] = max(total, 0.0) if k == 1.0 else total


# --- backward -----------------------------------------------------------------------------------


@kernel
def loss_backward(start, stop, p, g, index, glag, out):
    """``out = g p - glag e_index``; where g = 0, p is not read: an ignored NaN stays ignored."""
    for row in range(start, stop):
        scale = cast(g[row], p[row, 0])
        if g[row] == 0.0:
            out[row, :] = 0.0
        else:
            for i in range(p.shape[1]):
                out[row, i] = p[row, i] * scale
        if index.size > 0:
            target = index[row]
            kept = np.float64(p[row, target]) * g[row] if g[row] != 0.0 else 0.0
            out[row, target] = kept - glag[row]


# --- dense targets ------------------------------------------------------------------------------


@kernel
def dense_lag(start, stop, z, tops, a, lag, total):
    """``lag`` = sum_c a_c (top - z_c), ``total`` = sum_c a_c; ``a`` has one row, or all."""
    for row in range(start, stop):
        lag[row], total[row] = _lag_sums(z[row], tops[row], a[row if len(a) > 1 else 0])


@reduction
def _lag_sums(z, top, a):
    lag, total = 0.0, 0.0
    for i in range(z.size):
        weight = np.float64(a[i])
        behind = top - np.float64(z[i]) if weight != 0.0 else 0.0
        lag += weight * behind
        total += weight
    return lag, total
