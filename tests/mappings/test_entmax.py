"""What is special to entmax: its two known members, continuity in alpha, and alpha next to 1."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.oracles import derivatives, rows

import parsimax as px

every_backend = pytest.mark.parametrize("backend", AVAILABLE)
SCORES = torch.tensor([0.9, 0.31, -0.2, 0.85, -1.4, 0.0], dtype=torch.float64)


@every_backend
def test_alpha_1_is_softmax_and_2_is_sparsemax(backend):
    z = torch.randn(5, 40, dtype=torch.float64)
    torch.testing.assert_close(
        px.entmax(z, 1.0, backend=backend), torch.softmax(z, -1), atol=1e-15, rtol=0
    )
    assert torch.equal(px.entmax(z, 1.0, backend=backend), px.softmax(z, backend=backend))
    assert torch.equal(px.entmax(z, 2.0, backend=backend), px.sparsemax(z, backend=backend))
    assert torch.equal(px.entmax(z, 2, backend=backend), px.sparsemax(z, backend=backend))


@every_backend
def test_values_that_can_be_worked_out_by_hand(backend):
    def entmax(scores, alpha):
        return px.entmax(torch.tensor(scores, dtype=torch.float64), alpha, backend=backend).tolist()

    # alpha = 2: p = z - tau; 1.5: sqrt(p) = z/2 - tau with one and with two survivors
    assert entmax([1.0, 0.5, -1.0], 2.0) == pytest.approx([0.75, 0.25, 0.0])
    assert entmax([2.0, 0.0], 1.5) == pytest.approx([1.0, 0.0])
    tau = (1 - 7**0.5) / 4  # (1/2 - tau)^2 + tau^2 = 1
    assert entmax([1.0, 0.0], 1.5) == pytest.approx([(0.5 - tau) ** 2, tau**2])
    # alpha = 3: p^2 = 2 (z - tau)
    assert entmax([0.5, 0.0], 3.0) == pytest.approx([1.0, 0.0])
    assert entmax([0.3, 0.0], 3.0) == pytest.approx([0.8, 0.2])  # 0.64 - 0.04 = 2 * 0.3
    for alpha in (1.0, 1.2, 1.5, 2.0, 3.0, 50.0):
        assert entmax([7.0] * 4, alpha) == pytest.approx([0.25] * 4)


@every_backend
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_continuous_where_the_algorithm_changes(alpha, backend):
    """|dp/dalpha| is below 1 here, so a step of 1e-9 in alpha moves p by less than 1e-9."""
    z = torch.randn(8, 33, dtype=torch.float64) * torch.logspace(-3, 2, 8).unsqueeze(1)
    at = px.entmax(z, alpha, backend=backend)
    for step in (1e-9, -1e-9):
        if alpha + step >= 1:
            near = px.entmax(z, alpha + step, backend=backend)
            assert (near - at).abs().max() < 2e-9
    as_tensor = px.entmax(z, torch.tensor(alpha, dtype=torch.float64), backend=backend)
    assert (as_tensor - at).abs().max() < 1e-14


@every_backend
@pytest.mark.parametrize("alpha", ["1", "1.0000001", "1.0001", "1.01", "1.25"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradient_in_alpha_at_1_and_next_to_it(alpha, dtype, backend):
    """Against fifty digits: at 1 the limit, where a formula divides by (alpha - 1)^2."""
    z = SCORES[:4].to(dtype)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=dtype)
    value = torch.tensor(float(alpha), dtype=torch.float64, requires_grad=True)
    (px.entmax(z, value, backend=backend) * weights).sum().backward()
    with mpmath.workdps(50):
        step = mpmath.mpf(10) ** -15
        ahead = _exact(z.double().tolist(), mpmath.mpf(float(alpha)) + step)
        behind = _exact(z.double().tolist(), mpmath.mpf(float(alpha)) - step)
        expected = sum(
            float(w) * (a - b) / (2 * step) for w, a, b in zip(weights, ahead, behind, strict=True)
        )
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert float(value.grad) == pytest.approx(float(expected), abs=tolerance)


def _exact(z, alpha):
    """entmax by Newton in fifty digits, also for alpha below 1; all of ``z`` in the support."""
    beta = alpha - 1

    def p(t):
        return [mpmath.exp(mpmath.log1p(beta * (mpmath.mpf(x) - t)) / beta) for x in z]

    top = mpmath.findroot(
        lambda t: mpmath.fsum(p(t)) - 1, mpmath.log(mpmath.fsum(map(mpmath.exp, z)))
    )
    return p(top)


@every_backend
@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.3])
def test_second_derivatives_in_alpha(alpha, backend):
    z = SCORES[:4]

    def first(x):
        return derivatives.derivative(
            lambda y: rows.entmax(z.numpy(), y), x, np.longdouble(2) ** -8
        )

    expected = derivatives.derivative(first, alpha, np.longdouble(2) ** -8).astype(float)
    value = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    found = []
    for i in range(z.numel()):
        p = px.entmax(z, value, backend=backend)[i]
        (slope,) = torch.autograd.grad(p, value, create_graph=True)
        found.append(float(torch.autograd.grad(slope, value)[0]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@every_backend
def test_mixed_derivative_in_scores_and_alpha_at_softmax(backend):
    """d/dz of dp/dalpha = p (E[log^2 p] - log^2 p) / 2, by autograd on that closed form."""
    z = SCORES.clone().requires_grad_()
    weights = torch.linspace(-1, 1, 6, dtype=torch.float64)
    alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        (px.entmax(z, alpha, backend=backend) * weights).sum(), alpha, create_graph=True
    )
    (found,) = torch.autograd.grad(slope, z)
    p = torch.softmax(z, -1)
    squares = p.log() ** 2
    (expected,) = torch.autograd.grad((p * ((p * squares).sum() - squares) / 2 * weights).sum(), z)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)


@every_backend
@pytest.mark.parametrize("alpha", [5.0, 20.0, 100.0, 1000.0])
def test_very_large_alpha(alpha, backend):
    """Towards the argmax, ties shared; powers neither overflow nor lose mass."""
    z = torch.tensor(
        [[0.0, 0.0, -1.0, -1.0], [0.0, -0.01, -0.02, -3.0], [0.0, -1e-4, -2e-4, -1e-3]]
    )
    for dtype in (torch.float64, torch.float32):
        p = px.entmax(z.to(dtype), alpha, backend=backend)
        assert (p.double().sum(-1) - 1).abs().max() < 1e-6
        for row, scores in zip(p, z.to(dtype).double().numpy(), strict=True):
            np.testing.assert_allclose(
                row.numpy(), rows.entmax(scores, alpha).astype(float), atol=1e-6
            )


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradient_in_a_large_alpha_with_small_probabilities(dtype, backend):
    """p^(2 - alpha) is 1e11 here, and cancels out of the gradient in alpha."""
    z = torch.zeros(90, dtype=dtype)
    z[7] = 0.25
    alpha = torch.tensor(4.7, dtype=torch.float64, requires_grad=True)
    p = px.entmax(z, alpha, backend=backend)
    assert 0 < p.detach().min() < 1e-3
    expected = derivatives.derivative(
        lambda x: rows.entmax(z.double().numpy(), x), 4.7, np.longdouble(2) ** -12
    )
    (found,) = torch.autograd.grad(p[7], alpha)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    assert float(found) == pytest.approx(float(expected[7]), rel=tolerance)


@every_backend
def test_alpha_per_head_learns(backend):
    """The shape of use: scores (batch, head, query, key), one alpha a head, gradient by head."""
    z = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    alpha = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64).reshape(3, 1, 1).requires_grad_()
    p = px.entmax(z, alpha, backend=backend)
    for head, value in enumerate((1.0, 1.5, 2.0)):
        torch.testing.assert_close(p[:, head], px.entmax(z[:, head], value, backend=backend))
    p.square().sum().backward()
    step = 1e-6
    for head in (1, 2):
        ahead, behind = alpha.detach().clone(), alpha.detach().clone()
        ahead[head] += step
        behind[head] -= step
        slope = (px.entmax(z, ahead).square().sum() - px.entmax(z, behind).square().sum()) / (
            2 * step
        )
        assert float(alpha.grad[head]) == pytest.approx(float(slope), rel=1e-6)
