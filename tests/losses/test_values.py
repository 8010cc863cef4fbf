"""Values and first gradients against the definition, computed elsewhere in float64."""

import math

import entmax as peer
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.backends import AVAILABLE
from tests.losses import oracle

import parsimax as px

ALPHAS = [1.0, 1.0001, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0]


def rows(count=40, classes=9, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    target = torch.randint(0, classes, (count,), generator=generator)
    return z, target


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_loss_is_its_definition(alpha, backend):
    z, target = rows()
    ours = px.entmax_loss(z, target, alpha, reduction="none", backend=backend)
    exact = oracle.entmax_loss(z.numpy(), np.eye(9)[target], alpha)
    # the bisection's own threshold has an error of one ulp, magnified by 1/(alpha - 1) in p
    np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-10)
    single = px.entmax_loss(z.float(), target, alpha, reduction="none", backend=backend)
    exact = oracle.entmax_loss(z.float().double().numpy(), np.eye(9)[target], alpha)
    # a loss of up to 20 is rounded to 1e-6, and p has 2e-6 to go wrong by
    np.testing.assert_allclose(single, exact, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_weights_and_smoothing_are_in_the_definition(alpha, backend):
    z, target = rows()
    w = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = 0.8 * np.eye(9)[target] + 0.2 / 9
    exact = oracle.entmax_loss(z.numpy(), y * w.numpy(), alpha)
    options = {"weight": w, "label_smoothing": 0.2, "backend": backend}
    ours = px.entmax_loss(z, target, alpha, reduction="none", **options)
    np.testing.assert_allclose(ours, exact, rtol=1e-10, atol=1e-10)
    mean = px.entmax_loss(z, target, alpha, **options)
    assert mean.item() == pytest.approx(exact.sum() / w[target].sum().item(), rel=1e-10)
    dense = px.entmax_loss(z, torch.from_numpy(y), alpha, weight=w, backend=backend)
    assert dense.item() == pytest.approx(exact.mean(), rel=1e-10)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradient_is_p_minus_y(alpha, backend):
    z, target = rows()
    z.requires_grad_()
    loss = px.entmax_loss(z, target, alpha, reduction="sum", backend=backend)
    (g,) = torch.autograd.grad(loss, z)
    p = np.stack([oracle.entmax(row, alpha) for row in z.detach().numpy()])
    np.testing.assert_allclose(g, p - np.eye(9)[target], atol=1e-9)


def test_agrees_with_the_entmax_package():
    z, target = rows()
    for alpha, theirs in ((1.5, peer.entmax15_loss), (2.0, peer.sparsemax_loss)):
        ours = px.entmax_loss(z, target, alpha, reduction="none")
        torch.testing.assert_close(ours, theirs(z, target), rtol=1e-9, atol=1e-9)


def test_two_class_sparsemax_loss_is_huber():
    gap = torch.linspace(-3, 3, 61, dtype=torch.float64)  # Martins & Astudillo 2016, section 3.3
    z = torch.stack([gap, torch.zeros_like(gap)], -1)
    ours = px.sparsemax_loss(z, torch.zeros(61, dtype=torch.int64), reduction="none")
    huber = torch.where(gap >= 1, 0, torch.where(gap <= -1, -gap, (gap - 1) ** 2 / 4))
    torch.testing.assert_close(ours, huber)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 2.0, 3.0])
def test_zero_exactly_beyond_the_margin(alpha, dtype, backend):
    z, target = rows(200)
    z = z.to(dtype)
    others = z.scatter(1, target[:, None], -torch.inf).amax(1)
    lead = 1 / (alpha - 1)
    extra = torch.linspace(0.001, 5, 200, dtype=dtype)
    z = z.scatter(1, target[:, None], (others + lead + extra)[:, None]).requires_grad_()
    loss = px.entmax_loss(z, target, alpha, reduction="none", backend=backend)
    assert loss.eq(0).all()
    assert torch.autograd.grad(loss.sum(), z)[0].eq(0).all()
    inside = z.detach().scatter(1, target[:, None], (others + lead / 2)[:, None])
    assert px.entmax_loss(inside, target, alpha, reduction="none", backend=backend).gt(0).all()


@pytest.mark.parametrize("lam", [-1.0, 0.0, 0.6])
def test_margin_of_sparsegen(lam):
    z = torch.tensor([[1 - lam + 1e-6, 0.0, -2.0], [1 - lam - 1e-2, 0.0, -2.0]])
    loss = px.fenchel_young_loss(
        z, torch.tensor([0, 0]), px.mappings.Sparsegen(lam), reduction="none"
    )
    assert loss[0] == 0 < loss[1]


@pytest.mark.parametrize("backend", AVAILABLE)
@given(
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    shift=st.sampled_from([0.0, 1e6, -1e6]),
    alpha=st.sampled_from([1.0, 1.2, 1.5, 2.0, 3.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_nonnegative_and_blind_to_shifts(backend, scale, shift, alpha, seed):
    # multiples of 1/16, so that the shifted scores are the same numbers in float32
    z, target = rows(6, 12, scale, seed)
    z = (z * 16).round() / 16
    plain = px.entmax_loss(z.float(), target, alpha, reduction="none", backend=backend)
    moved = px.entmax_loss((z + shift).float(), target, alpha, reduction="none", backend=backend)
    assert plain.ge(0).all()
    if abs(shift) + 5 * scale < 2**20:
        assert plain.equal(moved)
    exact = oracle.entmax_loss(z.numpy(), np.eye(12)[target], alpha)
    np.testing.assert_allclose(plain, exact, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("backend", AVAILABLE)
def test_long_rows(backend):
    z, target = rows(3, 40_000, 2.0)
    for alpha in (1.0, 1.3, 1.5, 2.0):
        ours = px.entmax_loss(z.float(), target, alpha, reduction="none", backend=backend)
        exact = [
            oracle.entmax_class_losses(row, alpha)[t]
            for row, t in zip(z.float().double().numpy(), target, strict=True)
        ]
        np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=2e-6)


def test_one_class_has_no_loss():
    z = torch.tensor([[3.0], [-1e4]], requires_grad=True)
    loss = px.entmax_loss(z, torch.tensor([0, 0]), reduction="none")
    assert loss.tolist() == [0, 0]
    assert torch.autograd.grad(loss.sum(), z)[0].eq(0).all()


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_target_that_is_masked(alpha, backend):
    inf = math.inf
    z = torch.tensor([[1.0, -inf, 0.5], [-inf, 2.0, 1.0], [-inf, -inf, -inf]], requires_grad=True)
    target = torch.tensor([1, 1, 0])
    loss = px.entmax_loss(z, target, alpha, reduction="none", backend=backend)
    assert loss[0] == inf
    assert loss[2] == inf
    assert loss[1].item() == pytest.approx(
        oracle.entmax_class_losses(np.array([2.0, 1.0]), alpha)[0], abs=1e-6
    )
    (g,) = torch.autograd.grad(loss.sum(), z)
    p = [
        [*oracle.entmax(np.array([1.0, 0.5]), alpha)],
        [*oracle.entmax(np.array([2.0, 1.0]), alpha)],
    ]
    wanted = [[p[0][0], -1, p[0][1]], [0, p[1][0] - 1, p[1][1]], [-1, 0, 0]]
    np.testing.assert_allclose(g, wanted, atol=1e-6)


@pytest.mark.parametrize("backend", AVAILABLE)
def test_nothing_times_infinity_is_nothing(backend):
    z = torch.tensor([[1.0, -math.inf, 0.5]], requires_grad=True)
    free = px.entmax_loss(z[:, [0, 2]], torch.tensor([0]), backend=backend)
    y = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)
    assert px.entmax_loss(z, y, backend=backend) == free
    weight = torch.tensor([1.0, 0.0, 1.0])
    masked_and_weightless = px.entmax_loss(
        z, torch.tensor([1]), weight=weight, reduction="sum", backend=backend
    )
    assert masked_and_weightless == 0
    smoothed = px.entmax_loss(
        z, torch.tensor([0]), weight=weight, label_smoothing=0.3, backend=backend
    )
    assert smoothed.isfinite()
    grads = torch.autograd.grad(
        px.entmax_loss(z, y, backend=backend) + masked_and_weightless + smoothed, (z, y)
    )
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("kind", ["index", "probability"])
def test_bad_scores_stay_in_their_row(kind, backend):
    z, target = rows(5, 4)
    clean = z.clone()
    z[1, 2], z[3, 0] = math.nan, math.inf
    z.requires_grad_()
    if kind == "probability":
        target = torch.eye(4, dtype=torch.float64)[target % 4]
    else:
        target = target % 4
    loss = px.entmax_loss(z, target, reduction="none", backend=backend)
    good = [0, 2, 4]
    assert loss[[1, 3]].isnan().all()
    assert loss[good].equal(px.entmax_loss(clean, target, reduction="none", backend=backend)[good])
    (g,) = torch.autograd.grad(loss.sum(), z)
    assert g[[1, 3]].isnan().all()
    assert g[good].isfinite().all()
    if kind == "index":
        target = target.clone()
        target[[1, 3]] = -100
        loss = px.entmax_loss(z, target, label_smoothing=0.1, backend=backend)
        assert loss.isfinite()
        assert torch.autograd.grad(loss, z)[0].isfinite().all()


def test_fresh_memory_is_never_read():
    """Uninitialised tensors are filled with NaN, so a result that used one would show it."""
    z, target = rows(7, 300)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # this is what fills torch.empty
    try:
        for mapping in (
            "entmax(alpha=1.3)",
            "sparsegen(lam=0.2)",
            "normmax(alpha=1.7)",
            "budget(k=1)",
        ):
            x = z.clone().requires_grad_()
            loss = px.fenchel_young_loss(x, target, mapping, backend="numba")
            assert loss.isfinite()
            assert torch.autograd.grad(loss, x)[0].isfinite().all()
    finally:
        torch.use_deterministic_algorithms(before)


def test_budgets_of_any_layout():
    """A tensor k has size 1 along the classes, wherever they are."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    k = 1 + 2 * torch.rand(2, 1, 3, generator=generator, dtype=torch.float64)
    y = px.budget(z.flip(0), k, dim=1)
    loss = px.fenchel_young_loss(z, y, px.mappings.Budget(k), reduction="none")
    for i in range(2):
        for j in range(3):
            mapping = px.mappings.Budget(k[i, 0, j].item())
            one = px.fenchel_young_loss(z[i, :, j], y[i, :, j], mapping)
            torch.testing.assert_close(loss[i, j], one)
    with pytest.raises(ValueError, match="along dim 1, got k = 6"):
        px.fenchel_young_loss(z, y, px.mappings.Budget(torch.where(k == k[1, 0, 2], 6.0, k)))
