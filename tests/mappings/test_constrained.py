"""Bounds for every entry: values, gradients in the bounds, masks, and bounds without a solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.backends import AVAILABLE
from tests.oracles import programs, rows
from torch.func import jacfwd, jacrev, vmap

import parsimax as px

every_backend = pytest.mark.parametrize("backend", AVAILABLE)
BOTH = {"softmax": px.constrained_softmax, "sparsemax": px.constrained_sparsemax}
every_mapping = pytest.mark.parametrize("mapping", BOTH.values(), ids=BOTH)
ORACLES = {
    px.constrained_softmax: rows.constrained_softmax,
    px.constrained_sparsemax: rows.constrained_sparsemax,
}
# gradients are asked for at these: bounds that are met and not met, and zeros
Z = torch.tensor([[1.3, 0.2, -0.4, 0.1, -2.0], [-0.3, 2.0, 1.0, 0.0, -1.5]], dtype=torch.float64)
U = torch.tensor([[0.3, 0.5, 0.9, 0.15, 0.8], [0.6, 0.35, 0.25, 0.9, 0.7]], dtype=torch.float64)
L = torch.tensor(
    [[0.01, 0.02, 0.03, 0.04, 0.05], [0.02, 0.1, 0.01, 0.08, 0.1]], dtype=torch.float64
)


@st.composite
def _rows(draw):
    """(scores, upper bounds, lower bounds): some tight, some 0, ties, and shifts."""
    seed, d = draw(st.integers(0, 2**20)), draw(st.integers(1, 9))
    rng = np.random.default_rng(seed)
    z = rng.normal(0, draw(st.sampled_from([0.0, 0.3, 1.0, 4.0])), d)
    z = np.round(2 * z) / 2 if draw(st.booleans()) else z
    upper = rng.dirichlet(np.ones(d)) * draw(st.sampled_from([1.001, 1.3, 3.0, 20.0]))
    upper[rng.random(d) < 0.2] = 0.0
    if upper.sum() < 1.001:
        upper[:] = 1.0
    lower = np.minimum(rng.dirichlet(np.ones(d)) * draw(st.sampled_from([0.0, 0.5, 0.99])), upper)
    return z + draw(st.sampled_from([0.0, 20.0, -20.0])), upper, lower


@every_backend
@given(case=_rows())
def test_sparsemax_is_the_quadratic_program(backend, case):
    z, upper, lower = case
    for floor in (lower, None):
        given = [torch.tensor(x) for x in (z, upper, lower) if x is not lower or floor is not None]
        p = px.constrained_sparsemax(*given, backend=backend).numpy()
        expected = programs.constrained_sparsemax(z, upper, 0.0 if floor is None else floor)
        assert np.abs(p - expected).max() < 1e-9
        assert (p <= upper).all()
        assert abs(p.sum() - 1) < 1e-12


@every_backend
@given(case=_rows())
def test_softmax_is_its_optimality_condition(backend, case):
    z, upper, _ = case
    p = px.constrained_softmax(torch.tensor(z), torch.tensor(upper), backend=backend).numpy()
    assert np.abs(p - rows.constrained_softmax(z, upper)).max() < 1e-12
    assert (p <= upper).all()
    assert abs(p.sum() - 1) < 1e-12


def test_softmax_is_the_cone_program():
    for z, upper in zip(Z.numpy(), U.numpy(), strict=True):
        found = px.constrained_softmax(torch.tensor(z + 20), torch.tensor(upper)).numpy()
        assert np.abs(found - programs.constrained_softmax(z, upper)).max() < 1e-6


@every_backend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_separated_scores_lose_nothing(backend, dtype):
    """Sixty apart, or ten thousand: what the first may not have, the others share."""
    for height in (60.0, 800.0, 1e4):
        z = torch.tensor([height, 0.0, -1.0], dtype=dtype)
        p = px.constrained_softmax(z, torch.tensor([0.5, 0.6, 0.6]), backend=backend)
        expected = torch.tensor([0.5, 0.5 / (1 + np.exp(-1)), 0.5 / (1 + np.e)])
        torch.testing.assert_close(p, expected.to(dtype))


@every_backend
@every_mapping
def test_long_rows_against_the_oracle(mapping, backend):
    rng = np.random.default_rng(0)
    for scale in (0.01, 1.0, 30.0, 1e4):
        z = rng.normal(0, scale, 1000).astype(np.float32).astype(float)
        upper = rng.random(1000).astype(np.float32).astype(float) / 100
        expected = ORACLES[mapping](z, upper)
        p = mapping(torch.tensor(z), torch.tensor(upper), backend=backend)
        assert np.abs(p.numpy() - expected).max() < 1e-12 + 1e-15 * scale
        single = mapping(torch.tensor(z).float(), torch.tensor(upper).float(), backend=backend)
        assert np.abs(single.numpy() - expected).max() < 2e-6
        assert abs(single.double().sum() - 1) < 1e-6


@every_backend
@every_mapping
def test_without_bounds_that_bind_it_is_the_mapping(mapping, backend):
    plain = px.softmax if mapping is px.constrained_softmax else px.sparsemax
    z = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 40, dtype=torch.float64)
    (expected,) = torch.autograd.grad(plain(z), z, weights)
    for upper in (1.0, 7.0, float("inf"), torch.ones(40), torch.full((3, 1), 2.0)):
        p = mapping(z, upper, backend=backend)
        torch.testing.assert_close(p, plain(z), atol=1e-12, rtol=0)
        torch.testing.assert_close(torch.autograd.grad(p, z, weights)[0], expected)


@every_backend
@every_mapping
def test_gradcheck_in_scores_and_bounds(mapping, backend):
    z, upper, lower = (x.clone().requires_grad_() for x in (Z, U, L))
    mask = torch.tensor([[True, True, True, True, False], [True] * 5])
    cases = [(z, upper)] if mapping is px.constrained_softmax else [(z, upper), (z, upper, lower)]
    for inputs in cases:
        for allowed in (None, mask):

            def mapped(*x, allowed=allowed):
                return mapping(*x, mask=allowed, backend=backend)

            assert torch.autograd.gradcheck(mapped, inputs, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(mapped, inputs)
    p = mapping(*cases[-1], backend=backend)
    assert (p == upper).any(), "no bound is met, and the test shows nothing"


@every_backend
@every_mapping
def test_transforms_agree(mapping, backend):
    def f(z, upper):
        return (mapping(z, upper, backend=backend) ** 2).sum()

    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        expected = jacrev(jacrev(f, first), second)(Z[0], U[0])
        for found in (
            jacfwd(jacfwd(f, first), second)(Z[0], U[0]),
            jacfwd(jacrev(f, first), second)(Z[0], U[0]),
        ):
            torch.testing.assert_close(found, expected)
    assert torch.equal(vmap(f)(Z, U), torch.stack([f(z, u) for z, u in zip(Z, U, strict=True)]))
    over_bounds = vmap(lambda u: mapping(Z, u, backend=backend))(U)
    assert torch.equal(over_bounds[1], mapping(Z, U[1], backend=backend))


@every_mapping
def test_compiled_training_with_bounds(mapping):
    compiled = torch.compile(mapping, fullgraph=True, backend="aot_eager")
    results = []
    for f in (mapping, compiled):
        z, upper = Z.clone().requires_grad_(), U.clone().requires_grad_()
        p = f(z, upper)
        results.append((p.detach(), *torch.autograd.grad((p**2).sum(), (z, upper))))
    assert torch.equal(results[0][0], results[1][0])
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected)
    short = compiled(Z, torch.tensor([[1.0], [0.1]], dtype=torch.float64))
    assert short[0].isfinite().all()
    assert short[1].isnan().all()


@every_backend
@every_mapping
def test_a_mask_is_as_if_the_entries_were_cut(mapping, backend):
    mask = torch.tensor([True, False, True, True, False, True])
    z = torch.randn(6, dtype=torch.float64).requires_grad_()
    upper = torch.tensor([0.3, 0.9, 0.5, 0.1, 0.0, 0.6], dtype=torch.float64).requires_grad_()
    weights = torch.randn(6, dtype=torch.float64)
    p = mapping(z, upper, mask=mask, backend=backend)
    found = torch.autograd.grad(p, (z, upper), weights)
    cut_z, cut_upper = (x.detach()[mask].requires_grad_() for x in (z, upper))
    cut = mapping(cut_z, cut_upper, backend=backend)
    torch.testing.assert_close(p[mask], cut, atol=1e-14, rtol=0)
    expected = torch.autograd.grad(cut, (cut_z, cut_upper), weights[mask])
    for whole, part in zip(found, expected, strict=True):
        torch.testing.assert_close(whole[mask], part)
        assert (whole[~mask] == 0).all()
    junk = upper.detach().masked_fill(~mask, torch.nan)
    assert torch.equal(mapping(z, junk, mask=mask, backend=backend), p)


@every_backend
@every_mapping
def test_bounds_are_permuted_along(mapping, backend):
    order = torch.randperm(5)
    expected = mapping(Z, U, backend=backend)[:, order]
    found = mapping(Z[:, order], U[:, order], backend=backend)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@every_backend
@every_mapping
def test_dims_and_broadcast_bounds(mapping, backend):
    z = torch.randn(2, 3, 4, dtype=torch.float64)
    upper = torch.rand(3, 1, dtype=torch.float64) * 0.5 + 0.4
    full = upper.expand(2, 3, 4).clone().requires_grad_()
    small = upper.clone().requires_grad_()
    weights = torch.randn(2, 3, 4, dtype=torch.float64)
    for dim in (-1, 1):
        p = mapping(z, small, dim=dim, backend=backend)
        expected = mapping(
            z.movedim(dim, -1).contiguous(), full.movedim(dim, -1), backend=backend
        ).movedim(-1, dim)
        assert torch.equal(p, expected)
        assert p.is_contiguous()
        (found,) = torch.autograd.grad(p, small, weights)
        (whole,) = torch.autograd.grad(expected, full, weights)
        torch.testing.assert_close(found, whole.sum_to_size(3, 1))


@every_backend
def test_bounds_that_sum_to_one_are_the_solution(backend):
    """Also where rounding takes them below: 0.9 + 0.1 is less than 1 in float32."""
    for dtype in (torch.float32, torch.float64):
        upper = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=dtype).requires_grad_()
        z = torch.tensor([[0.0, 5.0], [1.0, 2.0]], dtype=dtype, requires_grad=True)
        for mapping in BOTH.values():
            p = mapping(z, upper, backend=backend)
            assert torch.equal(p, upper)
            for gradient in torch.autograd.grad((p * z.detach()).sum(), (z, upper)):
                assert gradient.isfinite().all()
                assert gradient.sum(-1).abs().max() < 1e-6  # the sum is not to move
    lower = torch.tensor([0.25, 0.75])
    p = px.constrained_sparsemax(torch.tensor([9.0, 0.0]), 1.0, lower, backend=backend)
    assert torch.equal(p, lower)


@every_backend
@every_mapping
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_bounds_are_as_exact_as_their_dtype(mapping, backend, dtype):
    """1 / n is no number of any of these: its sum may be a rounding below 1, and still is 1."""
    for n in (3, 5, 7, 11, 49, 1000):
        upper = torch.full((2, n), 1 / n).to(dtype)
        for scores in (dtype, torch.float64):
            z = torch.randn(2, n).to(scores)
            p = mapping(z, upper, backend=backend)
            assert p.dtype == scores
            assert (p <= upper).all()
            room = max(torch.finfo(dtype).eps, 1e-6)
            assert (p.sum(-1, dtype=torch.float64) - 1).abs().max() <= room
            inside = vmap(lambda x, u: mapping(x, u, backend=backend))(z, upper)
            assert torch.equal(inside, p)
    for short in (torch.full((7,), 0.14), torch.full((7,), 1 / 7) * (1 - 0.01)):
        with pytest.raises(ValueError, match=r"upper must sum to at least 1"):
            mapping(torch.randn(7), short.to(dtype), backend=backend)


@every_backend
def test_lower_bounds_are_as_exact_as_their_dtype(backend):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for n in (3, 5, 7, 11, 49):
            lower = torch.full((n,), 1 / n).to(dtype)
            upper = torch.ones(n, dtype=dtype)
            p = px.constrained_sparsemax(torch.randn(n).double(), upper, lower, backend=backend)
            assert (p >= lower).all()
            assert abs(p.sum() - 1) <= max(torch.finfo(dtype).eps, 1e-6)


@every_backend
@every_mapping
def test_one_gradient_where_nothing_is_free(mapping, backend):
    """Every entry at its bound is a kink: what makes up for a change is the same everywhere."""
    n, weights = 4, torch.tensor([[1.0, -2.0, 0.5, 3.0, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True] * n + [False]])
    z = torch.tensor([[1.0, 0.0, 2.0, -1.0, 0.0]], dtype=torch.float64)
    full, open_ = torch.full_like(z, 1 / n), torch.ones_like(z)
    mixed = torch.tensor([[0.2, 0.4, 0.3, 0.1, 0.0]], dtype=torch.float64)
    cases = [(z, full)]
    if mapping is px.constrained_sparsemax:
        # all at lower bounds; two at either; one at an upper bound, and lower ones
        cases += [(z, open_, mixed), (z, torch.tensor([[0.2, 0.6, 0.3, 0.9, 1.0]]).double(), mixed)]
        cases += [(z, open_, torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]]).double())]

    def f(*given):
        return (mapping(*given, mask=mask, backend=backend) * weights).sum()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for case in cases:
        given = [x.clone().requires_grad_() for x in case]
        expected = torch.autograd.grad(f(*given), given)
        moving = sum(x for x in expected[1:])
        assert moving[0, :n].abs().max() > 0.1, "nothing moves, and the test shows nothing"
        places = tuple(range(len(case)))
        again = torch.autograd.grad(f(*given), given, create_graph=True)
        for found in (
            torch.func.grad(f, places)(*case),
            jacfwd(f, places)(*case),
            torch.autograd.grad(compiled(*given), given),
            again,
        ):
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other)
        # the sum never moves
        for jacobian in jacfwd(lambda *x: mapping(*x, mask=mask).sum(), places)(*case):
            assert jacobian.abs().max() < 1e-12
    centred = weights - weights[:, :n].mean()
    (found,) = torch.autograd.grad(f(z, full.requires_grad_()), full)
    torch.testing.assert_close(found, centred.masked_fill(~mask, 0.0))


@every_backend
def test_a_lower_bound_below_zero_binds_nothing(backend):
    lower = torch.tensor([-1.0, -torch.inf, 0.1, -0.01], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([1.0, -3.0, -4.0, 0.5], dtype=torch.float64)
    p = px.constrained_sparsemax(z, 1.0, lower, backend=backend)
    assert torch.equal(p, px.constrained_sparsemax(z, 1.0, lower.detach().clamp(min=0)))
    (gradient,) = torch.autograd.grad(p[2], lower)
    assert gradient.tolist() == [0, 0, 1, 0]


@every_mapping
def test_a_row_without_a_solution_is_named(mapping):
    z = torch.randn(2, 3, 4)
    upper = torch.full((2, 3, 4), 0.5)
    upper[1, 2] = 0.2
    message = r"upper must sum to at least 1 .*got 0\.8 in row \(1, 2\) along dim 2"
    with pytest.raises(ValueError, match=message):
        mapping(z, upper)
    with pytest.raises(ValueError, match=r"got 0\.6 in row 1 along dim 0"):
        mapping(z[0, :, :2], torch.tensor([0.6, 0.2]), dim=0)
    with pytest.raises(ValueError, match=r"got 0\.9 in this row"):
        mapping(z[0, 0, :3], 0.3)
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[1, 2] = False  # nothing allowed comes first
    assert (mapping(z, upper, mask=mask)[1, 2] == 0).all()
    mask[1, 2, 0] = True
    with pytest.raises(ValueError, match=r"got 0\.2 in row \(1, 2\)"):
        mapping(z, upper, mask=mask)


def test_other_bounds_that_are_refused():
    z = torch.randn(2, 3)
    good = torch.ones(2, 3)
    negative = torch.tensor([[1.0, 1, 1], [1, -0.25, 1]])
    with pytest.raises(ValueError, match=r"every value of upper must be at least 0, got -0\.25 in"):
        px.constrained_softmax(z, negative)
    with pytest.raises(ValueError, match=r"every value of upper .* got nan in row 1"):
        px.constrained_softmax(z, torch.tensor([[1.0], [torch.nan]]))
    with pytest.raises(ValueError, match=r"every value of lower .* got nan in row 0"):
        px.constrained_sparsemax(z, good, torch.tensor([0.0, torch.nan, 0.0]))
    with pytest.raises(ValueError, match=r"lower must sum to at most 1 .*got 1\.2 in row 0"):
        px.constrained_sparsemax(z, good, 0.4)
    with pytest.raises(ValueError, match=r"lower must be at most upper, got 0\.1 above"):
        px.constrained_sparsemax(z, torch.tensor([0.2, 0.9, 0.9]), 0.3)
    with pytest.raises(ValueError, match=r"^lower must be at most 1, got 2"):
        px.constrained_sparsemax(z, 1.0, 2)
    with pytest.raises(ValueError, match=r"upper must broadcast .*\(2, 3\), got shape \(2,\)"):
        px.constrained_softmax(z, torch.ones(2))
    with pytest.raises(ValueError, match=r"upper must broadcast .*got shape \(1, 2, 3\)"):
        px.constrained_softmax(z, torch.ones(1, 2, 3))
    with pytest.raises(TypeError, match=r"upper must have a floating-point dtype, got"):
        px.constrained_softmax(z, torch.ones(3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"^upper must be a number or a tensor, got None"):
        px.constrained_softmax(z, None)


@every_backend
@every_mapping
def test_no_solution_is_nan_in_its_row_where_values_cannot_be_read(mapping, backend):
    upper = torch.tensor([[0.5], [0.1], [torch.nan], [-1.0]], dtype=torch.float64)
    z = torch.randn(4, 5, dtype=torch.float64)
    p = vmap(lambda x, u: mapping(x, u, backend=backend))(z, upper)
    assert torch.equal(p[0], mapping(z[0], 0.5, backend=backend))
    assert p[1:].isnan().all()
