"""normmax on the GPU: values where a crowd stands at the threshold, and gradients."""

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
from parsimax.kernels.gpu import normmax

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ALPHAS = (1.001, 1.3, 1.5, 2.0, 3.0, 100.0)


def allowed(alpha):
    """Twice what is left to float32 before a row is solved in float64 (_crowded)."""
    return 2e-6 if alpha <= 2 else 2e-5


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [2, 31, 130])
def test_rows_that_break_solvers(d, alpha):
    z = hard_rows(d)
    p, expected = solve(normmax, z, alpha), exact("normmax", z, alpha)
    assert (p >= 0).all()
    assert worst(p, expected) < allowed(alpha)
    assert sums_off(p) < 1e-6
    assert (p[expected == 0] == 0).all()


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 3.0])
def test_long_rows_are_streamed(alpha):
    z = torch.randn(2, STREAMED)
    # The second row is one score, and a crowd where it first receives something: a threshold in
    # float32 would be off by a part in 1e7, and the largest probability by that times the crowd.
    z[1] = -1 + 1e-6 * torch.rand(STREAMED)
    z[1, 0] = 0.0
    p = solve(normmax, z, alpha)
    assert worst(p, exact("normmax", z, alpha)) < 2e-6
    assert sums_off(p) < 1e-6


@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.7, 2.0, 2.5])
@pytest.mark.parametrize("tops", [1, 2, 4, 9] if DEVICE == "cuda" else [1, 4])
def test_crowds_around_the_threshold_of_several_tops(tops, alpha):
    """Equal scores at the top, and hundreds on both sides of the threshold they have alone."""
    gap = tops ** (1 / alpha - 1)
    width = torch.tensor([[0.0], [1e-7], [1e-6], [1e-5], [1e-3]])
    z = width * (torch.rand(5, 250) - 0.3) - gap
    z[:, :tops] = 0.0
    z = torch.cat([z, z + 0.37, z + 1000] if DEVICE == "cuda" else [z + 0.37])
    p = solve(normmax, z, alpha)
    assert worst(p, exact("normmax", z, alpha)) < allowed(alpha)
    assert sums_off(p) < 1e-6


def test_a_number_close_to_one_is_not_rounded():
    """alpha - 1 of a number in float32 would be wrong by a tenth."""
    alpha = 1 + 1e-6 / 3
    z = torch.tensor([[0.0, -1e-7, -3e-7, -1e-6, -1.0]])
    assert worst(solve(normmax, z, alpha), exact("normmax", z, alpha)) < 1e-6


def test_a_tensor_of_alpha():
    z = torch.randn(40, 30)
    alpha = 1.05 + 3 * torch.rand(40)
    alpha[:5] = torch.tensor([1.0, torch.nan, torch.inf, 0.5, 2.0])
    z[3] = -torch.inf
    p = solve(normmax, z, alpha)
    assert p[:3].isnan().all()
    assert (p[3] == 0).all()  # nothing allowed comes before a bad alpha
    assert worst(p[4:], exact("normmax", z[4:], alpha[4:])) < allowed(3.0)
    gradient, change = pull_back(normmax, p, torch.randn(40, 30), alpha)
    assert gradient[:3].isnan().all()
    assert change[:3].isnan().all()
    assert (gradient[3] == 0).all()
    assert change[3] == 0
    assert gradient[4:].isfinite().all()


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [*SHORT, STREAMED])
def test_gradients_at_the_same_probabilities(d, alpha):
    # deviations at which several scores share the mass whatever alpha is
    z, g = min(1.0, 3 * (alpha - 1)) * torch.randn(3, d), torch.randn(3, d)
    p = exact("normmax", z, alpha).float()
    gradient, change = pull_back(normmax, p, g, alpha)
    expected, expected_change = exact_pull_back("normmax", p, g, alpha)
    assert worst(gradient, expected) < 3e-6
    torch.testing.assert_close(change.double(), expected_change, rtol=1e-5, atol=3e-6)


def test_gradients_of_a_tensor_of_alpha():
    """Against autograd through the reference, at probabilities of its own."""
    z, g = torch.randn(6, 12), torch.randn(6, 12)
    alpha = torch.tensor([1.1, 1.5, 2.0, 2.5, 4.0, 10.0])
    p = solve(normmax, z, alpha)
    gradient, change = pull_back(normmax, p, g, alpha)
    wide, order = z.double().requires_grad_(), alpha.double()[:, None].requires_grad_()
    px.normmax(wide, order, backend="torch").backward(g.double())
    torch.testing.assert_close(gradient.double(), wide.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(change.double(), order.grad[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [1e3, 1e5, 1e8])
def test_order_is_kept_where_all_probabilities_are_nearly_equal(alpha):
    z = -torch.linspace(0, 2, 60)[None]
    p = solve(normmax, z, alpha)
    assert (p.diff() <= 0).all()
    # the float64 gradient is below 2e-3 for all three; noise in the order once made it 1e5
    weights = torch.arange(60.0)[None] / 60
    pulled = pull_back(normmax, p, weights, alpha)
    assert pulled[0].abs().max() < 1e-2
