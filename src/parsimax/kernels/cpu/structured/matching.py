"""The best matching of rows to columns, by shortest augmenting paths (Jonker & Volgenant 1987).

Between two calls of the solver few scores change. The prices of columns are kept, so most rows
still like the column that they had best, and paths are sought for the others only.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

_TIGHT = 1e-14  # a column this near to a row's best, relative to the scores, is as good


def workspace(dims):
    """Prices, distances and a transposed copy; partners, paths and a list of columns."""
    small, large = min(dims[0], dims[1]), max(dims[0], dims[1])
    return 2 * large + small * large, small + 4 * large + 1


@kernel
def oracle(scores, extra, dims, chosen, floats, integers):
    """Every row and column of the smaller side matched once, of the larger at most once.

    ``dims`` is (rows, columns). ``chosen[i]`` is the match of row i, or of column i where there are
    fewer columns than rows, as an index into the scores.
    """
    rows, columns = dims[0], dims[1]
    n, m = min(rows, columns), max(rows, columns)
    price, distance = floats[:m], floats[m : 2 * m]
    if rows <= columns:
        gains = scores[: n * m]
    else:
        gains = floats[2 * m : 2 * m + n * m]
        for j in range(columns):
            for i in range(rows):
                gains[j * m + i] = scores[i * columns + j]
    partner = integers[:n]  # of a row: its column plus one, 0 for none
    owner = integers[n : n + m]  # of a column: its row plus one, 0 for none
    if n < m:
        # a column that nobody takes must cost nothing, which old prices do not ensure
        price[:] = 0.0
        partner[:] = 0
    _keep_what_is_best(gains, n, m, price, partner, owner)
    for i in range(n):
        if partner[i] == 0:
            _augment(gains, n, m, i, price, distance, partner, owner, integers[n + m :])
    for i in range(n):
        j = partner[i] - 1
        chosen[i] = i * columns + j if rows <= columns else j * columns + i
    return 0.0


@kernel
def _keep_what_is_best(gains, n, m, price, partner, owner):
    """Rows keep their column if none is better at these prices; others take a free best one."""
    owner[:] = 0
    for i in range(n):
        row = gains[i * m : (i + 1) * m]
        top = -np.inf
        for j in range(m):
            value = row[j] - price[j]
            top = value if value > top else top
        old = partner[i] - 1
        partner[i] = 0
        if old >= 0:
            value = row[old] - price[old]
            if value >= top - _TIGHT * (abs(row[old]) + abs(price[old])) and owner[old] == 0:
                partner[i], owner[old] = old + 1, i + 1
                continue
        for j in range(m):
            if row[j] - price[j] == top:
                if owner[j] == 0:
                    partner[i], owner[j] = j + 1, i + 1
                break


@kernel
def _augment(gains, n, m, free, price, distance, partner, owner, lists):
    """The cheapest way to give row ``free`` a column, by moving others on (Dijkstra)."""
    path, todo, done = lists[:m], lists[m : 2 * m], lists[2 * m : 3 * m]
    for j in range(m):
        distance[j] = np.inf
        todo[j] = j
    left, reached = m, 0
    row, base, end = free, 0.0, -1
    while end < 0:
        # what row keeps with its own column: distances are measured from there
        values = gains[row * m : (row + 1) * m]
        if row == free:
            keeps = 0.0
        else:
            own = partner[row] - 1
            keeps = values[own] - price[own]
        nearest, where = np.inf, -1
        for t in range(left):
            j = todo[t]
            d = base + keeps - (values[j] - price[j])
            if d < distance[j]:
                distance[j] = d
                path[j] = row
            d = distance[j]
            if d < nearest or (d == nearest and owner[j] == 0):
                nearest, where = d, t
        j = todo[where]
        left -= 1
        todo[where] = todo[left]
        base = nearest
        if owner[j] == 0:
            end = j
        else:
            done[reached] = j
            reached += 1
            row = owner[j] - 1
    # prices rise for the columns that were passed, by how much nearer they were
    for t in range(reached):
        j = done[t]
        price[j] += base - distance[j]
    j = end
    while True:
        row = path[j]
        owner[j] = row + 1
        j, partner[row] = partner[row] - 1, j + 1
        if row == free:
            return
