"""What is special to normmax: a norm as regulariser, between the argmax and a uniform set."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.backends import AVAILABLE

import parsimax as px

every_backend = pytest.mark.parametrize("backend", AVAILABLE)


@every_backend
def test_values_that_can_be_worked_out_by_hand(backend):
    """alpha = 2: p = r / sum(r) for r = (z - tau)_+ of length one."""
    z = torch.tensor([0.2, 0.0], dtype=torch.float64)
    # (0.2 + s)^2 + s^2 = 1 at s = 0.6
    assert px.normmax(z, 2.0, backend=backend).tolist() == pytest.approx([0.8 / 1.4, 0.6 / 1.4])
    assert px.normmax(z * 5, 2.0, backend=backend).tolist() == pytest.approx([1.0, 0.0])
    assert px.normmax(z * 0, 7.0, backend=backend).tolist() == pytest.approx([0.5, 0.5])


@every_backend
def test_low_order_is_the_argmax(backend):
    """max <z, p> - sum(p) at order one is a linear program."""
    z = torch.tensor([0.5, 0.1, -2.0, 0.4])
    p = px.normmax(z, 1.0001, backend=backend)
    torch.testing.assert_close(p, torch.tensor([1.0, 0.0, 0.0, 0.0]), atol=1e-6, rtol=0)
    tied = px.normmax(torch.tensor([0.5, 0.5, 0.2]), 1.0001, backend=backend)
    torch.testing.assert_close(tied, torch.tensor([0.5, 0.5, 0.0]), atol=1e-6, rtol=0)


@every_backend
def test_high_order_is_uniform_on_a_set(backend):
    """At order infinity the norm is max(p): all mass that pays is spread evenly."""
    z = torch.tensor([0.30, 0.25, 0.0, -5.0], dtype=torch.float64)
    p = px.normmax(z, 1e4, backend=backend)
    torch.testing.assert_close(
        p, torch.tensor([1, 1, 1, 0], dtype=torch.float64) / 3, atol=1e-3, rtol=0
    )


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_high_orders_on_long_rows_do_not_underflow(dtype, backend):
    """p^100 of a thousand equal entries is 1e-300: the norm and the gradient need care."""
    z = torch.linspace(0, 1e-4, 1000, dtype=dtype).requires_grad_()
    mapping = px.mappings.Normmax(alpha=100.0)
    p = mapping(z, backend=backend)
    assert (p > 0).all()
    omega = mapping.regularizer(p.detach())
    assert float(omega) == pytest.approx(1e-3 * 1000 ** (1 / 100), rel=1e-4)
    (gradient,) = torch.autograd.grad((p * z.detach()).sum(), z)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
    step = 1e-9
    wide = z.detach().double()
    direction = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    moved = [(mapping(wide + sign * step * direction) * wide).sum() for sign in (1, -1)]
    slope = float(moved[0] - moved[1]) / (2 * step)
    assert float((gradient.double() * direction).sum()) == pytest.approx(slope, rel=1e-3)


@every_backend
def test_probabilities_below_the_normal_numbers_have_finite_gradients(backend):
    z = torch.tensor([0.0, -0.1, -0.9995, -0.99901], dtype=torch.float64)
    x = z.clone().requires_grad_()
    p = px.normmax(x, 1.0106, backend=backend)
    assert ((p > 0) & (p < 2.3e-308)).any()
    (gradient,) = torch.autograd.grad(p, x, torch.tensor([1.0, 2.0, -1.0, 3.0], dtype=x.dtype))
    assert gradient.isfinite().all()
