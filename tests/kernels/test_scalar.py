"""The scalar functions of the CPU kernels against numpy's extended precision."""

from __future__ import annotations

import numpy as np
import pytest

numba = pytest.importorskip("numba")
from parsimax.kernels.cpu import scalar  # noqa: E402 (needs numba)


@numba.njit
def _exp(x, out):
    for i in range(x.size):
        out[i] = scalar.exp(x[i])


@numba.njit
def _log(x, out):
    for i in range(x.size):
        out[i] = scalar.log(x[i])


@numba.njit
def _excess(x, out):
    for i in range(x.size):
        out[i] = scalar.excess(x[i])


@numba.njit
def _decay(x, out):
    for i in range(x.size):
        out[i] = scalar.decay(x[i])


@numba.njit
def _order(x, out):
    for i in range(x.size):
        out[i] = scalar.unordered(scalar.ordered(x[i]), x[i])


def _run(function, x):
    out = np.full_like(x, np.nan)
    function(x, out)
    return out


def _ulps(found, expected):
    """Distance in units of the last place of the found type."""
    return np.abs(found - expected) / np.spacing(np.abs(expected).astype(found.dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp(dtype):
    x = np.concatenate([np.linspace(-86.99, 88, 200_001), np.linspace(-1, 1, 100_001)]).astype(
        dtype
    )
    assert _ulps(_run(_exp, x), np.exp(x.astype(np.longdouble))).max() < 1.5
    special = _run(_exp, np.array([0.0, -0.0, -np.inf, -1e4, -1e30], dtype))
    assert special.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log(dtype):
    x = np.concatenate([np.logspace(-37, 37, 200_001), np.linspace(0.5, 2, 100_001)]).astype(dtype)
    expected = np.log(x.astype(np.longdouble))
    # near 1 the logarithm is near 0: an ulp of x, not of the result, is what can be asked
    allowed = np.maximum(2 * np.spacing(np.abs(expected).astype(dtype)), 0.25 * np.spacing(x))
    assert (np.abs(_run(_log, x) - expected) <= allowed).all()
    assert _run(_log, np.array([1.0], dtype))[0] == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_excess_and_decay(dtype):
    """(e^v - 1 - v) / v^2 and (1 - e^-v) / v, smooth through 0 and where the formula changes."""
    v = np.concatenate([[1e-30], np.logspace(-12, 1.9, 50_001), np.linspace(0.4, 1.1, 20_001)])
    v = v.astype(dtype)
    wide = v.astype(np.longdouble)
    series = sum(wide**k / np.longdouble(_factorial(k + 2)) for k in range(30))
    expected = np.where(wide < 3, series, (np.expm1(wide) - wide) / wide**2)
    eps = np.finfo(dtype).eps
    assert (np.abs(_run(_excess, v) / expected - 1)).max() < 8 * eps
    assert (np.abs(_run(_decay, v) / (-np.expm1(-wide) / wide) - 1)).max() < 4 * eps
    assert _run(_excess, np.zeros(1, dtype))[0] == 0.5
    assert _run(_decay, np.zeros(1, dtype))[0] == 1.0


def _factorial(n: int) -> float:
    return float(np.prod(np.arange(1, n + 1, dtype=np.longdouble)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keys_sort_as_the_numbers_do(dtype):
    x = np.array([-np.inf, -1e30, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1e30, np.inf], dtype)
    assert np.array_equal(_run(_order, x), x)

    @numba.njit
    def keys(values):
        return [scalar.ordered(value) for value in values]

    assert list(keys(x)) == sorted(keys(x))
