"""Losses from their definition, in NumPy and float64; nothing here uses parsimax.

entmax is solved by bisection on its threshold, Omega is written as in the papers, and the conjugate
of any other regulariser comes from a general-purpose optimiser.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax, xlogy
from tests.oracles import programs

Row = np.ndarray


def entmax(z: Row, alpha: float) -> Row:
    if alpha == 1:
        return softmax(z)
    x = (alpha - 1) * (z - z.max())
    low, high = -1.0, 0.0
    for _ in range(200):
        tau = (low + high) / 2
        if (np.maximum(x - tau, 0) ** (1 / (alpha - 1))).sum() > 1:
            low = tau
        else:
            high = tau
    p = np.maximum(x - low, 0) ** (1 / (alpha - 1))
    return p / p.sum()


def tsallis(p: Row, alpha: float) -> float:
    if alpha == 1:
        return -xlogy(p, p).sum()
    return (p - p**alpha).sum() / (alpha * (alpha - 1))


def entmax_class_losses(z: Row, alpha: float) -> Row:
    """l_c = <p, z> + H(p) - z_c for every class; classes with the score -inf have l_c = inf."""
    allowed = z > -np.inf
    kept = z[allowed]
    p = entmax(kept, alpha)
    losses = np.full(z.shape, np.inf)
    top = kept.max()
    losses[allowed] = p @ (kept - top) + tsallis(p, alpha) - (kept - top)
    return losses


def entmax_loss(z: np.ndarray, a: np.ndarray, alpha: float) -> np.ndarray:
    """sum_c a_c l_c for rows of scores and of coefficients, 0 times infinity being 0."""
    losses = np.stack([entmax_class_losses(row, alpha) for row in z])
    return np.where(a == 0, 0, a * np.where(a == 0, 0, losses)).sum(-1)


OMEGA: dict[str, Callable[[Row, float], float]] = {
    "entmax": lambda p, alpha: -tsallis(np.maximum(p, 0), alpha),
    "sparsegen": lambda p, lam: (1 - lam) * (p @ p - 1) / 2,
    "normmax": lambda p, alpha: np.linalg.norm(p, ord=alpha),
    "budget": lambda p, k: p @ p / 2,
    "fusedmax": lambda p, lam: p @ p / 2 + lam * np.abs(np.diff(p)).sum(),
    "oscarmax": lambda p, lam: p @ p / 2 + lam * np.triu(np.maximum.outer(p, p), 1).sum(),
}


def conjugate(name: str, parameter: float, z: Row) -> float:
    """max <p, z> - Omega(p) by sequential quadratic programming (accurate to about 1e-7)."""
    if name in ("fusedmax", "oscarmax"):  # not smooth: a quadratic program
        p = np.maximum(getattr(programs, name)(z, parameter), 0)
        return p @ z / p.sum() - OMEGA[name](p / p.sum(), parameter)
    mass = parameter if name == "budget" else 1.0
    start = np.full(z.shape, mass / len(z))
    result = minimize(
        lambda p: OMEGA[name](p, parameter) - p @ z,
        start,
        bounds=[(0.0, 1.0)] * len(z),
        constraints={"type": "eq", "fun": lambda p: p.sum() - mass},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert result.success, result.message
    return -result.fun
