"""budget on the GPU: values for any k, rows without a solution, gradients."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.rows import (
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
from parsimax.kernels.gpu import budget

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("k", [1e-6, 0.5, 1, 1.25, 2, 30.999])
@pytest.mark.parametrize("d", [2, 31, 130])
def test_rows_that_break_solvers(d, k):
    z = hard_rows(d)
    z = z[(z > -torch.inf).sum(-1) >= k]
    if len(z) == 0:
        return
    p, expected = solve(budget, z, k), exact("budget", z, k)
    assert ((p >= 0) & (p <= 1)).all()
    assert worst(p, expected) < 2e-7
    assert sums_off(p, k) < 1e-6
    assert (p[expected == 0] == 0).all()


@pytest.mark.parametrize("k", [3.5, 4100.0, STREAMED - 1.0, float(STREAMED)])
def test_long_rows_are_streamed(k):
    z = torch.randn(3, STREAMED)
    z[1] *= 1e4
    z[2] = 1e6
    p = solve(budget, z, k)
    assert worst(p, exact("budget", z, k)) < 2e-7
    assert sums_off(p, k) < 1e-6


def test_a_crowd_far_from_zero_keeps_its_sum():
    """tau itself, at 1e6, has a last digit of 1e-10 in float64: times the crowd, 1e-6."""
    z = torch.full((1, STREAMED), 1e6)
    z[0, ::2] += 0.0625
    assert sums_off(solve(budget, z, 0.5), 0.5) < 1e-6


def test_whole_budgets_between_the_scores():
    """Any tau between the two is right, and there is no slope to follow."""
    z = torch.tensor([[5.0, 3.0, 0.0, -4.0], [9.0, 9.0, -9.0, -9.0], [4.0, 1e30, -1e30, 8.0]])
    expected = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 1]])
    assert torch.equal(solve(budget, z, 2), expected)


def test_a_tensor_of_k_and_rows_without_a_solution():
    z = torch.randn(7, 6)
    z[4, 2:] = -torch.inf
    z[5] = -torch.inf
    k = torch.tensor([0.0, 6.0, 6.5, torch.nan, 3.0, 4.0, 2.5])
    p = solve(budget, z, k)
    assert (p[0] == 0).all()
    assert (p[1] == 1).all()
    assert p[2:5].isnan().all()
    assert (p[5] == 0).all()  # nothing allowed comes before a budget that cannot be met
    assert worst(p[6:], exact("budget", z[6:], k[6:])) < 2e-7
    gradient, change = pull_back(budget, p, torch.randn(7, 6), k)
    assert gradient[2:5].isnan().all()
    assert change[2:5].isnan().all()
    assert (gradient[[0, 1, 5]] == 0).all()
    assert (change[[0, 1, 5]] == 0).all()


@pytest.mark.parametrize("d", [*SHORT, STREAMED])
def test_gradients_at_the_same_weights(d):
    z, g = torch.randn(3, d), torch.randn(3, d)
    k = 0.5 if d == 1 else 1.5
    p = exact("budget", z, k).float()
    gradient, change = pull_back(budget, p, g, k)
    expected, expected_change = exact_pull_back("budget", p, g, k)
    assert worst(gradient, expected) < 2e-7
    torch.testing.assert_close(change.double(), expected_change, rtol=1e-6, atol=1e-7)


def test_gradients_of_a_tensor_of_k():
    z, g = torch.randn(4, 12), torch.randn(4, 12)
    k = torch.tensor([0.5, 1.5, 3.25, 11.5])
    gradient, change = pull_back(budget, solve(budget, z, k), g, k)
    wide, budgets = z.double().requires_grad_(), k.double()[:, None].requires_grad_()
    px.budget(wide, budgets, backend="torch").backward(g.double())
    torch.testing.assert_close(gradient.double(), wide.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(change.double(), budgets.grad[:, 0], rtol=1e-5, atol=1e-6)
