"""What is special to sparsegen and budget, the two mappings with a quadratic regulariser."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.backends import AVAILABLE

import parsimax as px

every_backend = pytest.mark.parametrize("backend", AVAILABLE)


@every_backend
def test_sparsegen_is_sparsemax_of_scaled_scores(backend):
    z = torch.randn(6, 50, dtype=torch.float64)
    for lam in (-10.0, -1.0, 0.0, 0.3, 0.9):
        torch.testing.assert_close(
            px.sparsegen(z, lam, backend=backend),
            px.sparsemax(z / (1 - lam), backend=backend),
            atol=1e-14,
            rtol=0,
        )


@every_backend
def test_limits_of_sparsegen(backend):
    z = torch.tensor([[0.5, 0.3, -2.0], [1.0, 1.0, 0.0]])
    towards_argmax = px.sparsegen(z, 1 - 1e-9, backend=backend)
    assert torch.equal(towards_argmax, torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]))
    towards_uniform = px.sparsegen(z, -1e9, backend=backend)
    torch.testing.assert_close(towards_uniform, torch.full((2, 3), 1 / 3), atol=1e-7, rtol=0)


@every_backend
def test_budget_of_one_is_sparsemax(backend):
    """With mass one no entry can exceed one, so the upper bound never acts."""
    z = torch.randn(6, 50, dtype=torch.float64)
    torch.testing.assert_close(
        px.budget(z, 1, backend=backend), px.sparsemax(z, backend=backend), atol=1e-14, rtol=0
    )


@every_backend
def test_budget_at_its_ends(backend):
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    nothing = px.budget(z, 0, backend=backend)
    assert (nothing == 0).all()
    everything = px.budget(z, 5, backend=backend)
    assert (everything == 1).all()
    (nothing * everything * torch.randn(3, 5)).sum().backward()
    assert (z.grad == 0).all()
    for k in (1e-12, 5 - 1e-12, 4.999999, 2.5, torch.pi):
        p = px.budget(z, k, backend=backend)
        assert (p.sum(-1) - k).abs().max() < 1e-12
        assert ((p >= 0) & (p <= 1)).all()


@every_backend
def test_budget_of_large_gaps_is_the_top_k(backend):
    z = torch.tensor([30.0, -4.0, 20.0, 10.0, 0.0])
    for k in range(6):
        expected = torch.zeros(5).scatter(0, z.topk(k).indices, 1.0)
        assert torch.equal(px.budget(z, k, backend=backend), expected)


@every_backend
def test_budget_by_row(backend):
    z = torch.randn(4, 6, dtype=torch.float64)
    k = torch.tensor([[0.0], [1.5], [3.0], [6.0]], dtype=torch.float64)
    p = px.budget(z, k, backend=backend)
    for row in range(4):
        torch.testing.assert_close(p[row], px.budget(z[row], float(k[row]), backend=backend))
    whole = torch.tensor([[1], [2], [3], [4]])
    assert torch.equal(
        px.budget(z.float(), whole, backend=backend),
        px.budget(z.float(), whole.float(), backend=backend),
    )


def test_an_infeasible_budget_names_the_row_that_has_no_room():
    z = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"^k must lie between 0 and .*got k = 5 for a row with 4"):
        px.budget(z, 5)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, :3] = False
    message = r"^k must lie between 0 and .*dim 1, got k = 2 for a row with 1 allowed"
    with pytest.raises(ValueError, match=message):
        px.budget(z, 2, mask=mask)
    with pytest.raises(ValueError, match=message):
        px.budget(z.masked_fill(~mask, -torch.inf), 2)
    with pytest.raises(ValueError, match=r"got k = 7 for a row with 4 allowed"):
        px.budget(z, torch.tensor([[1.0], [2.0], [7.0]]))
    with pytest.raises(ValueError, match=r"got k = -1 for a row with 4 allowed"):
        px.budget(z, torch.tensor([[1.0], [-1.0], [2.0]]))
    with pytest.raises(ValueError, match=r"dim 0, got k = 4 for a row with 3 allowed"):
        px.budget(z, 4, dim=0)


@every_backend
def test_a_row_with_nothing_allowed_comes_before_any_feasibility_error(backend):
    z = torch.randn(3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[2] = False
    p = px.budget(z, 4, mask=mask, backend=backend)
    assert (p[:2] == 1).all()
    assert (p[2] == 0).all()
    nothing = torch.zeros(3, 4, dtype=torch.bool)
    assert (px.budget(z, 100, mask=nothing, backend=backend) == 0).all()
    by_row = torch.tensor([[1.0], [2.0], [99.0]])
    assert (px.budget(z, by_row, mask=mask, backend=backend)[2] == 0).all()
