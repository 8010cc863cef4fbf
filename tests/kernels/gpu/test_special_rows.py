"""What all row kernels owe a row, whoever its neighbours are: masks, NaN, half precision."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.rows import DEVICE, STREAMED, pull_back, solve

from parsimax.kernels.gpu import budget, normmax, steep

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

every_kernel = pytest.mark.parametrize(
    ("module", "parameter"),
    [(steep, 2.5), (normmax, 1.5), (normmax, 2.0), (budget, 1.5)],
    ids=["steep", "normmax", "normmax of order 2", "budget"],
)


@every_kernel
@pytest.mark.parametrize("d", [5, 33, STREAMED])
def test_nan_and_infinity_stay_in_their_row(module, parameter, d):
    z = torch.randn(5, d)
    expected = solve(module, z, parameter)
    for bad in (torch.nan, torch.inf):
        hurt = z.clone()
        hurt[2, d - 1] = bad
        hurt[2, 0] = -torch.inf
        hurt[3] = -torch.inf
        p = solve(module, hurt, parameter)
        assert p[2].isnan().all()
        assert (p[3] == 0).all()
        assert torch.equal(p[[0, 1, 4]], expected[[0, 1, 4]])
        gradient, change = pull_back(module, p, torch.randn(5, d), parameter)
        assert gradient[2].isnan().all()
        assert change[2].isnan()
        assert (gradient[3] == 0).all()
        assert change[3] == 0
        assert gradient[[0, 1, 4]].isfinite().all()


@every_kernel
def test_masked_scores_are_as_if_removed(module, parameter):
    z = torch.randn(3, 40)
    allowed = torch.arange(40) % 3 != 0
    p = solve(module, z.masked_fill(~allowed, -torch.inf), parameter)
    assert (p[:, ~allowed] == 0).all()
    assert (p[:, allowed] - solve(module, z[:, allowed].contiguous(), parameter)).abs().max() < 1e-6


@every_kernel
@pytest.mark.parametrize(("d", "n"), [(3, 70), (33, 40), (1500, 3)])
def test_a_row_does_not_depend_on_its_batch(module, parameter, d, n):
    z, g = torch.randn(n, d), torch.randn(n, d)
    p = solve(module, z, parameter)
    gradient, change = pull_back(module, p, g, parameter)
    for row in (0, n // 2, n - 1):
        one = slice(row, row + 1)
        assert torch.equal(solve(module, z[one], parameter), p[one])
        again, again_change = pull_back(module, p[one], g[one], parameter)
        assert torch.equal(again, gradient[one])
        assert torch.equal(again_change, change[one])


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_float32_rounded_once(module, parameter, dtype):
    z = torch.randn(6, 70).to(dtype)
    p = solve(module, z, parameter)
    assert p.dtype == dtype
    rounded = solve(module, z.float(), parameter).to(dtype)
    # the dtype decides how a row lies in the registers, and so the last digit of float32
    steps = p.view(torch.int16).int() - rounded.view(torch.int16).int()
    assert steps.abs().max() <= 1
    g = torch.randn(6, 70).to(dtype)
    gradient, change = pull_back(module, p, g, parameter)
    wide, wide_change = pull_back(module, p.float(), g.float(), parameter)
    torch.testing.assert_close(gradient, wide.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    torch.testing.assert_close(change, wide_change, rtol=1e-5, atol=1e-6)


@every_kernel
def test_no_rows(module, parameter):
    z = torch.empty(0, 5, device=DEVICE)
    module.forward(z, parameter, z)
    module.backward(z, z, parameter, z, torch.empty(0, device=DEVICE))
