"""Each mapping on one row, from its optimality conditions, in extended precision.

Maximising <p, z> - Omega(p) over a simplex gives p_i = g(z_i - tau) for an increasing g and the one
number tau that makes p sum to what it must. Each oracle here writes that condition down, in a
variable other than the solvers', and finds the number by :func:`.roots.root_of_decreasing`. That
these conditions are the right ones is checked against cone and quadratic programs beside this file.
"""

from __future__ import annotations

import itertools

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


def fusedmax(z: np.ndarray, lam: float) -> np.ndarray:
    """argmin |p - z|^2 / 2 + lam sum |p_(i+1) - p_i|: smooth, then project on the simplex.

    Smoothing pulls a string tight in a tube of radius lam around the running sums of the scores;
    its slopes are the values.
    """

    def solve(x: np.ndarray) -> np.ndarray:
        return sparsemax(_taut_string(x - x.max(), Real(lam)))

    return on_allowed(solve, z)


def _taut_string(x: np.ndarray, lam: Real) -> np.ndarray:
    """Walk on from the last corner until no straight line stays in the tube; the corner is there.

    The corners are found in float64, the slopes between them are extended.
    """
    n = x.size
    total = np.concatenate([[Real(0)], np.cumsum(x)])
    centre, radius = [float(t) for t in total], float(lam)
    value = np.empty(n, dtype=Real)
    corner, side = 0, 0  # a corner lies on the upper (1) or lower (-1) edge; the ends on neither
    while corner < n:
        origin = centre[corner] + side * radius
        high, low = np.inf, -np.inf
        high_at = low_at = corner
        end, end_side = n, 0
        for k in range(corner + 1, n + 1):
            room = radius if k < n else 0.0
            top = (centre[k] + room - origin) / (k - corner)
            bottom = (centre[k] - room - origin) / (k - corner)
            if bottom > high:
                end, end_side = high_at, 1
                break
            if top < low:
                end, end_side = low_at, -1
                break
            if top <= high:
                high, high_at = top, k
            if bottom >= low:
                low, low_at = bottom, k
        rise = x[corner:end].sum() + (end_side - side) * lam
        value[corner:end] = rise / (end - corner)
        corner, side = end, end_side
    return value


def oscarmax(z: np.ndarray, lam: float) -> np.ndarray:
    """argmin |p - z|^2 / 2 + lam sum_(i<j) max(p_i, p_j).

    In descending order, p is the simplex's nearest point to the slopes of the least concave
    function above the running sums of z_(i) + lam i.
    """

    def solve(x: np.ndarray) -> np.ndarray:
        order = np.argsort(-x, kind="stable")
        scores = x[order] - x.max()
        weighted = scores + Real(lam) * np.arange(x.size)
        total = np.concatenate([[Real(0)], np.cumsum(weighted)])
        hull = [0]
        for k in range(1, x.size + 1):
            while len(hull) > 1 and _turns_up(total, hull[-2], hull[-1], k):
                hull.pop()
            hull.append(k)
        value = np.empty(x.size, dtype=Real)
        for a, b in itertools.pairwise(hull):
            ranks = Real(lam) * (a + b - 1) / 2
            value[order[a:b]] = scores[a:b].sum() / (b - a) + ranks
        return sparsemax(value)

    return on_allowed(solve, z)


def _turns_up(total: np.ndarray, a: int, b: int, c: int) -> bool:
    return (total[b] - total[a]) * (c - b) <= (total[c] - total[b]) * (b - a)


def constrained_sparsemax(z: np.ndarray, upper: Real, lower: Real = 0.0) -> np.ndarray:
    """argmin |p - z|^2 with lower <= p <= upper: p = clip(z - tau, lower, upper).

    Bounds are numbers, or one for every entry.
    """
    z = np.asarray(z, dtype=Real)
    allowed = z > -np.inf
    high = np.broadcast_to(np.asarray(upper, dtype=Real), z.shape)[allowed]
    low = np.broadcast_to(np.asarray(lower, dtype=Real), z.shape)[allowed]

    def solve(x: np.ndarray) -> np.ndarray:
        y = x - x.max()

        def missing(tau: Real) -> Real:
            return np.clip(y - tau, low, high).sum() - 1

        tau = root_of_decreasing(missing, (y - high).min(), (y - low).max())
        return np.clip(y - tau, low, high)

    return on_allowed(solve, z)


def constrained_softmax(z: np.ndarray, upper: Real) -> np.ndarray:
    """argmax <p, z> - sum p log p with p <= upper: p = min(upper, exp(z - c))."""
    z = np.asarray(z, dtype=Real)
    allowed = z > -np.inf
    high = np.minimum(np.broadcast_to(np.asarray(upper, dtype=Real), z.shape)[allowed], 1)

    def solve(x: np.ndarray) -> np.ndarray:
        y = x - x.max()
        with np.errstate(divide="ignore"):
            bars = np.log(high)

        def missing(c: Real) -> Real:
            return np.exp(np.minimum(y - c, bars)).sum() - 1

        c = root_of_decreasing(missing, (y - np.maximum(bars, -1e4)).min(), np.log(Real(y.size)))
        return np.where(y - c >= bars, high, np.exp(np.minimum(y - c, bars)))

    return on_allowed(solve, z)
