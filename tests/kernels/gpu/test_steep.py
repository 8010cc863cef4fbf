"""entmax above alpha = 2 on the GPU: values, which rows are owned, gradients."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.rows import (
    DEVICE,
    SHORT,
    STREAMED,
    exact,
    exact_pull_back,
    hard_rows,
    pull_back,
    solve,
    sums_off,
    worst,
)

import parsimax as px
from parsimax.kernels.gpu import steep

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ALPHAS = (2.0000005, 2.5, 4.0, 50.0, 1e4)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [2, 31, 130])
def test_rows_that_break_solvers(d, alpha):
    z = hard_rows(d)
    p, expected = solve(steep, z, alpha), exact("entmax", z, alpha)
    assert (p >= 0).all()
    # The contract asks for 5e-3, because a score that moves by its last digit may move p so far.
    # The scores here are exact, and so are their distances from the lowest of the support.
    assert worst(p, expected) < 2e-6
    assert sums_off(p) < 1e-6
    assert (p[expected == 0] == 0).all()


@pytest.mark.parametrize("alpha", [2.2, 3.0])
def test_long_rows_are_streamed(alpha):
    z = torch.randn(2, STREAMED)
    z[1, 5000:] = 4.0  # equal scores on both sides of a chunk's end
    p = solve(steep, z, alpha)
    assert worst(p, exact("entmax", z, alpha)) < 2e-6
    assert sums_off(p) < 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e6, 1e30])
def test_scores_of_any_scale(scale):
    """(1e-30)^(1/9) is 5e-4: scores that differ by nothing else still differ in probability."""
    z = torch.randn(4, 40) * scale
    z[0] += 1e6 * scale
    p = solve(steep, z, 10.0)
    assert worst(p, exact("entmax", z, 10.0)) < 2e-6
    assert sums_off(p) < 1e-6


def test_a_tensor_of_alpha_leaves_the_rows_of_other_kernels_alone():
    n = 150
    z = torch.randn(n, 20)
    alpha = 1 + 4 * torch.rand(n)
    alpha[:6] = torch.tensor([1.0, 2.0, torch.nan, torch.inf, 0.5, -torch.inf])
    z[5] = -torch.inf
    ours = ~((alpha >= 1) & (alpha <= 2))
    z, alpha, ours = z.to(DEVICE), alpha.to(DEVICE), ours.to(DEVICE)
    out = torch.full_like(z, 7.0)
    steep.forward(z, alpha, out)
    assert (out[~ours] == 7).all()
    assert out[2:5].isnan().all()
    assert (out[5] == 0).all()  # nothing allowed comes before a bad alpha
    solved = alpha > 2
    solved[3] = False
    assert worst(out[solved], exact("entmax", z[solved], alpha[solved])) < 2e-6

    gradient, change = torch.full_like(z, 7.0), torch.full((n,), 7.0, device=DEVICE)
    steep.backward(out, torch.randn_like(z), alpha, gradient, change)
    assert (gradient[~ours] == 7).all()
    assert (change[~ours] == 7).all()
    assert gradient[2:5].isnan().all()
    assert change[2:5].isnan().all()
    assert (gradient[5] == 0).all()
    assert change[5] == 0
    assert gradient[solved].isfinite().all()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_a_number_that_is_not_steep_does_nothing(alpha):
    z = torch.randn(3, 5, device=DEVICE)
    out = torch.full_like(z, 7.0)
    steep.forward(z, alpha, out)
    steep.backward(z, z, alpha, out, None)
    assert (out == 7).all()


@pytest.mark.parametrize("alpha", [2.1, 2.5, 4.0])
@pytest.mark.parametrize("d", [*SHORT, STREAMED])
def test_gradients_at_the_same_probabilities(d, alpha):
    """Relative to the row's largest, which grows without bound as a probability goes to zero."""
    z, g = torch.randn(3, d), torch.randn(3, d)
    p = exact("entmax", z, alpha).float()
    gradient, change = pull_back(steep, p, g, alpha)
    expected, expected_change = exact_pull_back("entmax", p, g, alpha)
    assert worst(gradient, expected) < 2e-6
    torch.testing.assert_close(change.double(), expected_change, rtol=1e-5, atol=2e-6)


def test_gradients_of_a_tensor_of_alpha():
    """Against autograd through the reference, at probabilities of its own."""
    z = torch.randn(5, 12)
    alpha = torch.tensor([2.05, 2.3, 2.5, 3.0, 3.5])
    g = torch.randn(5, 12)
    p = solve(steep, z, alpha)
    gradient, change = pull_back(steep, p, g, alpha)
    wide, order = z.double().requires_grad_(), alpha.double()[:, None].requires_grad_()
    px.entmax(wide, order, backend="torch").backward(g.double())
    # s = p^(2 - alpha) multiplies what p is off by
    torch.testing.assert_close(gradient.double(), wide.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(change.double(), order.grad[:, 0], rtol=1e-4, atol=1e-4)


def test_a_weight_too_large_for_a_float_gives_no_nan():
    p = torch.tensor([[0.75, 0.25 - 1e-6, 1e-6, 0.0], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    gradient, change = pull_back(steep, p, torch.randn(3, 4), 1e4)
    assert gradient.isfinite().all()
    assert change.isfinite().all()
    assert (gradient[p == 0] == 0).all()
    assert (gradient[2] == 0).all()
