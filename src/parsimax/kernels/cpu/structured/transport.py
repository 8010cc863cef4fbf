"""Where weak transitions start: the best sequences for the marginals that there are without them.

Without transitions every position is a sparsemax of its own. Given the marginals of all positions,
the best transitions between two neighbours are a transport problem of their own, too: any couplings
of neighbours make a chain, whose edge marginals they are. Found by adding one sequence after the
other, those couplings take thousands of steps where transitions are small beside the penalty of the
marginals, because no step is longer than they are; as transport problems they take one pivot for
each label or two, and the solver then only corrects the marginals.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

_PIVOTS = 20  # for each row and column, at most: degenerate ones could go round for ever
_ROUNDING = 1e-13  # of the gains, relative
_NOTHING = 1e-13  # mass that is rounding error


@kernel
def project_row(z, out):
    """Sparsemax of a row (Martins & Astudillo 2016)."""
    ordered = np.sort(z)[::-1]
    total, tau = 0.0, 0.0
    for i in range(z.size):
        total += ordered[i] - ordered[0]
        candidate = (total - 1.0) / (i + 1)
        if ordered[i] - ordered[0] > candidate:
            tau = candidate
    for i in range(z.size):
        out[i] = max(z[i] - ordered[0] - tau, 0.0)


@kernel
def _greedy(gains, supply, demand, flow, basic):
    """A first coupling: always the best gain among what is left. Its cells make a tree."""
    p, q = supply.size, demand.size
    row_open, column_open = np.ones(p, np.bool_), np.ones(q, np.bool_)
    a, b = supply.copy(), demand.copy()
    rows, columns = p, q
    for _ in range(p + q - 1):
        top, r, c = -np.inf, 0, 0
        for i in range(p):
            if row_open[i]:
                for j in range(q):
                    if column_open[j] and gains[i, j] > top:
                        top, r, c = gains[i, j], i, j
        mass = min(a[r], b[c])
        flow[r, c], basic[r, c] = mass, True
        a[r] -= mass
        b[c] -= mass
        # one line is closed at a time, and the last one of either kind stays
        if (a[r] <= b[c] and rows > 1) or columns == 1:
            row_open[r] = False
            rows -= 1
        else:
            column_open[c] = False
            columns -= 1


@kernel
def _potentials(gains, basic, potential, parent, depth, queue):
    """Of rows, then columns: gains[i, j] = potential[i] + potential[p + j] on the tree."""
    p, q = gains.shape
    depth[:] = -1
    potential[0], parent[0], depth[0], queue[0] = 0.0, -1, 0, 0
    head, tail = 0, 1
    while head < tail:
        at = queue[head]
        head += 1
        if at < p:
            for j in range(q):
                if basic[at, j] and depth[p + j] < 0:
                    potential[p + j] = gains[at, j] - potential[at]
                    parent[p + j], depth[p + j] = at, depth[at] + 1
                    queue[tail] = p + j
                    tail += 1
        else:
            for i in range(p):
                if basic[i, at - p] and depth[i] < 0:
                    potential[i] = gains[i, at - p] - potential[at]
                    parent[i], depth[i] = at, depth[at] + 1
                    queue[tail] = i
                    tail += 1


@kernel
def _cycle(p, r, c, parent, depth, path):
    """The nodes on the way in the tree from row ``r`` to column ``c``; how many."""
    a, b = r, p + c
    front, back = 0, path.size
    while a != b:
        if depth[a] >= depth[b]:
            path[front] = a
            front += 1
            a = parent[a]
        else:
            back -= 1
            path[back] = b
            b = parent[b]
    path[front] = a
    front += 1
    for i in range(back, path.size):
        path[front] = path[i]
        front += 1
    return front


@kernel
def couple(gains, supply, demand, flow):
    """The coupling of two distributions, all positive, with the largest total gain.

    The simplex method on trees. ``flow`` is zeros before.
    """
    p, q = gains.shape
    basic = np.zeros((p, q), np.bool_)
    _greedy(gains, supply, demand, flow, basic)
    potential = np.empty(p + q)
    parent, depth = np.empty(p + q, np.int64), np.empty(p + q, np.int64)
    queue, path = np.empty(p + q, np.int64), np.empty(p + q, np.int64)
    threshold = _ROUNDING * np.abs(gains).max()
    for _ in range(_PIVOTS * (p + q)):
        _potentials(gains, basic, potential, parent, depth, queue)
        top, r, c = threshold, -1, -1
        for i in range(p):
            for j in range(q):
                more = gains[i, j] - potential[i] - potential[p + j]
                if more > top and not basic[i, j]:
                    top, r, c = more, i, j
        if r < 0:
            return
        length = _cycle(p, r, c, parent, depth, path)
        # cells of the way give and take in turn, and the first and the last give
        mass, out = np.inf, 0
        for i in range(0, length - 1, 2):
            if flow[path[i], path[i + 1] - p] < mass:
                mass, out = flow[path[i], path[i + 1] - p], i
        for i in range(length - 1):
            if i % 2 == 0:
                flow[path[i], path[i + 1] - p] -= mass
            else:
                flow[path[i + 1], path[i] - p] += mass
        flow[path[out], path[out + 1] - p] = 0.0
        basic[path[out], path[out + 1] - p] = False
        flow[r, c], basic[r, c] = mass, True


@kernel
def couple_all(extra, dims, marginals, flows):
    """Couple every position with the next: ``flows`` (n - 1, k, k) from ``marginals`` (n, k)."""
    n, k, steps = dims[0], dims[1], dims[2]
    for i in range(n - 1):
        rows, columns = np.nonzero(marginals[i])[0], np.nonzero(marginals[i + 1])[0]
        first = (i if steps > 1 else 0) * k * k
        gains, flow = np.empty((rows.size, columns.size)), np.zeros((rows.size, columns.size))
        supply, demand = np.empty(rows.size), np.empty(columns.size)
        for a in range(rows.size):
            supply[a] = marginals[i, rows[a]]
            for b in range(columns.size):
                gains[a, b] = extra[first + rows[a] * k + columns[b]]
        for b in range(columns.size):
            demand[b] = marginals[i + 1, columns[b]]
        couple(gains, supply, demand, flow)
        flows[i] = 0.0
        for a in range(rows.size):
            for b in range(columns.size):
                flows[i, rows[a], columns[b]] = flow[a, b]


@kernel
def take_path(first, flows, chosen):
    """Take a sequence off couplings: its mass, and its labels as variables; 0 if nothing is left.

    Each one empties a cell, so that no sequence is a combination of others: a tree has no cycle
    along which mass could move without changing the marginals.
    """
    n, k = flows.shape[0] + 1, first.size
    label = np.argmax(first)
    mass = first[label]
    chosen[0] = label
    for i in range(n - 1):
        following = np.argmax(flows[i, label])
        mass = min(mass, flows[i, label, following])
        chosen[i + 1] = (i + 1) * k + following
        label = following
    if not mass > _NOTHING:
        return 0.0
    first[chosen[0]] -= mass
    for i in range(n - 1):
        flows[i, chosen[i] - i * k, chosen[i + 1] - (i + 1) * k] -= mass
    return mass
