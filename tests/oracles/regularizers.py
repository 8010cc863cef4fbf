"""Omega of each mapping, written down from its definition, on one row in extended precision."""

from __future__ import annotations

import numpy as np

from .roots import Real


def softmax(p: np.ndarray) -> Real:
    """sum p log p."""
    positive = p[p > 0].astype(Real)
    return (positive * np.log(positive)).sum()


def entmax(p: np.ndarray, alpha: float) -> Real:
    """-H_alpha(p) = sum (p^alpha - p) / (alpha (alpha - 1))."""
    if alpha == 1:
        return softmax(p)
    order = Real(alpha)
    positive = p[p > 0].astype(Real)
    # p^alpha - p = p (e^((alpha - 1) log p) - 1)
    terms = positive * np.expm1((order - 1) * np.log(positive))
    return terms.sum() / (order * (order - 1))


def sparsemax(p: np.ndarray) -> Real:
    """(|p|^2 - 1) / 2, for p on the simplex."""
    return entmax(p, 2.0)


def sparsegen(p: np.ndarray, lam: float) -> Real:
    """(1 - lam) (|p|^2 - 1) / 2 for p on the simplex, where 1 may be written as sum p."""
    wide = p.astype(Real)
    return (1 - Real(lam)) * (wide * (wide - 1)).sum() / 2


def normmax(p: np.ndarray, alpha: float) -> Real:
    """|p|_alpha."""
    largest = Real(p.max())
    if largest == 0:
        return Real(0)
    order = Real(alpha)
    return largest * ((p.astype(Real) / largest) ** order).sum() ** (1 / order)


def budget(p: np.ndarray, k: float) -> Real:
    """|p|^2 / 2, whatever k is."""
    return (p.astype(Real) ** 2).sum() / 2


def fusedmax(p: np.ndarray, lam: float) -> Real:
    """|p|^2 / 2 + lam sum |p_(i+1) - p_i|."""
    return budget(p, 1) + Real(lam) * np.abs(np.diff(p.astype(Real))).sum()


def oscarmax(p: np.ndarray, lam: float) -> Real:
    """|p|^2 / 2 + lam sum over pairs of the larger one."""
    wide = p.astype(Real)
    pairs = np.maximum.outer(wide, wide).sum() - wide.sum()
    return budget(p, 1) + Real(lam) * pairs / 2


def constrained_softmax(p: np.ndarray, upper: float) -> Real:
    """sum p log p, whatever the bounds are."""
    return softmax(p)


def constrained_sparsemax(p: np.ndarray, upper: float, lower: float = 0.0) -> Real:
    """(|p|^2 - 1) / 2, whatever the bounds are."""
    return sparsemax(p)
