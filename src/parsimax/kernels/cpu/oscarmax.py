"""Rows of oscarmax: sort, pool adjacent violators, project on the simplex."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .order import sort_descending, sort_room
from .scalar import bits


@kernel
def _pool(y, order, count, lam, ends, sums):
    """Pools of a decreasing regression of y_(i) + lam i; return how many.

    Pool k ends before rank ``ends[k]``, from 0, and its scores sum to ``sums[k]``. The ranks need
    no sum, their mean is known, and so lam times a long row takes no digits from the scores.
    """
    pools = 0
    for i in range(count):
        first, total = i, y[order[i]]
        value = total + lam * i
        while pools > 0:
            begin = ends[pools - 2] if pools > 1 else 0
            size = first - begin
            if sums[pools - 1] / size + lam * 0.5 * (begin + first - 1) > value:
                break
            total += sums[pools - 1]
            first = begin
            pools -= 1
            value = total / (i + 1 - first) + lam * 0.5 * (first + i)
        ends[pools], sums[pools] = i + 1, total
        pools += 1
    return pools


@kernel
def _project(pools, ends, sums, lam, values):
    """Values of the pools on the simplex; pools come in descending order."""
    begin = 0
    for k in range(pools):
        size = ends[k] - begin
        values[k] = sums[k] / size + lam * 0.5 * (begin + ends[k] - 1)
        begin = ends[k]
    top = values[0]
    mass, tau = 0.0, -1.0
    begin = 0
    for k in range(pools):
        lag = values[k] - top
        if not lag > tau:
            break
        mass += lag * (ends[k] - begin)
        begin = ends[k]
        tau = (mass - 1.0) / begin
    for k in range(pools):
        values[k] = max((values[k] - top) - tau, 0.0)


@kernel
def oscarmax_forward(start, stop, z, lams, p):
    """A row with a lambda that is negative or not finite gives NaN."""
    d = z.shape[1]
    order, keys, spare, spare_keys, buckets = sort_room(d)
    y, where = np.empty(d), np.empty(d, np.int32)
    ends, sums, values = np.empty(d, np.int64), np.empty(d), np.empty(d)
    for row in range(start, stop):
        lam = lams[row if lams.size > 1 else 0]
        zr, pr = z[row], p[row]
        top, bad, count = -np.inf, False, 0
        for i in range(d):
            x = np.float64(zr[i])
            bad = bad or x != x
            top = max(top, x)
            where[count] = i
            y[count] = x
            count += 1 if x > -np.inf else 0
            if count == d:
                break
        if bad or top == np.inf or (count > 0 and not (0.0 <= lam < np.inf)):
            pr[:] = np.nan
            continue
        pr[:] = 0.0
        if count == 0:
            continue
        # scores as they came: of float32, the lower bits of a float64 are zero
        sort_descending(
            y, count, order, keys, spare, spare_keys, buckets, 29 if zr.itemsize == 4 else 0
        )
        for k in range(count):
            y[k] -= top
        pools = _pool(y, order, count, lam, ends, sums)
        _project(pools, ends, sums, lam, values)
        begin = 0
        for k in range(pools):
            share = values[k]
            if share == 0.0:
                break
            for rank in range(begin, ends[k]):
                pr[where[order[rank]]] = share
            begin = ends[k]


@kernel
def _gather_pools(p, g, table, heads, sums, sizes, member):
    """Group entries above 0 by their value; return how many groups.

    An open hash table: equal values meet wherever they stand, without sorting.
    """
    groups = 0
    slots = np.uint64(table.size - 1)
    table[:] = -1
    for i in range(p.size):
        if not p[i] > 0.0:
            continue
        value = np.float64(p[i])
        # the upper half of a product: all bits of the value count
        mixed = np.uint64(bits(value)) * np.uint64(0x9E3779B97F4A7C15)
        slot = (mixed >> np.uint64(32)) & slots
        while table[slot] >= 0 and heads[table[slot]] != value:
            slot = (slot + np.uint64(1)) & slots
        group = table[slot]
        if group < 0:
            group = groups
            table[slot] = group
            heads[group], sums[group], sizes[group] = value, 0.0, 0
            groups += 1
        sums[group] += np.float64(g[i])
        sizes[group] += 1
        member[i] = group
    return groups


@kernel
def oscarmax_backward(start, stop, p, g, lams, out, dlams):
    """Equal entries move as one; all together keep the sum."""
    d = p.shape[1]
    room = 4
    while room < 2 * d:
        room *= 2
    table, member = np.empty(room, np.int32), np.empty(d, np.int32)
    heads, sums, sizes = np.empty(d), np.empty(d), np.empty(d, np.int32)
    order, keys, spare, spare_keys, buckets = sort_room(d)
    for row in range(start, stop):
        pr, gr, s = p[row], g[row], out[row]
        if pr[0] != pr[0]:
            s[:] = np.nan
            if dlams.size > 0:
                dlams[row] = np.nan
            continue
        groups = _gather_pools(pr, gr, table, heads, sums, sizes, member)
        alone = lams[row if lams.size > 1 else 0] == 0.0
        total, size = 0.0, 0
        for k in range(groups):
            total += sums[k]
            size += sizes[k]
        mean = total / size if size > 0 else 0.0
        for i in range(d):
            if pr[i] > 0.0:
                k = member[i]
                own = np.float64(gr[i]) if alone else sums[k] / sizes[k]
                s[i] = own - mean
            else:
                s[i] = 0.0
        if dlams.size > 0:
            # the mean rank of each pool, against that of all
            sort_descending(heads, groups, order, keys, spare, spare_keys, buckets, 0)
            change, above = 0.0, 0.0
            for k in range(groups):
                group = order[k]
                rank = above + 0.5 * (sizes[group] - 1)
                change += (sums[group] - mean * sizes[group]) * (rank - 0.5 * (size - 1))
                above += sizes[group]
            dlams[row] = change
