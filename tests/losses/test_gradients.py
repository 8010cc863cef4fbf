"""Gradients of every order, in everything that is differentiable, at outputs with exact zeros."""

import numpy as np
import pytest
import torch
from tests.contracts.backends import AVAILABLE
from torch.autograd import gradcheck, gradgradcheck

import parsimax as px
from parsimax.mappings import Budget, Entmax, Normmax, Sparsegen


def problem(seed=0, classes=6):
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(4, classes, generator=generator, dtype=torch.float64)
    target = torch.randint(0, classes, (4,), generator=generator)
    y = torch.rand(4, classes, generator=generator, dtype=torch.float64) + 0.05
    w = torch.rand(classes, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), target, (y / y.sum(-1, keepdim=True)).requires_grad_(), w


def check(function, inputs):
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs, check_batched_grad=True)


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_scores_probabilities_and_weights(alpha, backend):
    z, target, y, w = problem()
    assert alpha == 1 or px.entmax(z, alpha).eq(0).any()
    w.requires_grad_()
    check(
        lambda z, w: px.entmax_loss(z, target, alpha, w, label_smoothing=0.1, backend=backend),
        (z, w),
    )
    check(lambda z, y, w: px.entmax_loss(z, y, alpha, w, backend=backend), (z, y, w))


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("shape", [(), (4, 1)], ids=str)
def test_alpha(shape, backend):
    z, target, y, _ = problem()
    alpha = torch.linspace(1.2, 1.9, max(1, sum(shape) - 1), dtype=torch.float64).reshape(shape)
    alpha.requires_grad_()
    check(lambda z, a: px.entmax_loss(z, target, a, backend=backend), (z, alpha))
    check(lambda z, a, y: px.fenchel_young_loss(z, y, Entmax(a), backend=backend), (z, alpha, y))


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize(
    ("kind", "value"), [(Sparsegen, 0.3), (Sparsegen, -2.0), (Normmax, 2.0), (Normmax, 1.5)]
)
def test_other_parameters(kind, value, backend):
    z, target, y, _ = problem()
    parameter = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    check(lambda z, q: px.fenchel_young_loss(z, target, kind(q), backend=backend), (z, parameter))
    check(lambda z, q, y: px.fenchel_young_loss(z, y, kind(q), backend=backend), (z, parameter, y))


@pytest.mark.parametrize("backend", AVAILABLE)
def test_budget_in_k(backend):
    """The loss as a function of k goes with k / k0 copies of the target, which sums to k0."""
    z, _, _, _ = problem()
    y = px.budget(torch.randn(4, 6, dtype=torch.float64), k=1.7)
    k = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    check(lambda z, k: px.fenchel_young_loss(z, y * (k / 1.7), Budget(k), backend=backend), (z, k))


def test_budget_where_nothing_moves():
    """At a whole k and far scores p is 0/1, and the derivative is the middle of the two sides."""
    z = torch.tensor([[9.0, 6.0, 1.0, -4.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)

    def loss(k):
        return px.fenchel_young_loss(z, y * (k / 2), Budget(k))

    k = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(loss(k), k)
    step = 1e-6
    sides = [loss(torch.tensor(2 + s, dtype=torch.float64)).item() for s in (step, -step)]
    assert g.item() == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize("backend", AVAILABLE)
def test_alpha_at_one(backend):
    """A one-sided difference, since alpha < 1 is not in the family."""
    z, target, y, _ = problem()
    losses = [
        lambda a: px.entmax_loss(z, target, a, backend=backend),
        lambda a: px.entmax_loss(z, y, a, backend=backend),
        lambda a: px.fenchel_young_loss(z, y, Entmax(a), backend=backend),
    ]
    h = 1e-5
    for loss in losses:
        alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad(loss(alpha), alpha)
        f0, f1, f2 = (loss(torch.tensor(1 + i * h, dtype=torch.float64)).item() for i in range(3))
        # second order in h, and rounding of 1e-16 / h
        assert g.item() == pytest.approx((-3 * f0 + 4 * f1 - f2) / (2 * h), abs=1e-8)


def test_loss_falls_as_alpha_grows():
    """What the documentation warns of: learning alpha by this loss is degenerate."""
    z, target, _, _ = problem()
    target = z.detach().argmax(-1)
    losses = [px.entmax_loss(z, target, a).item() for a in (1.0, 1.5, 2.0, 4.0, 16.0, 256.0)]
    assert all(np.diff(losses) <= 0)
    assert losses[0] > 0.3
    assert losses[-1] < 1e-3


@pytest.mark.parametrize("kind", ["index", "smoothed", "probability"])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
def test_kernel_and_plain_gradients_agree_in_float32(alpha, kind):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(30, 200, generator=generator).requires_grad_()
    a = torch.full((30, 1), alpha, requires_grad=True)
    target = torch.randint(0, 200, (30,), generator=generator)
    if kind == "probability":
        target = torch.rand(30, 200, generator=generator)
    smoothing = 0.1 if kind == "smoothed" else 0.0
    grads = [
        torch.autograd.grad(
            px.entmax_loss(z, target, a, label_smoothing=smoothing, backend=backend), (z, a)
        )
        for backend in AVAILABLE
    ]
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=1e-4, atol=1e-6)


def test_one_buffer_besides_input_and_gradient():
    """Class indices without smoothing keep p and make the gradient: nothing else of that size."""
    from torch.profiler import ProfilerActivity, profile

    z = torch.randn(64, 4096, requires_grad=True)
    target = torch.randint(0, 4096, (64,))
    torch.autograd.grad(px.entmax_loss(z, target), z)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        (g,) = torch.autograd.grad(px.entmax_loss(z, target), z)
    large = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    size = g.numel() * g.element_size()
    made = [e.nbytes() for e in large if e.nbytes() >= size // 4]
    assert sum(made) == 2 * size  # p and the gradient
