"""SparseMAP over structures that are all at hand: a projection, by non-negative least squares.

max <z, m> - |m|^2 / 2 over the convex hull of the structures is the point of the hull nearest to z.
With q_s = structure s - z, it is the p that minimises |Q p|; and non-negative x that minimise
|Q x|^2 + w^2 (sum x - 1)^2 are proportional to it (Lawson & Hanson 1974, chapter 23): for x = t p
the best t leaves |Q p|^2 / (1 + |Q p|^2 / w^2), which grows with |Q p|. Their algorithm is exact up
to rounding. That scipy's found the answer is not taken for granted: where scores tie it sometimes
does not, and another w does.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls


def nearest_marginals(structures: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The marginals of SparseMAP; structures (S, ...) of 0 and 1, scores (...)."""
    flat = structures.reshape(len(structures), -1)
    q = (flat - scores.ravel()).T
    for weight in (1.0, 10.0, 100.0, 3.0, 30.0):
        right = np.append(np.zeros(scores.size), weight)
        x, _ = nnls(np.vstack([q, np.full(len(flat), weight)]), right)
        marginals = (x / x.sum() @ flat).reshape(scores.shape)
        # the gap bounds the squared distance from the solution: that is within 3e-7 for sure
        if gap(structures, scores, marginals) <= 1e-13 * max(1.0, np.abs(scores).max()):
            return marginals
    raise AssertionError("the oracle itself did not find the solution")


def gap(structures: np.ndarray, scores: np.ndarray, marginals: np.ndarray) -> float:
    """How far marginals in the hull are from the best: 0 at the solution and nowhere else."""
    left = scores - marginals
    return float(np.tensordot(structures, left, scores.ndim).max() - (left * marginals).sum())
