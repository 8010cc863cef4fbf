"""The support of sparse rows in compressed form, and products with it.

Rows are stored one after the other: row r has its columns in ``where`` and its values in
``values`` from ``offsets[r]`` to ``offsets[r + 1]``. The last entry of a row that is not empty is
the target's, whether or not the target is in the support: a loss has a gradient there in any case.
"""

from __future__ import annotations

import numpy as np

from .conjugate import domega_row, entmax_gap
from .entmax import entmax_rows, workspace
from .jit import kernel, reduction
from .rows import BLOCK
from .scalar import bit_count, block_above, cast, lowest_bit


@reduction
def _weighted_lag(z, top, weights):
    """sum_c w_c (top - z_c), all w_c = 1 if there is one only; a class without weight adds 0."""
    total = 0.0
    for i in range(z.size):
        w = weights[i if weights.size > 1 else 0]
        lag = np.float64(top - z[i]) if w != 0.0 else 0.0
        total += w * lag
    return total


@kernel
def _count(p):
    """Entries that are not 0; NaN, which comes in whole rows, is not."""
    if p[0] != p[0]:
        return p.size
    zero = cast(0.0, p[0])
    full = p.size // BLOCK * BLOCK
    count = 0
    for start in range(0, full, BLOCK):
        count += bit_count(block_above(p, start, zero))
    for i in range(full, p.size):
        count += 1 if p[i] > zero else 0
    return count


@kernel
def solve_in_place(start, stop, z, alphas, index, used, weights, gap, lag, spread, change, counts):
    """Rows of scores become rows of probabilities; what a loss needs of them goes a row each.

    ``counts`` is the number of entries that are not 0. ``spread`` is left alone where ``weights``
    has size 0, and ``change``, the derivative of the gap in alpha, where it has size 0. Rows that
    are not ``used`` become zeros without being read.
    """
    p = np.empty((1, z.shape[1]), z.dtype)
    heads, y, where = workspace(z)
    top = np.empty(1)
    for row in range(start, stop):
        if not used[row]:
            z[row, :] = 0.0
            gap[row], lag[row], counts[row] = 0.0, 0.0, 0
            continue
        here = slice(row, row + 1)
        alpha = alphas[row if alphas.size > 1 else 0]
        entmax_rows(0, 1, z[here], np.full(1, alpha), p, heads, y, where)
        entmax_gap(0, z[here], alpha, index[here], p, gap[here], lag[here], top)
        if weights.size > 0:
            spread[row] = _weighted_lag(z[row], cast(top[0], z[row, 0]), weights)
        if change.size > 0:
            change[row] = -domega_row(p[0], alpha)
        counts[row] = _count(p[0])
        z[row, :] = p[0]


@kernel
def gather_support(start, stop, p, index, offsets, where, values):
    """Write the entries of ``p`` that are not 0 (NaN is not), then the target with value 0."""
    d = p.shape[1]
    full = d // BLOCK * BLOCK
    for row in range(start, stop):
        k, end = offsets[row], offsets[row + 1]
        if k == end:
            continue
        zero = cast(0.0, p[row, 0])
        nan = p[row, 0] != p[row, 0]
        for first in range(0, 0 if nan else full, BLOCK):
            hits = block_above(p[row], first, zero)
            while hits != 0:
                i = first + lowest_bit(hits)
                hits &= hits - 1
                where[k], values[k] = i, p[row, i]
                k += 1
        for i in range(0 if nan else full, d):
            if p[row, i] != zero:
                where[k], values[k] = i, p[row, i]
                k += 1
        where[k], values[k] = index[row], zero


@kernel
def scale_support(start, stop, offsets, values, scale, own, out):
    """``out = scale p - own e_target``, entry by entry."""
    for row in range(start, stop):
        first, end = offsets[row], offsets[row + 1]
        if first < end:
            for k in range(first, end - 1):
                out[k] = values[k] * cast(scale[row], values[k])
            out[end - 1] = -own[row]


@kernel
def transpose_support(offsets, where, values, starts, rows, turned):
    """The same entries column after column; ``starts`` comes as zeros."""
    for k in range(where.size):
        starts[where[k] + 1] += 1
    for column in range(starts.size - 1):
        starts[column + 1] += starts[column]
    for row in range(offsets.size - 1):
        for k in range(offsets[row], offsets[row + 1]):
            place = starts[where[k]]
            rows[place] = row
            turned[place] = values[k]
            starts[where[k]] = place + 1
    for column in range(starts.size - 1, 0, -1):  # each start has moved to its end: move back
        starts[column] = starts[column - 1]
    starts[0] = 0


@reduction
def _add_four(a, b, c, d, w, x, y, z, out):
    for j in range(out.size):
        out[j] += (a * w[j] + b * x[j]) + (c * y[j] + d * z[j])


@reduction
def _add_one(a, w, out):
    for j in range(out.size):
        out[j] += a * w[j]


@kernel
def support_product(start, stop, offsets, where, values, dense, out):
    """Add the product of rows ``start`` to ``stop`` with the matrix ``dense`` to ``out``.

    Four rows of ``dense`` at a time, so that ``out`` is read and written a quarter as often.
    """
    for row in range(start, stop):
        k, end = offsets[row], offsets[row + 1]
        while k + 4 <= end:
            _add_four(
                values[k],
                values[k + 1],
                values[k + 2],
                values[k + 3],
                dense[where[k]],
                dense[where[k + 1]],
                dense[where[k + 2]],
                dense[where[k + 3]],
                out[row],
            )
            k += 4
        while k < end:
            _add_one(values[k], dense[where[k]], out[row])
            k += 1


@kernel
def support_sums(start, stop, offsets, values, out):
    """Add the sum of each row to ``out``."""
    for row in range(start, stop):
        total = 0.0
        for k in range(offsets[row], offsets[row + 1]):
            total += np.float64(values[k])
        out[row] += total
