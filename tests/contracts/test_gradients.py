"""Line 6 of the contract, first half: derivatives, against the oracle and against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import FAMILIES, MEMBERS, TYPICAL, WITH_PARAMETER, Member
from tests.contracts.smooth import smooth_scores
from tests.oracles import derivatives

every_backend = pytest.mark.parametrize("backend", AVAILABLE)
every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_parameter = pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)


@every_member
def test_the_scores_of_these_tests_have_sparse_outputs(member):
    p = member.mapping(smooth_scores(member))
    assert (p > 0).sum(-1).min() > 1
    if member.oracle(np.array([0.0, -1e3, -1e3]))[1] == 0 and member.smallest == 1:
        assert ((p == 0).sum(-1) > 0).all()


@every_backend
@every_member
def test_jacobian_in_the_scores(member, backend):
    z = smooth_scores(member)
    for row in z:
        found = torch.autograd.functional.jacobian(
            lambda x: member.mapping(x, backend=backend), row
        )
        expected = derivatives.jacobian(member.oracle, row.numpy()).astype(float)
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-9 * scale)


@every_backend
@pytest.mark.parametrize("member", [m for m in MEMBERS if m.family.parameter], ids=str)
def test_gradient_in_the_parameter(member, backend):
    """Against the oracle, at every example: alpha = 1 and next to it, lam = -1e6, k = 1e-6, ..."""
    name, value = member.family.parameter, member.parameter
    d = member.smallest + 4
    z = torch.linspace(-0.71, 0.83, d, dtype=torch.float64) ** 3
    while np.sort(member.oracle(z.numpy()))[-2] < 1e-3 * min(1.0, member.mass):
        z /= 4  # until there is something to share
    pattern = member.pattern(member.oracle(z.numpy()))
    step = np.longdouble(member.family.room(**member.arguments)) / 16

    def moved(x):
        return member.oracle(z.numpy(), **{name: x})

    while any(member.pattern(moved(value + sign * step)) != pattern for sign in (-1, 1)):
        step /= 2
    expected = derivatives.derivative(moved, value, step / 256)
    parameter = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    p = member.function(z, backend=backend, **{name: parameter})
    scale = float(np.abs(expected).max())
    for i in range(d):
        (found,) = torch.autograd.grad(p[i], parameter, retain_graph=True)
        assert abs(float(found) - float(expected[i])) <= 1e-9 * scale


@every_backend
@every_member
def test_gradcheck_in_the_scores(member, backend):
    """A sparse row, a row with masked scores, and a row with nothing allowed."""
    z = smooth_scores(member, rows=2, d=5)
    z = torch.cat([z, torch.full((1, 5), -torch.inf, dtype=z.dtype)])
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[:, 2] = False
    mask[2] = False
    inner = torch.where(z.isfinite(), z, 0.0).requires_grad_()

    def mapped(x):
        wide = torch.cat([x[:, :2], torch.full_like(x[:, :1], torch.nan), x[:, 2:]], -1)
        return member.mapping(wide, mask=mask, backend=backend)

    assert torch.autograd.gradcheck(mapped, inner)
    assert torch.autograd.gradgradcheck(mapped, inner)


@every_backend
@every_parameter
def test_gradcheck_in_scores_and_parameter(member, backend):
    z = smooth_scores(member, rows=2, d=5).requires_grad_()
    value = max(member.parameter, 1.01) if member.name == "entmax" else member.parameter
    parameter = torch.tensor([[value], [value + 0.002]], dtype=torch.float64, requires_grad=True)
    name = member.family.parameter

    def mapped(x, y):
        return member.function(x, backend=backend, **{name: y})

    assert torch.autograd.gradcheck(mapped, (z, parameter))
    assert torch.autograd.gradgradcheck(mapped, (z, parameter))


@every_backend
@every_parameter
@pytest.mark.parametrize("shape", [(), (1,), (2, 1, 1), (3, 1), (1, 3, 1)], ids=str)
def test_gradient_of_a_broadcast_parameter_is_the_sum_over_rows(member, shape, backend):
    z = torch.randn(2, 3, 6, dtype=torch.float64)
    weights = torch.randn(2, 3, 6, dtype=torch.float64)
    name = member.family.parameter
    full = torch.full((2, 3, 1), member.parameter, dtype=torch.float64, requires_grad=True)
    (member.function(z, backend=backend, **{name: full}) * weights).sum().backward()
    small = torch.full(shape, member.parameter, requires_grad=True)  # float32, beside float64
    (member.function(z, backend=backend, **{name: small}) * weights).sum().backward()
    assert small.grad.dtype == torch.float32
    assert small.grad.shape == small.shape
    torch.testing.assert_close(
        small.grad, full.grad.sum_to_size(shape).float(), rtol=1e-5, atol=1e-6
    )


@every_backend
@every_member
def test_float32_gradients_are_those_of_float64(member, backend):
    """Relative to the largest entry of J: p is right to 1e-7, and here never next to zero."""
    z = smooth_scores(member, rows=3, d=7).float()
    weights = torch.randn(3, 7)
    results = []
    for dtype in (torch.float32, torch.float64):
        x = z.to(dtype).requires_grad_()
        p = member.mapping(x, backend=backend)
        (gradient,) = torch.autograd.grad(p, x, weights.to(dtype))
        results.append((p.detach().double(), gradient.double()))
    least = results[1][0][results[1][0] > 0].min()
    # J is made of powers p^(2 - alpha), alpha at most 3 here: relative slope at most 2 / p
    scale = results[1][1].abs().max() * (1 + 2e-1 / least)
    assert (results[0][1] - results[1][1]).abs().max() <= 1e-6 * max(scale, 1.0)


@every_backend
@every_parameter
def test_float32_gradient_in_the_parameter(member, backend):
    z = smooth_scores(member, rows=3, d=7).float()
    weights = torch.randn(3, 7)
    results = []
    for dtype in (torch.float32, torch.float64):
        parameter = torch.full((3, 1), member.parameter, dtype=torch.float64, requires_grad=True)
        p = member.function(z.to(dtype), backend=backend, **{member.family.parameter: parameter})
        results.append(torch.autograd.grad(p, parameter, weights.to(dtype))[0])
    torch.testing.assert_close(results[0], results[1], rtol=2e-5, atol=2e-6)


@every_backend
@pytest.mark.parametrize(
    ("name", "value"), [("sparsegen", 0.999999), ("normmax", 1.0001), ("entmax", 1 + 1e-9)]
)
def test_a_parameter_next_to_its_limit_is_not_rounded_with_the_scores(name, value, backend):
    """1 - lam and alpha - 1 have digits in float64 that float32 scores must not take from them."""
    member = Member(name, {FAMILIES[name].parameter: value})
    z = torch.linspace(-1, 1, 6) * abs(1 - value) * (1 if name != "entmax" else 1e9)
    weights = torch.randn(6)
    results = []
    for dtype in (torch.float32, torch.float64):
        for number in (value, torch.tensor(value, dtype=torch.float64)):
            x = z.to(dtype).requires_grad_()
            p = member.function(x, backend=backend, **{member.family.parameter: number})
            results.append(torch.autograd.grad(p, x, weights.to(dtype))[0].double())
    for gradient in results[:3]:
        torch.testing.assert_close(gradient, results[3], rtol=1e-5, atol=1e-6)


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_member
def test_half_precision_gradients(member, dtype, backend):
    """Computed from the rounded output, in float32, and rounded: a few of the type's own ulps."""
    z = smooth_scores(member, rows=3, d=7).to(dtype)
    weights = torch.randn(3, 7).to(dtype)
    x = z.requires_grad_()
    (gradient,) = torch.autograd.grad(member.mapping(x, backend=backend), x, weights)
    assert gradient.dtype == dtype
    y = z.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(member.mapping(y, backend=backend), y, weights.float())
    eps = torch.finfo(dtype).eps
    assert (gradient.float() - expected).abs().max() <= 8 * eps * max(1.0, expected.abs().max())


@every_backend
@every_member
def test_backends_agree_on_long_rows(member, backend):
    """d = 1000 with ties and masks, where the kernels gather; against float64 in plain torch."""
    z = torch.randn(4, 1000).mul(2).round().div(4)
    z[1, ::3] = -torch.inf
    weights = torch.randn(4, 1000)
    results = []
    for name, dtype in ((backend, torch.float32), ("torch", torch.float64)):
        x = z.to(dtype).requires_grad_()
        p = member.mapping(x, backend=name)
        results.append(torch.autograd.grad(p, x, weights.to(dtype))[0].double())
    scale = max(1.0, float(results[1].abs().max()))
    assert (results[0] - results[1]).abs().max() <= 2e-5 * scale


@every_member
def test_a_graph_may_be_used_twice_and_without_gradients(member):
    z = torch.randn(3, 6, requires_grad=True)
    p = member.mapping(z)
    first = torch.autograd.grad(p.square().sum(), z, retain_graph=True)[0]
    second = torch.autograd.grad(p.square().sum(), z)[0]
    assert torch.equal(first, second)
    with torch.no_grad():
        assert not member.mapping(z).requires_grad
    with torch.inference_mode():
        assert torch.equal(member.mapping(z), p.detach())
