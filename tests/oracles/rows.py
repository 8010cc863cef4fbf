"""Each mapping on one row, from its optimality conditions, in extended precision.

Maximising <p, z> - Omega(p) over a simplex gives p_i = g(z_i - tau) for an increasing g and the one
number tau that makes p sum to what it must. Each oracle here writes that condition down, in a
variable other than the solvers', and finds the number by :func:`.roots.root_of_decreasing`. That
these conditions are the right ones is checked against cone and quadratic programs beside this file.
"""

from __future__ import annotations

import numpy as np

from .roots import Real, on_allowed, root_of_decreasing


def _power(base: np.ndarray, exponent: Real) -> np.ndarray:
    """``base**exponent`` on the positive entries, 0 elsewhere."""
    result = np.zeros(base.shape, dtype=Real)
    inside = base > 0
    result[inside] = np.exp(exponent * np.log(base[inside]))
    return result


def _tsallis(y: np.ndarray, log_top: Real, beta: Real) -> np.ndarray:
    """Probabilities with p_max = exp(log_top), from p_i^beta = p_max^beta + beta y_i.

    For beta = 0 it is p_max exp(y). For beta < 0, where the same formula is the analytic
    continuation, it serves the derivative in alpha at 1.
    """
    if beta == 0:
        return np.exp(log_top + y)
    v = beta * y * np.exp(-beta * log_top)
    p = np.zeros(y.shape, dtype=Real)
    inside = v > -1
    p[inside] = np.exp(log_top + np.log1p(v[inside]) / beta)
    return p


def entmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """argmax <p, z> + H_alpha(p)."""
    beta = Real(alpha) - 1

    def solve(x: np.ndarray) -> np.ndarray:
        y = x - x.max()
        near = y > (-1 / beta if beta > 0 else -np.inf)  # p_max <= 1: nothing further is reached
        values, back, counts = np.unique(y[near], return_inverse=True, return_counts=True)
        solve_values = _by_lowest_score if beta > 1 else _by_largest_probability
        p = np.zeros(y.shape, dtype=Real)
        p[near] = solve_values(values, counts, beta)[back]
        return p

    return on_allowed(solve, z)


def _by_largest_probability(values: np.ndarray, counts: np.ndarray, beta: Real) -> np.ndarray:
    """For alpha <= 2: the unknown is the logarithm of the largest probability."""

    def missing(minus_log_top: Real) -> Real:
        return (counts * _tsallis(values, -minus_log_top, beta)).sum() - 1

    highest = np.log(Real(counts.sum())) + Real(1e-15)
    return _tsallis(values, -root_of_decreasing(missing, Real(0), highest), beta)


def _by_lowest_score(values: np.ndarray, counts: np.ndarray, beta: Real) -> np.ndarray:
    """For alpha > 2: the unknown is how far the threshold lies below the lowest score above it.

    There p = (beta (z - tau))^(1/beta) has no bound on its slope. A tau as one number next to the
    scores would lose all digits of that distance, so the lowest score is found first: the first
    one that may be the threshold itself without the scores above it using up the whole mass.
    """
    low, high = 0, values.size - 1
    while low < high:
        middle = (low + high) // 2
        if (counts * _power(beta * (values - values[middle]), 1 / beta)).sum() < 1:
            high = middle
        else:
            low = middle + 1
    above = values[low:] - values[low]

    def missing(minus_log_distance: Real) -> Real:
        mass = _power(beta * (above + np.exp(-minus_log_distance)), 1 / beta)
        return (counts[low:] * mass).sum() - 1

    distance = np.exp(-root_of_decreasing(missing, np.log(beta) - 1, Real(1e4)))
    p = np.zeros(values.shape, dtype=Real)
    p[low:] = _power(beta * (above + distance), 1 / beta)
    return p


def softmax(z: np.ndarray) -> np.ndarray:
    """argmax <p, z> - sum p log p, in closed form."""

    def solve(x: np.ndarray) -> np.ndarray:
        weights = np.exp(x - x.max())
        return weights / weights.sum()

    return on_allowed(solve, z)


def sparsegen(z: np.ndarray, lam: float) -> np.ndarray:
    """argmin |p - z|^2 - lam |p|^2: p = (z - tau)_+ / (1 - lam)."""
    width = 1 - Real(lam)

    def solve(x: np.ndarray) -> np.ndarray:
        y = x - x.max()

        def missing(tau: Real) -> Real:
            return np.maximum(y - tau, 0).sum() / width - 1

        tau = root_of_decreasing(missing, -width, Real(0))
        return np.maximum(y - tau, 0) / width

    return on_allowed(solve, z)


def sparsemax(z: np.ndarray) -> np.ndarray:
    """argmin |p - z|^2."""
    return sparsegen(z, 0.0)


def normmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """argmax <p, z> - |p|_alpha.

    Where p_i > 0, z_i - tau = (p_i / |p|)^(alpha - 1). These r_i = z_i - tau have conjugate norm
    one, and p is r^(1 / (alpha - 1)) made to sum to one.
    """
    gamma = 1 / (Real(alpha) - 1)

    def solve(x: np.ndarray) -> np.ndarray:
        y = x - x.max()

        def missing(tau: Real) -> Real:
            # relative to the largest, so that a large gamma does not underflow
            ratio = np.maximum((y - tau) / -tau, 0)
            return np.log(_power(ratio, gamma + 1).sum()) / (gamma + 1) + np.log(-tau)

        tau = root_of_decreasing(missing, Real(-1), -1 / (Real(y.size) + 1))
        q = _power(np.maximum((y - tau) / -tau, 0), gamma)
        return q / q.sum()

    return on_allowed(solve, z)


def budget(z: np.ndarray, k: float) -> np.ndarray:
    """argmax <p, z> - |p|^2 / 2 with 0 <= p <= 1 and sum k: p = clip(z - tau, 0, 1)."""
    k = Real(k)

    def solve(x: np.ndarray) -> np.ndarray:
        # tau lies within one of the score where the budget runs out; from there digits are kept
        pivot = np.sort(x)[::-1][min(max(int(np.ceil(k)), 1), x.size) - 1]
        y = x - pivot

        def missing(tau: Real) -> Real:
            return np.clip(y - tau, 0, 1).sum() - k

        tau = root_of_decreasing(missing, Real(-1), Real(1))
        return np.clip(y - tau, 0, 1)

    return on_allowed(solve, z, mass=float(k))
