"""Derivatives of the row oracles by central differences, in extended precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .roots import Real

# Sixth-order stencil: with 64 bits of mantissa the step 2^-9 leaves about 1e-15 of either error.
_STEP = Real(2.0) ** -9
_STENCIL = ((1, Real(3) / 4), (2, Real(-3) / 20), (3, Real(1) / 60))


def derivative(f: Callable[[Real], np.ndarray], at: float, step: Real = _STEP) -> np.ndarray:
    """df/dx at a point around which ``f`` is smooth; ``step`` must not reach over a kink."""
    x = Real(at)
    total = Real(0)
    for k, weight in _STENCIL:
        total = total + weight * (f(x + k * step) - f(x - k * step))
    return total / step


def jacobian(
    f: Callable[[np.ndarray], np.ndarray], z: np.ndarray, step: Real = _STEP
) -> np.ndarray:
    """dp_i/dz_j at scores around which the support of ``f`` does not change."""
    z = np.asarray(z, dtype=Real)
    columns = []
    for j in range(z.size):
        unit = np.zeros(z.size, dtype=Real)
        unit[j] = 1
        columns.append(derivative(lambda x, unit=unit: f(z + x * unit), 0.0, step))
    return np.stack(columns, axis=1)
