"""The oracles against solvers that know only the problem, and against forty digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from tests.oracles import derivatives, programs, regularizers, rows

PROGRAMS = [
    ("softmax", ()),
    ("sparsemax", ()),
    *[("entmax", (alpha,)) for alpha in (1.0, 1.05, 1.3, 1.5, 2.0, 2.5, 4.0)],
    *[("sparsegen", (lam,)) for lam in (-3.0, 0.0, 0.5, 0.9)],
    *[("normmax", (alpha,)) for alpha in (1.2, 1.5, 2.0, 3.0, 10.0)],
    *[("budget", (k,)) for k in (0.25, 1.0, 2.5, 4.0)],
    *[("fusedmax", (lam,)) for lam in (0.01, 0.1, 1.0)],
    *[("oscarmax", (lam,)) for lam in (0.01, 0.1, 1.0)],
    *[("constrained_softmax", (upper,)) for upper in (0.3, 0.6, 1.0)],
    *[("constrained_sparsemax", bounds) for bounds in ((0.3,), (0.6, 0.05), (1.0, 0.1))],
]


@pytest.mark.parametrize(("name", "parameters"), PROGRAMS, ids=str)
def test_row_oracles_solve_the_problem_that_defines_the_mapping(name, parameters):
    # 1e-10 for the active-set QP; an interior point of gap 1e-11 may be sqrt(1e-11) away in p
    exact = ("sparsemax", "sparsegen", "budget", "constrained_sparsemax")
    tolerance = 1e-10 if name in exact else 1e-5
    rng = np.random.default_rng(5)
    for d in (1, 2, 5, 9):
        if name == "budget" and parameters[0] > d:
            continue
        if name.startswith("constrained") and parameters[0] * d <= 1 and parameters[0] < 1:
            continue
        for scale in (0.3, 1.0, 3.0):
            z = rng.normal(0, scale, d)
            found = getattr(rows, name)(z, *parameters)
            expected = getattr(programs, name)(z, *parameters)
            assert np.abs(found - expected).max() < tolerance
            # the value is what the problem is about, and has no square root in its precision
            omega = getattr(regularizers, name)
            value = (found * z).sum() - omega(found, *parameters)
            other = (expected * z).sum() - omega(np.maximum(expected, 0), *parameters)
            assert value == pytest.approx(float(other), abs=1e-8)


def _exact_entmax(z: list[float], alpha: mpmath.mpf) -> list[mpmath.mpf]:
    """entmax in forty digits: bisection on tau in p = [(alpha - 1) z - tau]_+^(1/(alpha - 1))."""
    beta = mpmath.mpf(alpha) - 1
    scaled = [beta * mpmath.mpf(x) for x in z]

    def mass(tau: mpmath.mpf) -> list[mpmath.mpf]:
        return [(x - tau) ** (1 / beta) if x > tau else mpmath.mpf(0) for x in scaled]

    low, high = max(scaled) - 1, max(scaled)
    for _ in range(400):
        middle = (low + high) / 2
        low, high = (middle, high) if mpmath.fsum(mass(middle)) > 1 else (low, middle)
    return mass(low)


@pytest.mark.parametrize("alpha", ["1.0001", "1.01", "1.3", "1.5", "1.999", "2", "2.5", "4"])
def test_entmax_oracle_to_eighteen_digits(alpha):
    z = [0.3, -0.2, 0.25, -1.1, 0.05]
    with mpmath.workdps(60):
        expected = _exact_entmax(z, mpmath.mpf(float(alpha)))
        error = max(
            abs(mpmath.mpf(str(p)) - q)
            for p, q in zip(rows.entmax(np.array(z), float(alpha)), expected, strict=True)
        )
    assert error < 1e-17 if np.finfo(np.longdouble).eps < 1e-18 else error < 1e-14


def test_entmax_oracle_keeps_its_digits_when_a_crowd_lies_at_the_threshold():
    z = np.zeros(1702)
    z[0] = 0.23
    p = rows.entmax(z, 4.6)
    with mpmath.workdps(60):
        beta, height = mpmath.mpf(4.6) - 1, mpmath.mpf(0.23)
        small = mpmath.findroot(
            lambda p: 1701 * p + (p**beta + beta * height) ** (1 / beta) - 1,
            (0, mpmath.mpf(1) / 1701),
            solver="anderson",
        )
    assert float(p[1]) == pytest.approx(float(small), rel=1e-12)
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-15)


def test_difference_quotients_give_the_closed_form_at_softmax():
    """At alpha = 1, dp/dz = diag(p) - p p' and dp/dalpha = p (E[log^2 p] - log^2 p) / 2."""
    z = np.array([0.7, -0.4, 0.1, -2.0])
    p = rows.softmax(z)
    by_z = derivatives.jacobian(rows.softmax, z)
    np.testing.assert_allclose(
        by_z.astype(float), (np.diag(p) - np.outer(p, p)).astype(float), atol=1e-13
    )
    by_alpha = derivatives.derivative(lambda alpha: rows.entmax(z, alpha), 1.0)
    squares = np.log(p) ** 2
    expected = p * ((p * squares).sum() - squares) / 2
    np.testing.assert_allclose(by_alpha.astype(float), expected.astype(float), atol=1e-13)
