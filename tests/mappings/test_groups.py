"""fusedmax and oscarmax: exact solutions of their programs, groups, masks, lambda at its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.backends import AVAILABLE
from tests.oracles import programs, regularizers

import parsimax as px

every_backend = pytest.mark.parametrize("backend", AVAILABLE)
every_mapping = pytest.mark.parametrize("name", ["fusedmax", "oscarmax"])


@st.composite
def _rows(draw):
    """(scores, lambda): ties, runs, and shifts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    z = rng.normal(0, draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])), draw(st.integers(1, 8)))
    z = np.round(2 * z) / 2 if draw(st.booleans()) else z
    lam = draw(st.sampled_from([0.01, 0.1, 0.37, 2.0]))
    return z + draw(st.sampled_from([0.0, 20.0, -20.0])), lam


@every_backend
@every_mapping
@given(case=_rows())
def test_it_solves_its_quadratic_program(name, backend, case):
    """Within 1e-6 of an interior-point method, and never a worse value than it finds."""
    z, lam = case
    p = getattr(px, name)(torch.tensor(z), lam, backend=backend).numpy()
    assert abs(p.sum() - 1) < 1e-12
    other = programs.__dict__[name](z, lam)
    assert np.abs(p - other).max() < 1e-6
    other = np.maximum(other, 0) / np.maximum(other, 0).sum()
    y = (z - z.max()).astype(np.longdouble)
    omega = getattr(regularizers, name)
    assert omega(p, lam) - p @ y <= omega(other, lam) - other @ y + 1e-15


@every_backend
@every_mapping
def test_lambda_zero_is_sparsemax_with_its_gradient(name, backend):
    """Ties do not move together where nothing makes them; lambda moves in one direction only."""
    z = torch.tensor([[0.5, 0.5, 0.4, -3.0], [0.0, 0.3, 0.0, 0.3]], dtype=torch.float64)
    z.requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=torch.float64).expand(2, 4)
    lam = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(px.sparsemax(z), z, weights)
    for strength in (0.0, lam):
        p = getattr(px, name)(z, strength, backend=backend)
        torch.testing.assert_close(p, px.sparsemax(z), atol=1e-15, rtol=0)
        torch.testing.assert_close(torch.autograd.grad(p, z, weights)[0], expected)
    (found,) = torch.autograd.grad(getattr(px, name)(z, lam, backend=backend), lam, weights)
    step = 1e-6
    moved = getattr(px, name)(z, step, backend=backend) - px.sparsemax(z)
    torch.testing.assert_close(found, (moved * weights).sum() / step, rtol=1e-6, atol=1e-6)


@every_backend
@every_mapping
def test_a_large_lambda_is_uniform(name, backend):
    z = torch.randn(3, 50)
    mask = torch.rand(3, 50) < 0.8
    p = getattr(px, name)(z, 1e6, mask=mask, backend=backend)
    expected = mask / mask.sum(-1, keepdim=True)
    torch.testing.assert_close(p, expected.float())


@every_backend
@pytest.mark.parametrize("lam", [0.12, 0.3])
def test_fusedmax_makes_the_neighbours_of_masked_entries_adjacent(lam, backend):
    z = torch.tensor([1.0, -5.0, 0.9, -5.0, 0.2, 0.8], dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, True, True])
    weights = torch.randn(6, dtype=torch.float64)
    strength = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
    z.requires_grad_()
    p = px.fusedmax(z, strength, mask=mask, backend=backend)
    assert p[0] == p[2] > 0, "the first and third are one run"
    cut = z.detach()[mask].requires_grad_()
    same = px.fusedmax(cut, strength, backend=backend)
    assert torch.equal(p[mask], same)
    assert p[1] == 0
    found = torch.autograd.grad(p, (z, strength), weights, retain_graph=True)
    expected = torch.autograd.grad(same, (cut, strength), weights[mask])
    torch.testing.assert_close(found[0][mask], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    assert found[0][1] == 0
    # an entry of probability zero stands between its neighbours, a masked one does not
    apart = px.fusedmax(torch.tensor([1.0, -5.0, 1.0]), lam, backend=backend)
    assert torch.equal(apart, torch.tensor([0.5, 0.0, 0.5]))


@every_backend
def test_runs_with_a_zero_between_them_move_apart(backend):
    z = torch.tensor([1.0, -5.0, 1.0], dtype=torch.float64, requires_grad=True)
    jacobian = torch.autograd.functional.jacobian(lambda x: px.fusedmax(x, 0.1, backend=backend), z)
    expected = torch.tensor([[0.5, 0, -0.5], [0, 0, 0], [-0.5, 0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(jacobian, expected)
    mask = torch.tensor([True, False, True])
    jacobian = torch.autograd.functional.jacobian(
        lambda x: px.fusedmax(x, 0.1, mask=mask, backend=backend), z
    )
    assert (jacobian == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_mapping
def test_half_precision_does_not_group_by_rounding(name, dtype):
    """Neighbours that are equal after rounding alone are not one group for the gradient."""
    z = torch.linspace(1, 1.01, 30).repeat(4, 1).to(dtype).float() + torch.randn(4, 30) * 1e-3
    z = z.to(dtype)
    weights = torch.randn(4, 30)
    gradients = []
    for x in (z.clone().requires_grad_(), z.float().requires_grad_()):
        p = getattr(px, name)(x, 1e-5)
        gradients.append(torch.autograd.grad(p, x, weights.to(p.dtype))[0].float())
    scale = gradients[1].abs().max()
    assert (gradients[0] - gradients[1]).abs().max() <= 4 * torch.finfo(dtype).eps * scale


@every_mapping
def test_triton_has_no_kernel_and_says_so(name):
    pytest.importorskip("triton")
    with pytest.raises(ValueError, match=r"backend='triton' cannot run"):
        getattr(px, name)(torch.randn(2, 3), backend="triton")


@every_mapping
def test_backends_agree_on_rows_of_every_kind(name):
    mapping = getattr(px, name)
    kinds = {
        "normal": torch.randn(1000),
        "ramp": torch.linspace(-3, 3, 1000),
        "steps": torch.randn(10).repeat_interleave(100),
        "walk": torch.randn(1000).cumsum(0) / 10,
        "waves": (torch.arange(1000) / 30).sin(),
        "ties": torch.randn(1000).round(),
        "masked": torch.where(torch.rand(1000) < 0.5, torch.randn(1000), -torch.inf),
    }
    weights = torch.randn(1000, dtype=torch.float64)
    for kind, row in kinds.items():
        for lam in (1e-4, 0.01, 0.3, 5.0):
            results = []
            for backend in AVAILABLE:
                z = row.double().requires_grad_()
                strength = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
                p = mapping(z, strength, backend=backend)
                results.append((p.detach(), *torch.autograd.grad(p, (z, strength), weights)))
            for found in results[1:]:
                for x, y in zip(found, results[0], strict=True):
                    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9, msg=f"{kind} {lam}")
