"""Line 4 and 5 of the contract for the Triton kernels: any layout, and rows on their own."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import on_device, triton_rows, with_gradient
from tests.contracts.members import ON_GPU, PARAMETERS_ON_GPU

every_member = pytest.mark.parametrize("member", ON_GPU, ids=str)
every_parameter = pytest.mark.parametrize("member", PARAMETERS_ON_GPU, ids=str)


@every_member
def test_dims_and_strides(member):
    base = on_device(torch.randn(2, 6, 10))
    views = {
        "transposed": (base.transpose(0, 2), 1),
        "sliced with a step": (base[:, ::2, 1::3], -1),
        "one row expanded": (base[:1, :1].expand(2, 3, 10), -1),
        "a column expanded along the row": (base[:, :, :1].expand(2, 6, 7), 2),
    }
    for name, (view, dim) in views.items():
        plain = view.movedim(dim, -1).contiguous()
        weights = on_device(torch.randn(view.shape[dim])).expand(plain.shape)
        p, gradient = with_gradient(member, plain, weights)
        q, other = with_gradient(member, view, weights.movedim(-1, dim), dim=dim)
        assert q.is_contiguous(), name
        assert torch.equal(q, p.movedim(-1, dim)), name
        assert torch.equal(other, gradient.movedim(-1, dim)), name


@every_member
def test_nothing_is_written_but_the_result(member):
    z = on_device(torch.randn(3, 40))
    before = z.clone()
    x = z.requires_grad_()
    p = triton_rows(member, x)
    kept = p.detach().clone()
    weights = on_device(torch.randn(3, 40))
    sent = weights.clone()
    p.backward(weights)
    assert torch.equal(z.detach(), before)
    assert torch.equal(p.detach(), kept)
    assert torch.equal(weights, sent)
    p = triton_rows(member, x)
    p.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        p.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_member
def test_a_row_does_not_know_its_neighbours(member, dtype):
    for d in (3, 33, 300) if dtype == torch.float32 else (33,):
        scale = torch.tensor([1e-3, 0.3, 1.0, 4.0, 50.0, 1e4]).unsqueeze(1)
        z = torch.randn(6, d) * scale
        z[1, 2:] = -torch.inf
        z, weights = on_device(z, dtype), on_device(torch.randn(6, d), dtype)
        p, gradient = with_gradient(member, z, weights)
        for rows in ([3], [5, 3], [3, 0, 1] * (3 if d > 100 else 29)):
            one, one_gradient = with_gradient(member, z[rows], weights[rows])
            for i in (0, -1):
                assert torch.equal(one[i], p[rows[i]])
                assert torch.equal(one_gradient[i], gradient[rows[i]])


@every_parameter
def test_parameters_of_other_rows_do_not_matter(member):
    """Rows at very different parameters stop after different numbers of steps."""
    family, name = member.family, member.family.parameter
    values = [float(arguments[name]) for arguments in family.examples]
    z, weights = on_device(torch.randn(len(values), 40)), on_device(torch.randn(len(values), 40))
    parameter = on_device(torch.tensor(values, dtype=torch.float64).unsqueeze(1))
    together = with_gradient(member, z, weights, **{name: parameter})
    for row in range(0, len(values), 2):
        pick = slice(row, row + 1)
        alone = with_gradient(member, z[pick], weights[pick], **{name: parameter[pick]})
        for one, all_rows in zip(alone, together, strict=True):
            # normmax of order 100 has slopes beyond float32, which come out as infinite or NaN
            torch.testing.assert_close(one[0], all_rows[row], atol=0, rtol=0, equal_nan=True)


@every_parameter
def test_a_tensor_parameter_of_any_shape_that_broadcasts(member):
    z = on_device(torch.randn(2, 3, 6))
    expected = triton_rows(member, z)
    name, value = member.family.parameter, member.parameter
    limit = member.family.single(**member.arguments)
    for shape in ((), (2, 1, 1), (3, 1), (2, 3, 1)):
        for dtype in (torch.float32, torch.float64):
            tensor = on_device(torch.full(shape, value, dtype=dtype))
            found = triton_rows(member, z, **{name: tensor})
            torch.testing.assert_close(found, expected, atol=limit, rtol=0)
    along = triton_rows(member, z, dim=1, **{name: on_device(torch.full((2, 1, 6), value))})
    torch.testing.assert_close(along, triton_rows(member, z, dim=1), atol=limit, rtol=0)
