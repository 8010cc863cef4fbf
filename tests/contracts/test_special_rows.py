"""Line 3 of the contract: masks, infinities, NaN, and rows with nothing allowed."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import TYPICAL, WITH_PARAMETER

every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_backend = pytest.mark.parametrize("backend", AVAILABLE)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
# both sides of the kernels' block of 32, and a row long enough to be gathered
SIZES = (5, 33, 300)


def _scores(d: int, dtype: torch.dtype, rows: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(d)
    return torch.randn(rows, d, generator=generator, dtype=torch.float64).to(dtype)


def _gradient(member, z, backend, mask=None, weights=None):
    z = z.detach().clone().requires_grad_()
    p = member.mapping(z, mask=mask, backend=backend)
    weights = torch.linspace(-1, 2, z.shape[-1]).to(z.dtype) if weights is None else weights
    (p * weights).sum().backward()
    return p.detach(), z.grad


@every_backend
@every_dtype
@every_member
def test_minus_infinity_and_mask_are_the_same_bit_for_bit(member, dtype, backend):
    for d in SIZES:
        z = _scores(d, dtype)
        mask = torch.rand(z.shape, generator=torch.Generator().manual_seed(1)) < 0.6
        mask[:, :2] = True
        hidden = z.masked_fill(~mask, -torch.inf)
        p, gradient = _gradient(member, z, backend, mask=mask)
        q, other = _gradient(member, hidden, backend)
        assert torch.equal(p, q)
        assert torch.equal(gradient, other)
        assert (p[~mask] == 0).all()
        assert (gradient[~mask] == 0).all()
        # what stands under a mask does not matter, whatever it is
        for junk in (torch.nan, torch.inf, 1e4, -torch.inf):
            r, third = _gradient(member, z.masked_fill(~mask, junk), backend, mask=mask)
            assert torch.equal(p, r)
            assert torch.equal(gradient, third)


@every_backend
@every_member
def test_masked_scores_are_as_if_removed(member, backend):
    z = _scores(40, torch.float64, rows=1)[0]
    mask = torch.arange(40) % 3 != 0
    p = member.mapping(z, mask=mask, backend=backend)
    torch.testing.assert_close(
        p[mask], member.mapping(z[mask], backend=backend), atol=1e-14, rtol=0
    )


@every_backend
@every_dtype
@every_member
def test_a_row_with_nothing_allowed_is_zero_and_so_is_its_gradient(member, dtype, backend):
    for d in (1, *SIZES):
        z = _scores(d, dtype)
        mask = torch.ones(z.shape, dtype=torch.bool)
        mask[1] = False
        if d < member.smallest:  # then no row has another solution, and this one comes first
            mask[:] = False
        p, gradient = _gradient(member, z, backend, mask=mask)
        empty = ~mask.any(-1)
        assert (p[empty] == 0).all()
        assert (gradient[empty] == 0).all()
        assert p.isfinite().all()
        assert gradient.isfinite().all()
        alone, alone_gradient = _gradient(member, torch.full_like(z[:1], -torch.inf), backend)
        assert (alone == 0).all()
        assert (alone_gradient == 0).all()


@every_backend
@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_a_row_with_nothing_allowed_gives_its_parameter_no_gradient(member, backend):
    z = _scores(6, torch.float64)
    z[2] = -torch.inf
    name = member.family.parameter
    parameter = torch.full((4, 1), member.parameter, dtype=torch.float64, requires_grad=True)
    p = member.function(z, backend=backend, **{name: parameter})
    (p * torch.linspace(-1, 2, 6, dtype=torch.float64)).sum().backward()
    assert parameter.grad[2] == 0
    assert parameter.grad.isfinite().all()
    # and in a graph that is differentiated again
    p = member.function(z, backend=backend, **{name: parameter})
    (first,) = torch.autograd.grad((p**2).sum(), parameter, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), parameter, allow_unused=True)
    assert first[2] == 0
    assert second is None or (second.isfinite().all() and second[2] == 0)


@every_backend
@every_dtype
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
@every_member
def test_nan_and_infinity_stay_in_their_row(member, bad, dtype, backend):
    for d in SIZES:
        z = _scores(d, dtype)
        expected, expected_gradient = _gradient(member, z, backend)
        for place in (0, d // 2, d - 1):
            hurt = z.clone()
            hurt[2, place] = bad
            if place:
                hurt[2, 0] = -torch.inf  # a masked neighbour changes nothing
            p, gradient = _gradient(member, hurt, backend)
            assert p[2].isnan().all()
            assert gradient[2].isnan().all()
            for row in (0, 1, 3):
                assert torch.equal(p[row], expected[row])
                assert torch.equal(gradient[row], expected_gradient[row])


@every_backend
@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_the_parameter_of_a_nan_row_gets_a_nan_gradient_and_no_other(member, backend):
    z = _scores(6, torch.float64)
    z[1, 3] = torch.nan
    name = member.family.parameter
    parameter = torch.full((4, 1), member.parameter, dtype=torch.float64, requires_grad=True)
    member.function(z, backend=backend, **{name: parameter}).square().sum().backward()
    assert parameter.grad[1].isnan()
    assert parameter.grad[[0, 2, 3]].isfinite().all()


@every_backend
@every_member
def test_nan_next_to_nothing_else_allowed_is_still_nan(member, backend):
    z = torch.full((2, 7), -torch.inf)
    z[0, 3], z[1, 3] = torch.nan, torch.inf
    z[:, 4 : 3 + member.smallest] = torch.nan  # as many as there must be
    assert member.mapping(z, backend=backend).isnan().all()


@every_backend
@every_member
def test_one_allowed_score_takes_everything(member, backend):
    for d in SIZES:
        z = torch.full((3, d), -torch.inf)
        z[0, 0], z[1, d // 2], z[2, d - 1] = 3.0, -1e4, 1e4
        if member.smallest > 1:
            z[:, [1, d - 2]] = -1e5
        p = member.mapping(z, backend=backend)
        for row, place in enumerate((0, d // 2, d - 1)):
            assert p[row, place] == torch.tensor(min(member.cap, 1.0))


@every_backend
@every_dtype
@every_member
def test_logits_of_ten_thousand(member, dtype, backend):
    """Gaps that no rounding can bridge: the largest scores share the mass among themselves."""
    for d in SIZES:
        top = torch.arange(d) < max(3, member.smallest)
        z = torch.where(top, 1e4, -1e4).to(dtype).expand(2, d)
        p = member.mapping(z, backend=backend)
        expected = torch.where(top, member.mass / int(top.sum()), 0.0).expand(2, d)
        torch.testing.assert_close(p, expected.to(dtype), atol=1e-7, rtol=0)
