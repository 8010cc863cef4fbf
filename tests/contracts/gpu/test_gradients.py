"""Line 6 of the contract for the Triton kernels: gradients, against float64 in plain torch."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import on_device, triton_rows, with_gradient
from tests.contracts.members import FAMILIES, ON_GPU, PARAMETERS_ON_GPU, Member
from tests.contracts.smooth import smooth_scores

every_member = pytest.mark.parametrize("member", ON_GPU, ids=str)
every_parameter = pytest.mark.parametrize("member", PARAMETERS_ON_GPU, ids=str)


def _reference(member, z, weights, **options):
    """The same in float64, by plain torch."""
    return with_gradient(member, z.double(), weights.double(), backend="torch", **options)


@every_member
def test_in_the_scores(member):
    """Relative to the largest entry of J: p is right to 1e-7, and here never next to zero."""
    z, weights = on_device(smooth_scores(member, rows=3, d=7), torch.float32), torch.randn(3, 7)
    weights = on_device(weights)
    _, gradient = with_gradient(member, z, weights)
    p, expected = _reference(member, z, weights)
    # J is made of powers p^(2 - alpha), alpha at most 3 here: relative slope at most 2 / p
    scale = expected.abs().max() * (1 + 2e-1 / p[p > 0].min())
    assert (gradient - expected).abs().max() <= 1e-6 * max(scale, 1.0)


@pytest.mark.parametrize("d", [33, 1000])
@every_member
def test_ties_and_masks(member, d):
    z = torch.randn(6, d).mul(2).round().div(4)
    z[1, ::3] = -torch.inf
    z[2] = 0.25
    z, weights = on_device(z), on_device(torch.randn(6, d))
    _, gradient = with_gradient(member, z, weights)
    _, expected = _reference(member, z, weights)
    scale = max(1.0, float(expected.abs().max()))
    assert (gradient - expected).abs().max() <= 2e-5 * scale


@every_member
def test_rows_that_are_streamed(member):
    z = torch.randn(2, 9000).mul(8).round().div(8)
    z, weights = on_device(z), on_device(torch.randn(2, 9000))
    _, gradient = with_gradient(member, z, weights)
    _, expected = _reference(member, z, weights)
    scale = max(1.0, float(expected.abs().max()))
    assert (gradient - expected).abs().max() <= 2e-5 * scale


@every_parameter
def test_in_the_parameter(member):
    """One value a row, and one for all, which gets the sum."""
    z = on_device(smooth_scores(member, rows=3, d=7), torch.float32)
    weights = on_device(torch.randn(3, 7))
    name = member.family.parameter
    full = on_device(torch.full((3, 1), member.parameter, dtype=torch.float64))
    *_, change = with_gradient(member, z, weights, **{name: full})
    *_, expected = _reference(member, z, weights, **{name: full})
    torch.testing.assert_close(change, expected, rtol=2e-5, atol=2e-6)
    *_, total = with_gradient(member, z, weights, **{name: full[0, 0].float()})
    assert total.shape == ()
    torch.testing.assert_close(total.double(), expected.sum(), rtol=1e-4, atol=1e-5)


def test_in_alpha_everywhere():
    """From 1, where it has a limit, over 2 up: all in one batch."""
    alphas = [1.0, 1 + 1e-6, 1.0001, 1.01, 1.05, 1.1, 1.3, 1.5, 1.7, 1.9, 1.999, 2.0, 2.5, 4.0]
    alpha = on_device(torch.tensor(alphas, dtype=torch.float64).unsqueeze(1))
    z = on_device(torch.linspace(-0.7, 0.9, 12).expand(len(alphas), 12))
    weights = on_device(torch.linspace(-1, 1, 12).square().expand(len(alphas), 12))
    member = Member("entmax", {"alpha": 1.5})
    _, gradient, change = with_gradient(member, z, weights, alpha=alpha)
    _, expected, expected_change = _reference(member, z, weights, alpha=alpha)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(change, expected_change, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("sparsegen", 0.999999), ("normmax", 1.0001), ("entmax", 1 + 1e-9)]
)
def test_a_parameter_next_to_its_limit_is_not_rounded_with_the_scores(name, value):
    """1 - lam and alpha - 1 have digits in float64 that float32 would take from them."""
    member = Member(name, {FAMILIES[name].parameter: value})
    z = on_device(torch.linspace(-1, 1, 6) * abs(1 - value) * (1 if name != "entmax" else 1e9))
    weights = on_device(torch.randn(6))
    _, expected = _reference(member, z, weights)
    _, gradient = with_gradient(member, z, weights)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)
    number = on_device(torch.tensor(value, dtype=torch.float64))
    _, gradient, _ = with_gradient(member, z, weights, **{member.family.parameter: number})
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_member
def test_half_precision(member, dtype):
    """Computed from the rounded output, in float32, and rounded: a few of the type's own ulps."""
    z = on_device(smooth_scores(member, rows=3, d=7), dtype)
    weights = on_device(torch.randn(3, 7), dtype)
    _, gradient = with_gradient(member, z, weights)
    assert gradient.dtype == dtype
    _, expected = with_gradient(member, z.float(), weights.float())
    eps = torch.finfo(dtype).eps
    assert (gradient.float() - expected).abs().max() <= 8 * eps * max(1.0, expected.abs().max())


@every_member
def test_second_derivatives_and_torch_func(member):
    """The backward of the backward is plain torch, on what the kernel gave."""
    z = on_device(smooth_scores(member, rows=2, d=5), torch.float32)
    weights = on_device(torch.linspace(-1, 2, 5))

    def f(x, backend):
        return (member.function(x, backend=backend) * weights.to(x)).sum()

    found = torch.func.hessian(lambda x: f(x, "triton"))(z[0])
    expected = torch.autograd.functional.hessian(lambda x: f(x, "torch"), z[0].double())
    scale = max(1.0, float(expected.abs().max()))
    assert (found - expected).abs().max() <= 1e-3 * scale
    batched = torch.func.vmap(lambda x: triton_rows(member, x))(z)
    assert torch.equal(batched, triton_rows(member, z))
