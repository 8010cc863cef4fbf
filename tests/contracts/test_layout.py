"""Line 4 of the contract: shapes, strides, dims, broadcast masks, empty tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import TYPICAL, WITH_PARAMETER

every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_backend = pytest.mark.parametrize("backend", AVAILABLE)


def _by_rows(member, z, dim, mask=None, backend="auto"):
    """The same by explicit rows: move ``dim`` to the end, make it contiguous, map, move it back."""
    moved = z.movedim(dim, -1).contiguous()
    if mask is not None:
        mask = mask.expand_as(z).movedim(dim, -1).contiguous()
    return member.mapping(moved, mask=mask, backend=backend).movedim(-1, dim)


@every_backend
@every_member
def test_every_dim_of_four(member, backend):
    z = torch.randn(4, 5, 3, 6, dtype=torch.float64)
    for dim in range(-4, 4):
        p = member.mapping(z, dim=dim, backend=backend)
        assert p.shape == z.shape
        assert p.is_contiguous()
        assert torch.equal(p, _by_rows(member, z, dim, backend=backend))
        torch.testing.assert_close(
            p.sum(dim), torch.full_like(p.sum(dim), member.mass), atol=1e-12, rtol=0
        )


@every_backend
@every_member
def test_strides_do_not_matter(member, backend):
    base = torch.randn(8, 6, 10)
    views = {
        "transposed": base.transpose(0, 2),
        "sliced with a step": base[::2, :, ::3],
        "from the middle": base[2:5, 1:, 3:],
        "flipped": base.flip(-1),
        "one row expanded": base[:1, :1].expand(4, 5, 10),
        "a column expanded along the row": base[:, :, :1].expand(8, 6, 7),
        "unfolded": base.unfold(-1, 4, 1),
    }
    weights = torch.linspace(-1, 1, 10)
    for name, view in views.items():
        for dim in (-1, 0):
            if view.shape[dim] < member.smallest:
                continue
            plain = view.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
            strided = view.detach().requires_grad_()
            p = member.mapping(strided, dim=dim, backend=backend)
            q = member.mapping(plain, dim=dim, backend=backend)
            assert torch.equal(p, q), name
            (p * weights[: p.shape[-1]]).sum().backward()
            (q * weights[: q.shape[-1]]).sum().backward()
            assert torch.equal(strided.grad, plain.grad), name


@every_backend
@every_member
def test_scores_are_never_written_to(member, backend):
    z = torch.randn(3, 40)
    mask = torch.rand(3, 40) < 0.7
    mask[:, :2] = True
    before, mask_before = z.clone(), mask.clone()
    p = member.mapping(z.requires_grad_(), mask=mask, backend=backend)
    kept = p.detach().clone()
    weights = torch.randn(3, 40)
    weights_before = weights.clone()
    p.backward(weights)
    assert torch.equal(z.detach(), before)
    assert torch.equal(mask, mask_before)
    assert torch.equal(p.detach(), kept)
    assert torch.equal(weights, weights_before)


@every_backend
@every_member
def test_an_output_changed_in_place_is_noticed(member, backend):
    """The gradient is computed from the output: torch must be told that it was saved."""
    z = torch.randn(2, 5, requires_grad=True)
    p = member.mapping(z, backend=backend)
    p.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        p.sum().backward()


@every_backend
@every_member
def test_gradients_of_stride_zero(member, backend):
    """``.sum().backward()`` sends one number, expanded: the mass does not depend on the scores."""
    for dim in (-1, 0):
        z = torch.randn(5, 40, dtype=torch.float64, requires_grad=True)
        member.mapping(z, dim=dim, backend=backend).sum().backward()
        assert z.grad.abs().max() < 1e-14
        z.grad = None
        weights = torch.randn(1, 40, dtype=torch.float64).expand(5, 40)
        member.mapping(z, dim=dim, backend=backend).backward(weights)
        expected = torch.autograd.grad(
            member.mapping(z, dim=dim, backend=backend), z, weights.contiguous()
        )[0]
        assert torch.equal(z.grad, expected)


@every_backend
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 4), (0,)], ids=str)
@every_member
def test_empty_tensors(member, shape, backend):
    for dim in range(len(shape)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            z = torch.empty(shape, dtype=dtype, requires_grad=True)
            if 0 < shape[dim] < member.smallest:
                continue
            p = member.mapping(z, dim=dim, backend=backend)
            assert p.shape == z.shape
            assert p.dtype == dtype
            p.sum().backward()
            assert z.grad.shape == z.shape


@every_backend
@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_empty_tensors_with_a_tensor_parameter(member, backend):
    for shape in ((0, 5), (3, 0)):
        z = torch.empty(shape, requires_grad=True)
        for parameter_shape in ((), (shape[0], 1)):
            parameter = torch.full(parameter_shape, member.parameter, requires_grad=True)
            p = member.function(z, backend=backend, **{member.family.parameter: parameter})
            p.sum().backward()
            assert z.grad.shape == z.shape
            assert parameter.grad.shape == parameter.shape
            assert (parameter.grad == 0).all()


@st.composite
def _cases(draw):
    """(shape, dim, shape of a mask that broadcasts to it, dtype, scale, seed)."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    shape[dim] = draw(st.sampled_from([1, 2, 3, 7, 31, 32, 33, 65, 130]))
    mask_shape = [size if draw(st.booleans()) else 1 for size in shape]
    mask_shape = mask_shape[draw(st.integers(0, len(shape))) :]
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]))
    scale = draw(st.sampled_from([0.0, 1e-3, 0.3, 1.0, 5.0, 1e3]))
    return tuple(shape), dim, tuple(mask_shape), dtype, scale, draw(st.integers(0, 2**20))


@every_backend
@every_member
@given(case=_cases())
def test_any_shape_dim_mask_dtype_and_scale(member, backend, case):
    shape, dim, mask_shape, dtype, scale, seed = case
    generator = torch.Generator().manual_seed(seed)
    z = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
    mask = torch.rand(mask_shape, generator=generator) < 0.7
    allowed = mask.expand(shape).sum(dim, keepdim=True)
    if ((allowed < member.smallest) & (allowed > 0)).any():
        mask = torch.full(mask_shape, shape[dim] >= member.smallest)
        allowed = mask.expand(shape).sum(dim, keepdim=True)
    p = member.mapping(z, dim=dim, mask=mask, backend=backend)
    assert p.shape == z.shape
    assert p.dtype == dtype
    assert torch.equal(p, _by_rows(member, z, dim, mask, backend))
    assert (p >= 0).all()
    assert (p[~mask.expand(shape)] == 0).all()
    total = p.double().sum(dim, keepdim=True)
    expected = torch.where(allowed > 0, member.mass, 0.0)
    # float32 and float64 by the contract; a half-precision entry is off by half its own ulp
    slack = 1e-6 + (p.double() * torch.finfo(dtype).eps / 2 + 3e-8 * (dtype == torch.float16)).sum(
        dim, keepdim=True
    ) * (dtype in (torch.float16, torch.bfloat16))
    assert ((total - expected).abs() <= slack).all()
