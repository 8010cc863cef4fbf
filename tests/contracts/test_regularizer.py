"""What defines a mapping: p maximises <p, z> - Omega(p), and Omega is what the papers say."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import MEMBERS, TYPICAL, WITH_PARAMETER

import parsimax as px

every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)


def _feasible(member, count, d, seed=0):
    """Random points of the set that is maximised over: corners, edges and the inside of it."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(d, 0.3), count)
    p[: count // 4] = np.eye(d)[rng.integers(0, d, count // 4)]
    if member.smallest == 1:
        return p
    # 0 <= p <= cap with a given sum: mixtures of the corners of that polytope
    k = member.mass / member.cap
    corners = np.zeros((count, d))
    corners[:, : int(k)] = 1
    corners[:, int(k)] = k - int(k)
    corners = rng.permuted(corners, axis=1)
    mixed = (corners + rng.permuted(corners, axis=1)) / 2
    return member.cap * np.where(rng.random((count, 1)) < 0.5, corners, mixed)


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_omega_is_its_definition(member):
    d = member.smallest + 4
    p = _feasible(member, 40, d) if member.mass >= 1 else np.eye(d) * member.mass
    expected = [float(member.family.regularizer(row, **member.arguments)) for row in p]
    found = member.mapping.regularizer(torch.tensor(p))
    scale = np.maximum(1.0, np.abs(expected))
    assert (np.abs(found.numpy() - expected) <= 1e-12 * scale).all()
    single = member.mapping.regularizer(torch.tensor(p, dtype=torch.float32))
    assert single.dtype == torch.float32
    assert (np.abs(single.numpy() - expected) <= 2e-6 * scale).all()


@pytest.mark.parametrize("backend", AVAILABLE)
@every_member
def test_nothing_feasible_is_better(member, backend):
    """Against random points, and against points near the solution on the segments to them."""
    rng = np.random.default_rng(1)
    for scale in (0.1, 1.0, 5.0):
        z = rng.normal(0, scale, 6)
        p = member.mapping(torch.tensor(z), backend=backend).numpy()

        def value(q, z=z):
            omega = member.family.regularizer(np.maximum(q, 0), **member.arguments)
            return float((q * z).sum() - omega)

        best = value(p)
        for q in _feasible(member, 60, 6):
            for step in (1.0, 0.1, 1e-3):
                assert value(p + step * (q - p)) <= best + 1e-13 * max(1.0, scale)


@every_member
def test_dims_dtypes_and_rows_of_zeros(member):
    p = torch.tensor(_feasible(member, 12, 5)).reshape(3, 4, 5)
    expected = member.mapping.regularizer(p)
    assert expected.shape == (3, 4)
    for dim in range(3):
        moved = p.movedim(-1, dim)
        torch.testing.assert_close(member.mapping.regularizer(moved, dim=dim), expected)
        torch.testing.assert_close(member.mapping.regularizer(moved, dim=dim - 3), expected)
    assert (member.mapping.regularizer(torch.zeros(2, 5)) == 0).all()
    with pytest.raises(TypeError, match=r"p must be a torch\.Tensor"):
        member.mapping.regularizer([0.5, 0.5])
    with pytest.raises(ValueError, match=r"dim must lie in \[-3, 2\].*got 3"):
        member.mapping.regularizer(p, dim=3)


@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_omega_with_one_parameter_a_row(member):
    p = torch.tensor(_feasible(member, 3, 5))
    values = torch.tensor([[member.parameter], [member.parameter + 0.1], [member.parameter]])
    mapping = type(member.mapping)(**{member.family.parameter: values.double()})
    for row in range(3):
        expected = member.family.regularizer(
            p[row].numpy(), **{member.family.parameter: float(values[row])}
        )
        assert float(mapping.regularizer(p)[row]) == pytest.approx(float(expected), abs=1e-6)


@every_member
def test_omega_is_differentiable_inside(member):
    """Its gradient at the solution is z up to a constant: the optimality condition itself."""
    z = torch.tensor([0.3, 0.2, 0.25, 0.1], dtype=torch.float64)
    if member.smallest > 1 or member.family.groups:
        return  # entries at the upper bound, and in groups, have multipliers of their own
    p = member.mapping(z).requires_grad_()
    (gradient,) = torch.autograd.grad(member.mapping.regularizer(p), p)
    difference = (z - gradient)[p > 0]
    assert difference.max() - difference.min() < 1e-12


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.4, 2.0, 3.0])
def test_slope_of_omega_in_alpha(alpha):
    """Against central differences of the definition, in extended precision; at 1 the limit."""
    p = torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0], dtype=torch.float64)
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(px.mappings.Entmax(a).regularizer(p), a)

    def tsallis(order):
        return sum(q * mpmath.expm1((order - 1) * mpmath.log(q)) for q in masses) / (
            order * (order - 1)
        )

    masses = [mpmath.mpf(q) for q in p.tolist() if q > 0]
    with mpmath.workdps(60):
        step = mpmath.mpf(10) ** -15
        expected = (tsallis(alpha + step) - tsallis(alpha - step)) / (2 * step)
    assert slope.item() == pytest.approx(float(expected), rel=1e-12)
