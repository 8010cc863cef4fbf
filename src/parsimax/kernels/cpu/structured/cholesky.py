"""A Cholesky factor that grows by one column and shrinks by any: R upper triangular, R'R = M.

R lies row by row in the upper left corner of a larger array, so every inner loop runs along memory.
"""

from __future__ import annotations

import math

from parsimax.kernels.cpu.jit import kernel, reduction


@reduction
def _dot(a, b, start, stop):
    total = 0.0
    for j in range(start, stop):
        total += a[j] * b[j]
    return total


@reduction
def _subtract(y, scale, x, start, stop):
    for j in range(start, stop):
        y[j] -= scale * x[j]


@kernel
def forward_solve(R, k, x):
    """Solve R'y = x in place."""
    for i in range(k):
        x[i] /= R[i, i]
        _subtract(x, x[i], R[i], i + 1, k)


@kernel
def backward_solve(R, k, x):
    """Solve Ry = x in place."""
    for i in range(k - 1, -1, -1):
        x[i] = (x[i] - _dot(R[i], x, i + 1, k)) / R[i, i]


@kernel
def factorize(R, k):
    """Overwrite the upper triangle of M by R; returns how many columns it got through.

    Fewer than ``k`` means that the next column depends on those before it.
    """
    for i in range(k):
        diagonal = R[i, i]
        # the pivot of a dependent column is rounding error; see DEPENDENT in active_set
        if not diagonal > 0.0:
            return i
        root = math.sqrt(diagonal)
        R[i, i] = root
        for j in range(i + 1, k):
            R[i, j] /= root
        for j in range(i + 1, k):
            _subtract(R[j], R[i, j], R[i], j, k)
    return k


@reduction
def _rotate(above, carried, below, c, s, start, stop):
    """Turn the rows (carried, below) by one rotation; one of them ends one column to the left."""
    for j in range(start, stop):
        a, b = carried[j], below[j]
        above[j - 1] = c * a + s * b
        carried[j] = c * b - s * a


@kernel
def delete(R, k, gone, u, v, carried):
    """Take column and row ``gone`` out of M.

    ``u`` and ``v`` solve R'u = x and R'v = y, and still do without the entry ``gone`` of x and y.
    The columns after it move left, which leaves one entry below the diagonal in each; a Givens
    rotation of two rows puts each to zero. ``carried`` is room for a row.
    """
    for i in range(gone):
        row = R[i]
        for j in range(gone + 1, k):
            row[j - 1] = row[j]
    for j in range(gone + 1, k):
        carried[j] = R[gone, j]
    u_carried, v_carried = u[gone], v[gone]
    for i in range(gone, k - 1):
        below = R[i + 1]
        a, b = carried[i + 1], below[i + 1]
        h = math.sqrt(a * a + b * b)
        c, s = a / h, b / h
        R[i, i] = h
        _rotate(R[i], carried, below, c, s, i + 2, k)
        u[i], u_carried = c * u_carried + s * u[i + 1], c * u[i + 1] - s * u_carried
        v[i], v_carried = c * v_carried + s * v[i + 1], c * v[i + 1] - s * v_carried
