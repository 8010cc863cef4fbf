"""Line 3 and 4 of the contract for the Triton kernels: masks, infinities, NaN, ties, 1e4."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE, DTYPES, on_device, triton_rows, with_gradient
from tests.contracts.members import ON_GPU, PARAMETERS_ON_GPU

every_member = pytest.mark.parametrize("member", ON_GPU, ids=str)
every_parameter = pytest.mark.parametrize("member", PARAMETERS_ON_GPU, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _weights(d: int) -> torch.Tensor:
    return torch.linspace(-1, 2, d)


@every_dtype
@every_member
def test_minus_infinity_and_mask_are_the_same_bit_for_bit(member, dtype):
    """And a masked score is as if removed; a row with nothing allowed is zero."""
    z = on_device(torch.randn(4, 33), dtype)
    mask = torch.rand(4, 33) < 0.6
    mask[:, :2] = True
    mask[3] = False
    mask = on_device(mask)
    weights = on_device(torch.randn(4, 33), dtype)
    p, gradient = with_gradient(member, z, weights, mask=mask)
    hidden = z.masked_fill(~mask, -torch.inf)
    q, other = with_gradient(member, hidden, weights)
    assert torch.equal(p, q)
    assert torch.equal(gradient, other)
    assert (p[~mask] == 0).all()
    assert (gradient[~mask] == 0).all()
    kept = triton_rows(member, z[:1, mask[0]])
    limit = max(member.family.single(**member.arguments), torch.finfo(dtype).eps)
    torch.testing.assert_close(p[:1, mask[0]], kept, atol=limit, rtol=0)


@every_dtype
@every_member
def test_nan_and_infinity_stay_in_their_row(member, dtype):
    for d in (5, 33, 300) if dtype == torch.float32 else (33,):
        z = on_device(torch.randn(8, d), dtype)
        weights = _weights(d).expand(8, d)
        expected, expected_gradient = with_gradient(member, z, weights)
        hurt = z.clone()
        bad = {1: (0, torch.nan), 3: (d // 2, torch.nan), 4: (d - 1, torch.inf), 6: (0, torch.inf)}
        for row, (place, value) in bad.items():
            hurt[row, place] = value
            if place:
                hurt[row, 0] = -torch.inf  # a masked neighbour changes nothing
        p, gradient = with_gradient(member, hurt, weights)
        for row in range(8):
            if row in bad:
                assert p[row].isnan().all()
                assert gradient[row].isnan().all()
            else:
                assert torch.equal(p[row], expected[row])
                assert torch.equal(gradient[row], expected_gradient[row])


@every_parameter
def test_the_parameter_of_a_row_that_is_empty_or_broken(member):
    z = on_device(torch.randn(4, 6))
    z[1, 3] = torch.nan
    z[2] = -torch.inf
    name = member.family.parameter
    parameter = on_device(torch.full((4, 1), member.parameter))
    p, gradient, change = with_gradient(member, z, _weights(6).expand(4, 6), **{name: parameter})
    assert (p[2] == 0).all()
    assert (gradient[2] == 0).all()
    assert change[1].isnan()
    assert change[2] == 0
    assert change[[0, 3]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_parameter
def test_a_bad_parameter_is_nan_in_its_row(member, dtype):
    """Where values cannot be looked at: here under vmap, on CUDA always."""
    z = on_device(torch.randn(4, 6), dtype)
    refused = next(iter(member.family.refuses[0][0].values()))
    values = [[member.parameter], [refused], [torch.nan], [member.parameter]]

    def mapped(x, y):
        return triton_rows(member, x, **{member.family.parameter: y})

    p = torch.func.vmap(mapped)(z, on_device(torch.tensor(values)))
    assert p[1:3].isnan().all()
    good = on_device(torch.full((4, 1), member.parameter))
    assert torch.equal(p[[0, 3]], mapped(z, good)[[0, 3]])
    empty = torch.func.vmap(mapped)(z * 0 - torch.inf, on_device(torch.tensor(values)))
    assert (empty[[0, 3]] == 0).all()


@every_member
def test_rows_with_one_way_to_be_right(member):
    """One allowed score, logits of ten thousand, ties, nothing but equal scores."""
    d = 33
    alone = torch.full((3, d), -torch.inf)
    alone[0, 0], alone[1, d // 2], alone[2, d - 1] = 3.0, -1e4, 1e4
    if member.smallest > 1:
        alone[:, [1, d - 2]] = -1e5
    best = torch.arange(d) < max(3, member.smallest)
    far = torch.where(best, 1e4, -1e4).expand(1, d)
    equal = torch.tensor([[0.0], [1e6], [-1e4]]).expand(3, d)
    p = triton_rows(member, on_device(torch.cat([alone, far, equal]))).cpu()
    for row, place in enumerate((0, d // 2, d - 1)):
        assert p[row, place] == 1
    expected = torch.where(best, member.mass / int(best.sum()), 0.0)
    torch.testing.assert_close(p[3], expected, atol=1e-7, rtol=0)
    torch.testing.assert_close(p[4:], torch.full((3, d), member.mass / d), atol=1e-7, rtol=0)
    assert (p[4:] == p[4:, :1]).all()


@every_member
def test_a_row_of_one_element_and_no_rows(member):
    if member.smallest == 1:
        z = on_device(torch.tensor([[0.0], [1e6], [-1e4], [-torch.inf], [torch.nan]]))
        p = triton_rows(member, z).cpu().flatten()
        assert p[:4].tolist() == [member.mass] * 3 + [0.0]
        assert p[4].isnan()
    for shape in ((0, 5), (3, 0), (2, 0, 4), (0,)):
        z = torch.zeros(shape, device=DEVICE, requires_grad=True)
        p = triton_rows(member, z)
        assert p.shape == z.shape
        p.sum().backward()
        assert z.grad.shape == z.shape
