r"""How the solution changes with the scores: the derivative, which is its own transpose.

With R'R = A A' + 1 1' of the structures that have probability, H = (R'R)^-1 minus its part along
the constraint that probabilities sum to one. Changes (x, y) of the scores of variables and of
transitions, and z of total scores, change each structure's score by A x + E y + z; probabilities
change by h = H (A x + E y + z), marginals by A'h, edge marginals by E'h. The same H turns gradients
in the three results into gradients in the three arguments.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

from .cholesky import backward_solve, factorize, forward_solve


@kernel
def _overlap(a, b, size, aligned, marks):
    """Variables that two structures share; ``marks`` is 1 at those of ``a``."""
    count = np.int64(0)
    if aligned:
        for j in range(size):
            count += np.int64(a[j] == b[j] and a[j] >= 0)
        return count
    for j in range(size):
        if b[j] >= 0:
            count += np.int64(marks[b[j]])
    return count


@kernel
def _mark(marks, row, value):
    for m in row:
        if m >= 0:
            marks[m] = value


@kernel
def _edge(members, i, labels, steps):
    """The transition between positions i and i + 1, as an index into all transitions."""
    a, b = members[i] % labels, members[i + 1] % labels
    return ((i if steps > 1 else 0) * labels + a) * labels + b


@kernel
def _length(members):
    n = 0
    for m in members:
        n += m >= 0
    return n


@kernel
def sensitivity_range(
    start, stop, aligned, labels, steps, counts, members, in_units, in_edges, in_structures,
    out_units, out_edges, out_structures,
):  # fmt: skip
    """Apply K H K' to (units, edges, structures) of instances ``start`` to ``stop``.

    Structures of instance i are the first ``counts[i]`` rows of ``members[i]``. The arrays of units
    are (B, variables), of edges (B, any), of structures (B, K); inputs or outputs that are not
    wanted have zero columns. ``labels`` and ``steps`` say how edges are numbered.
    """
    most = 0
    for item in range(start, stop):
        most = max(most, counts[item])
    R = np.empty((most, most))
    u, x = np.empty(most), np.empty(most)
    marks = np.zeros(max(in_units.shape[1], out_units.shape[1]) if not aligned else 0, np.int8)
    for item in range(start, stop):
        k = counts[item]
        rows = members[item, :k]
        for s in range(k):
            if not aligned:
                _mark(marks, rows[s], 1)
            for t in range(s, k):
                R[s, t] = 1.0 + _overlap(rows[s], rows[t], rows.shape[1], aligned, marks)
            if not aligned:
                _mark(marks, rows[s], 0)
        factorize(R, k)
        for s in range(k):
            total = in_structures[item, s] if in_structures.shape[1] > 0 else 0.0
            row = rows[s]
            if in_units.shape[1] > 0:
                for m in row:
                    if m >= 0:
                        total += in_units[item, m]
            if in_edges.shape[1] > 0:
                for i in range(_length(row) - 1):
                    total += in_edges[item, _edge(row, i, labels, steps)]
            u[s], x[s] = 1.0, total
        _project(R, k, u, x)
        out_units[item] = 0.0
        out_edges[item] = 0.0
        out_structures[item] = 0.0
        for s in range(k):
            row = rows[s]
            if out_structures.shape[1] > 0:
                out_structures[item, s] = x[s]
            if out_units.shape[1] > 0:
                for m in row:
                    if m >= 0:
                        out_units[item, m] += x[s]
            if out_edges.shape[1] > 0:
                for i in range(_length(row) - 1):
                    out_edges[item, _edge(row, i, labels, steps)] += x[s]


@kernel
def _project(R, k, u, x):
    """x becomes H x; u is ones."""
    if k == 1:
        x[0] = 0.0  # a single structure stays alone
        return
    forward_solve(R, k, u)
    forward_solve(R, k, x)
    uu, ux = 0.0, 0.0
    for s in range(k):
        uu += u[s] * u[s]
        ux += u[s] * x[s]
    for s in range(k):
        x[s] -= ux / uu * u[s]
    backward_solve(R, k, x)
