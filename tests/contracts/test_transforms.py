"""Line 6 of the contract, second half: torch.func, forward mode, and batched gradients."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import TYPICAL, WITH_PARAMETER
from tests.contracts.smooth import smooth_scores
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

every_backend = pytest.mark.parametrize("backend", AVAILABLE)
every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_parameter = pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)


def _close(found, expected, tolerance=1e-11):
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


@every_backend
@every_member
def test_jacobians_in_all_modes_are_one(member, backend):
    z = smooth_scores(member)[0]

    def f(x):
        return member.mapping(x, backend=backend)

    expected = torch.autograd.functional.jacobian(f, z)
    assert (expected != 0).any()
    _close(expected.T, expected)  # the Hessian of the conjugate of Omega
    _close(jacfwd(f)(z), expected)
    _close(jacrev(f)(z), expected)
    _close(torch.autograd.functional.jacobian(f, z, vectorize=True), expected)
    _close(
        torch.autograd.functional.jacobian(f, z, vectorize=True, strategy="forward-mode"), expected
    )
    x = z.clone().requires_grad_()
    (batched,) = torch.autograd.grad(f(x), x, torch.eye(5, dtype=z.dtype), is_grads_batched=True)
    _close(batched, expected)
    with forward_ad.dual_level():
        dual = f(forward_ad.make_dual(z, torch.ones_like(z)))
        _close(forward_ad.unpack_dual(dual).tangent, expected.sum(-1))


@every_backend
@every_member
def test_second_derivatives_in_all_modes_are_one(member, backend):
    z = smooth_scores(member)[0]
    weights = torch.linspace(-1, 2, 5, dtype=z.dtype)

    def f(x):
        return (member.mapping(x, backend=backend) * weights).sum()

    expected = torch.autograd.functional.hessian(f, z)
    _close(hessian(f)(z), expected)
    _close(jacrev(jacrev(f))(z), expected)
    _close(jacrev(jacfwd(f))(z), expected)
    _close(jacfwd(jacfwd(f))(z), expected)
    _close(jacfwd(grad(f))(z), expected)


@every_member
def test_third_derivatives_in_mixed_modes_are_one(member):
    z = smooth_scores(member)[0][:3]
    weights = torch.linspace(-1, 2, 3, dtype=z.dtype)

    def f(x):
        return (member.mapping(x) * weights).sum()

    expected = jacrev(jacrev(jacrev(f)))(z)
    _close(jacfwd(hessian(f))(z), expected)
    _close(jacfwd(jacfwd(jacfwd(f)))(z), expected)


@every_backend
@every_parameter
def test_jvp_is_vjp_transposed_in_scores_and_parameter(member, backend):
    z = smooth_scores(member)
    parameter = torch.full((2, 1), member.parameter, dtype=z.dtype)

    def f(x, y):
        return member.function(x, backend=backend, **{member.family.parameter: y})

    directions = torch.randn_like(z), torch.randn_like(parameter)
    weights = torch.randn_like(z)
    p, forward = jvp(f, (z, parameter), directions)
    q, pull = vjp(f, z, parameter)
    assert torch.equal(p, q)
    by_z, by_parameter = pull(weights)
    _close(
        (forward * weights).sum(),
        (by_z * directions[0]).sum() + (by_parameter * directions[1]).sum(),
    )
    _close(jacfwd(f, argnums=1)(z, parameter), jacrev(f, argnums=1)(z, parameter))
    mixed = jacfwd(jacrev(f, argnums=0), argnums=1)(z, parameter)
    _close(mixed, jacrev(jacrev(f, argnums=0), argnums=1)(z, parameter))
    _close(
        jacfwd(jacfwd(f, argnums=1), argnums=1)(z, parameter),
        jacrev(jacrev(f, argnums=1), argnums=1)(z, parameter),
    )


@every_backend
@every_member
def test_vmap_over_every_dimension(member, backend):
    z = torch.randn(3, 4, 6)

    def f(x, dim=-1):
        return member.mapping(x, dim=dim, backend=backend)

    for in_dim in range(3):
        for dim in (0, -1):
            slices = [f(x, dim) for x in z.unbind(in_dim)]
            found = vmap(lambda x, dim=dim: f(x, dim), in_dims=in_dim)(z)
            assert torch.equal(found, torch.stack(slices))
    nested = vmap(vmap(f, in_dims=1), in_dims=0)(z)
    assert torch.equal(nested, torch.stack([torch.stack([f(x) for x in y.unbind(1)]) for y in z]))
    mask = torch.rand(3, 4, 6) < 0.7
    mask[..., :2] = True
    masked = vmap(lambda x, m: member.mapping(x, mask=m, backend=backend))(z, mask)
    assert torch.equal(masked, member.mapping(z, mask=mask, backend=backend))


@every_backend
@every_parameter
def test_vmap_over_the_parameter(member, backend):
    """With it, without it, over it alone; as a scalar, as one value a row."""
    name = member.family.parameter
    z = torch.randn(4, 3, 6, dtype=torch.float64)
    values = member.parameter + torch.arange(4, dtype=torch.float64) / 64

    def f(x, y):
        return member.function(x, backend=backend, **{name: y})

    expected = torch.stack([f(x, y) for x, y in zip(z, values, strict=True)])
    _close(vmap(f)(z, values), expected)
    _close(
        vmap(f, in_dims=(1, None))(z, values[0]),
        torch.stack([f(x, values[0]) for x in z.unbind(1)]),
    )
    _close(vmap(f, in_dims=(None, 0))(z[0], values), torch.stack([f(z[0], y) for y in values]))
    rows = values[:, None, None].expand(4, 3, 1)
    _close(vmap(f)(z, rows), expected)
    _close(vmap(f, in_dims=(0, 1))(z, rows.transpose(0, 1)), expected)


@every_backend
@every_parameter
def test_per_sample_gradients(member, backend):
    """vmap(grad) in scores and parameter, as in training with one loss a sample."""
    name = member.family.parameter
    z = smooth_scores(member, rows=3)
    values = torch.full((3,), member.parameter, dtype=z.dtype)
    weights = torch.linspace(-1, 2, 5, dtype=z.dtype)

    def loss(x, y):
        return (member.function(x, backend=backend, **{name: y}) * weights).sum()

    by_z, by_parameter = vmap(grad(loss, argnums=(0, 1)))(z, values)
    for row in range(3):
        x, y = z[row].clone().requires_grad_(), values[row].clone().requires_grad_()
        loss(x, y).backward()
        _close(by_z[row], x.grad)
        _close(by_parameter[row], y.grad)
    _close(vmap(hessian(loss))(z, values)[1], hessian(loss)(z[1], values[1]))


@every_backend
@every_parameter
def test_a_bad_parameter_under_vmap_is_nan_in_its_row(member, backend):
    name = member.family.parameter
    bad = next(
        arguments[name]
        for arguments, _ in member.family.refuses
        if arguments[name] == arguments[name]
    )
    values = torch.tensor([member.parameter, bad, torch.nan, member.parameter])
    z = torch.randn(4, 6)
    p = vmap(lambda x, y: member.function(x, backend=backend, **{name: y}))(z, values)
    assert p[1].isnan().all()
    assert p[2].isnan().all()
    assert torch.equal(p[0], member.function(z[0], backend=backend, **{name: values[0]}))
    assert torch.equal(p[3], member.function(z[3], backend=backend, **{name: values[3]}))
