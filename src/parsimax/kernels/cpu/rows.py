"""What every forward kernel does first: look a row over and keep the scores that may matter.

A subset of a row has a threshold no higher than the whole row's, because adding scores only adds
probability mass. So the maxima of blocks of 32 scores, solved first, give a lower bound that is
nearly tight, and the scores below it, most of the row as a rule, are never looked at again.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .scalar import bit_count, block_above, cast, isnan, lowest_bit, ordered, unordered

BLOCK = 32
NOWHERE = -1e30  # a score far below every threshold, and finite


@kernel
def survey(z, tops):
    """Write the maximum of each block into ``tops``; return (row maximum, any NaN, blocks)."""
    d = z.size
    highest = ordered(z[0])
    nan = isnan(z[0])
    full = d // BLOCK
    for j in range(full):
        top = ordered(z[j * BLOCK])
        for i in range(BLOCK):
            x = z[j * BLOCK + i]
            top = max(top, ordered(x))
            nan |= isnan(x)
        highest = max(highest, top)
        tops[j] = unordered(top, z[0])
    count = full
    if full * BLOCK < d:
        top = ordered(z[full * BLOCK])
        for i in range(full * BLOCK, d):
            x = z[i]
            top = max(top, ordered(x))
            nan |= isnan(x)
        highest = max(highest, top)
        tops[full] = unordered(top, z[0])
        count += 1
    return unordered(highest, z[0]), nan != 0, count


@kernel
def _is_dense(z, bar):
    """Whether most scores reach above ``bar``, judged by four blocks."""
    d = z.size
    if d <= 4 * BLOCK:
        return True
    count = 0
    for k in range(4):
        count += bit_count(block_above(z, (d - BLOCK) * k // 3, bar))
    return count > 2 * BLOCK


@kernel
def _pad(kept, size, value):
    """Fill up to a whole block, so that loops have no scalar remainder; return the new size."""
    until = min(kept.size, (size + BLOCK - 1) // BLOCK * BLOCK)
    for i in range(size, until):
        kept[i] = value
    return until


@kernel
def gather(z, top, tops, blocks, least, y, where):
    """Copy the ``z - top`` above ``least`` into ``y`` and their places into ``where``.

    Returns how many there are, and how many with the fillers behind them, which receive nothing.
    A row that is mostly above is copied whole: one long loop is then faster than picking.
    """
    d = z.size
    bar = cast(np.float64(top) + least, top)
    bar -= abs(bar) * cast(2.4e-7 if y.itemsize == 4 else 4.5e-16, top)  # err on the low side
    if _is_dense(z, bar):
        nowhere = cast(NOWHERE, top)
        for i in range(d):
            y[i] = max(z[i] - top, nowhere)  # finite where masked: 0 * y is then no NaN
        return d, d
    size = 0
    for j in range(d // BLOCK):
        if tops[j] > bar:
            hits = block_above(z, j * BLOCK, bar)
            while hits != 0:
                i = j * BLOCK + lowest_bit(hits)
                hits &= hits - 1
                y[size] = z[i] - top
                where[size] = i
                size += 1
    for i in range(d // BLOCK * BLOCK, d):
        if z[i] > bar:
            y[size] = z[i] - top
            where[size] = i
            size += 1
    return size, _pad(y, size, NOWHERE)


@kernel
def spread(q, size, where, scale, p):
    """Put ``scale * q[:size]`` in their places in ``p``, zeros elsewhere."""
    if size == p.size:
        for i in range(size):
            p[i] = q[i] * scale
        return
    p[:] = 0
    for k in range(size):
        p[where[k]] = q[k] * scale


@kernel
def support(p, g, p_kept, g_kept, where):
    """Copy probabilities above 0, with their gradients; return how many, and with fillers.

    A row that is mostly above 0 is left alone, and its length returned.
    """
    d = p.size
    zero = cast(0.0, p[0])
    full = d // BLOCK * BLOCK
    count = d - full
    for start in range(0, full, BLOCK):
        count += bit_count(block_above(p, start, zero))
    if 2 * count > d:
        return d, d
    size = 0
    for start in range(0, full, BLOCK):
        hits = block_above(p, start, zero)
        while hits != 0:
            i = start + lowest_bit(hits)
            hits &= hits - 1
            p_kept[size], g_kept[size], where[size] = p[i], g[i], i
            size += 1
    for i in range(full, d):
        if p[i] > zero:
            p_kept[size], g_kept[size], where[size] = p[i], g[i], i
            size += 1
    _pad(g_kept, size, 0.0)
    return size, _pad(p_kept, size, 0.0)
