"""Each mapping as the optimisation problem that defines it, for solvers that know nothing of ours.

Slow and less precise than :mod:`.rows`, which they vouch for: quadprog is exact to about 1e-12, the
interior-point method of clarabel to about 1e-7. Scores are finite here.
"""

from __future__ import annotations

import clarabel
import numpy as np
import quadprog
from scipy import sparse


def sparsegen(z: np.ndarray, lam: float) -> np.ndarray:
    """min |p - z|^2 - lam |p|^2 over the simplex, a quadratic program."""
    return _quadratic(z, 1 - lam, 1.0, np.inf)


def sparsemax(z: np.ndarray) -> np.ndarray:
    """min |p - z|^2 over the simplex."""
    return _quadratic(z, 1.0, 1.0, np.inf)


def budget(z: np.ndarray, k: float) -> np.ndarray:
    """min |p - z|^2 with 0 <= p <= 1 and sum k."""
    return _quadratic(z, 1.0, k, 1.0)


def constrained_sparsemax(
    z: np.ndarray, upper: float | np.ndarray, lower: float | np.ndarray = 0.0
) -> np.ndarray:
    """min |p - z|^2 over the simplex between bounds, numbers or one for every entry."""
    return _quadratic(z - z.max(), 1.0, 1.0, upper, lower)


def _quadratic(
    z: np.ndarray,
    curvature: float,
    mass: float,
    upper: float | np.ndarray,
    lower: float | np.ndarray = 0.0,
) -> np.ndarray:
    """max <p, z> - curvature |p|^2 / 2 with lower <= p <= upper and sum ``mass``."""
    d = z.size
    columns, least = [np.ones((d, 1)), np.eye(d)], [[mass], np.broadcast_to(lower, d)]
    if np.isfinite(upper).all():
        columns.append(-np.eye(d))
        least.append(-np.broadcast_to(upper, d))
    solution = quadprog.solve_qp(
        curvature * np.eye(d), z.astype(float), np.hstack(columns), np.concatenate(least), 1
    )
    return solution[0]


def fusedmax(z: np.ndarray, lam: float) -> np.ndarray:
    """min |p - z|^2 / 2 + lam sum t with t >= |p_(i+1) - p_i|."""
    steps = np.diff(np.eye(z.size), axis=0)
    ups = np.hstack([steps, -np.eye(z.size - 1)])
    downs = np.hstack([-steps, -np.eye(z.size - 1)])
    return _penalised(z, lam, np.vstack([ups, downs]))


def oscarmax(z: np.ndarray, lam: float) -> np.ndarray:
    """min |p - z|^2 / 2 + lam sum t with t >= p_i and t >= p_j, one t for every pair."""
    first, second = np.triu_indices(z.size, 1)
    eye, own = np.eye(z.size), -np.eye(first.size)
    return _penalised(z, lam, np.vstack([np.hstack([eye[i], own]) for i in (first, second)]))


def _penalised(z: np.ndarray, lam: float, rows: np.ndarray) -> np.ndarray:
    """min |p - z|^2 / 2 + lam sum t with p on the simplex and rows (p, t) <= 0."""
    d = z.size
    extra = rows.shape[1] - d
    objective = np.concatenate([z.max() - z, np.full(extra, lam)])
    curvature = sparse.diags([1.0] * d + [0.0] * extra).tocsc()
    cones = [clarabel.NonnegativeConeT(len(rows))] if len(rows) else []
    return _conic(objective, rows, np.zeros(len(rows)), cones, d, None, curvature, 1e-13)


def constrained_softmax(z: np.ndarray, upper: float | np.ndarray) -> np.ndarray:
    """max <p, z> - sum p log p with p <= upper."""
    return softmax(z - z.max(), upper)


def softmax(z: np.ndarray, upper: float | np.ndarray | None = None) -> np.ndarray:
    """max <p, z> - sum p log p: t <= -p log p is (t, p, 1) in the exponential cone."""
    d = z.size
    # variables (p, t); slack s = b - A x must be (t_i, p_i, 1)
    rows, right = np.zeros((3 * d, 2 * d)), np.zeros(3 * d)
    for i in range(d):
        rows[3 * i, d + i] = -1
        rows[3 * i + 1, i] = -1
        right[3 * i + 2] = 1
    objective = np.concatenate([-z, -np.ones(d)])
    cones = [clarabel.ExponentialConeT()] * d
    if upper is not None:
        rows = np.vstack([rows, np.eye(d, 2 * d)])
        right = np.concatenate([right, np.broadcast_to(upper, d)])
        cones.append(clarabel.NonnegativeConeT(d))
    return _conic(objective, rows, right, cones, d)


def entmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """max <p, z> + sum (p - p^alpha) / (alpha (alpha - 1)), alpha > 1.

    t >= p^alpha is (t, 1, p) in the power cone of exponent 1/alpha.
    """
    if alpha == 1:
        return softmax(z)
    d = z.size
    rows, right = np.zeros((3 * d, 2 * d)), np.zeros(3 * d)
    for i in range(d):
        rows[3 * i, d + i] = -1
        right[3 * i + 1] = 1
        rows[3 * i + 2, i] = -1
    objective = np.concatenate([-z, np.full(d, 1 / (alpha * (alpha - 1)))])
    return _conic(objective, rows, right, [clarabel.PowerConeT(1 / alpha)] * d, d)


def normmax(z: np.ndarray, alpha: float) -> np.ndarray:
    """max <p, z> - |p|_alpha.

    t >= |p|_alpha is (r_i, t, p_i) in the power cone of exponent 1/alpha, for some r with sum t.
    """
    d = z.size  # variables (p, r, t)
    rows, right = np.zeros((3 * d, 2 * d + 1)), np.zeros(3 * d)
    for i in range(d):
        rows[3 * i, d + i] = -1
        rows[3 * i + 1, 2 * d] = -1
        rows[3 * i + 2, i] = -1
    objective = np.concatenate([-z, np.zeros(d), [1.0]])
    share = np.concatenate([np.zeros(d), np.ones(d), [-1.0]])
    return _conic(objective, rows, right, [clarabel.PowerConeT(1 / alpha)] * d, d, share)


def _conic(
    objective: np.ndarray,
    rows: np.ndarray,
    right: np.ndarray,
    cones: list[object],
    d: int,
    balance: np.ndarray | None = None,
    curvature: sparse.csc_matrix | None = None,
    tolerance: float = 1e-11,
) -> np.ndarray:
    """min objective'x with the first ``d`` variables on the simplex and ``rows`` in ``cones``.

    ``curvature`` Q adds x'Qx / 2.
    """
    n = objective.size
    total = np.concatenate([np.ones(d), np.zeros(n - d)])
    equal = np.vstack([total] if balance is None else [total, balance])
    equal_right = np.array([1.0, 0.0][: len(equal)])
    positive = -np.eye(d, n)
    matrix = sparse.csc_matrix(np.vstack([equal, positive, rows]))
    bounds = np.concatenate([equal_right, np.zeros(d), right])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance
    problem = clarabel.DefaultSolver(
        sparse.csc_matrix((n, n)) if curvature is None else curvature,
        objective,
        matrix,
        bounds,
        [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(d), *cones],
        settings,
    )
    return np.array(problem.solve().x[:d])
