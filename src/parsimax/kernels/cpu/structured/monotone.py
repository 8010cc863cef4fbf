"""MAP of monotone alignments: each column picks a row, never above its left neighbour's, in O(n m).

A score of -inf forbids a cell.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel


def workspace(dims):
    """Floats and integers that the oracle wants: the best scores of all corners."""
    return (dims[0] + 1) * (dims[1] + 1), 0


@kernel
def oracle(scores, extra, dims, chosen, floats, integers):
    """Best alignment; ``dims`` is (rows, columns), and ``chosen[j]`` the cell of column j.

    Ties go to the highest row. If every alignment has a cell of -inf, -inf is returned and
    ``chosen`` is -1.
    """
    n, m = dims[0], dims[1]
    # best[i + 1, j + 1]: columns 0 to j, in rows 0 to i
    best = floats[: (n + 1) * (m + 1)].reshape(n + 1, m + 1)
    best[0, 0] = 0.0
    best[0, 1:] = -np.inf
    for i in range(n):
        above, here, row = best[i], best[i + 1], scores[i * m : (i + 1) * m]
        so_far = 0.0
        here[0] = 0.0
        for j in range(m):
            so_far += row[j]
            so_far = so_far if so_far > above[j + 1] else above[j + 1]
            here[j + 1] = so_far
    if not best[n, m] > -np.inf:
        chosen[:m] = -1
        return -np.inf
    i = n - 1
    for j in range(m - 1, -1, -1):
        while i > 0 and best[i + 1, j + 1] == best[i, j + 1]:  # a higher row does as well
            i -= 1
        chosen[j] = i * m + j
    return 0.0
