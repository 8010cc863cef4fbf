"""The loss of class indices by Triton kernels: on the GPU if there is one, else interpreted."""

from __future__ import annotations

import pytest
import torch

import parsimax as px

pytest.importorskip("triton")
from parsimax.kernels.gpu import index_loss
from parsimax.losses import index_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, CLASSES = 12, 40

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

OPTIONS = {
    "plain": {},
    "ignored": {"ignore_index": 3},
    "smooth": {"label_smoothing": 0.1},
    "weighted": {"weight": True},
    "all": {"weight": True, "label_smoothing": 0.3, "ignore_index": 3},
}


@pytest.fixture(autouse=True)
def _kernels_do_it(monkeypatch):
    """Nobody gets here by another way without being noticed."""
    calls = []
    solve = index_loss.solve
    monkeypatch.setattr(index_loss, "solve", lambda *a: calls.append(1) or solve(*a))
    yield
    assert calls


def _scores(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = (torch.randn(ROWS, CLASSES, generator=generator) * 16).round() / 8
    return z.to(DEVICE, dtype)


def _target():
    target = torch.arange(ROWS, device=DEVICE) % 9
    target[5] = CLASSES - 1
    return target


def _weight(dtype=torch.float32):
    return torch.linspace(0.1, 2, CLASSES, device=DEVICE).to(dtype)


def _run(backend, dtype, alpha, reduction, options, z=None):
    z = (_scores() if z is None else z).to(dtype).requires_grad_()
    options = dict(options)
    if options.get("weight") is True:
        options["weight"] = _weight(dtype)
    inputs = [z]
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.detach().clone().to(DEVICE).requires_grad_()
        inputs.append(alpha)
    loss = px.entmax_loss(z, _target(), alpha, reduction=reduction, backend=backend, **options)
    above = torch.linspace(1, 2, loss.numel(), device=DEVICE).reshape(loss.shape).to(loss.dtype)
    return loss.detach(), torch.autograd.grad(loss, inputs, above)


def _compare(alpha, reduction, options, rtol=2e-5, atol=2e-6):
    loss, grads = _run("triton", torch.float32, alpha, reduction, options)
    right, rights = _run("torch", torch.float64, alpha, reduction, options)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), right, rtol=rtol, atol=atol)
    for gradient, wanted in zip(grads, rights, strict=True):
        assert gradient.shape == wanted.shape
        torch.testing.assert_close(gradient.double(), wanted.double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_option(reduction, options):
    _compare(1.5, reduction, options)


@pytest.mark.parametrize("alpha", [1.0, 1.3, 2.0, 3.0])
def test_every_alpha(alpha):
    _compare(alpha, "mean", OPTIONS["all"])


@pytest.mark.parametrize("shape", [(), (1, 1), (ROWS, 1)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_learnable_alpha(shape, reduction):
    values = torch.linspace(1, 2.6, ROWS).unsqueeze(1) if len(shape) > 1 and shape[0] > 1 else 1.6
    _compare(torch.zeros(shape, dtype=torch.float64) + values, reduction, OPTIONS["all"])


def test_many_rows_are_added_up_in_parts(monkeypatch):
    monkeypatch.setattr(index_loss, "_BLOCK", 2)
    monkeypatch.setattr(index_loss, "_SPAN", 4)
    for reduction in ("mean", "sum", "none"):
        _compare(1.5, reduction, OPTIONS["all"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_once(dtype):
    z = _scores(dtype)
    for reduction in ("none", "mean"):
        loss, (gradient,) = _run("triton", dtype, 1.5, reduction, OPTIONS["smooth"], z)
        right, (wanted,) = _run("torch", torch.float64, 1.5, reduction, OPTIONS["smooth"], z)
        assert loss.dtype == gradient.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(loss.double(), right, rtol=eps, atol=1e-6)
        # p is kept in half precision, and rounded once more when it has its factor
        torch.testing.assert_close(gradient.double(), wanted, rtol=2 * eps, atol=eps / 8)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_special_rows(reduction, smoothing):
    """-inf scores, one of them the target, a row of them, NaN, an ignored NaN."""
    z = _scores()[:6]
    z[1, 3] = -torch.inf
    z[2, 2] = -torch.inf
    z[3] = -torch.inf
    z[4, 1] = torch.nan
    z[5, 1] = torch.nan
    target = torch.tensor([0, 1, 2, 3, 4, -100], device=DEVICE)
    for keep in ([0, 1, 2, 5], [3, 4, 5], [5]):
        results = []
        for backend in ("triton", "torch"):
            x = z[keep].requires_grad_()
            loss = px.entmax_loss(
                x, target[keep], reduction=reduction, label_smoothing=smoothing, backend=backend
            )
            results += [loss.detach(), *torch.autograd.grad(loss, x, torch.ones_like(loss))]
        loss, gradient, right, wanted = results
        torch.testing.assert_close(loss, right, rtol=1e-5, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_nothing_to_average():
    z = _scores().requires_grad_()
    ignored = torch.full((ROWS,), -100, device=DEVICE)
    loss = px.entmax_loss(z, ignored, backend="triton")
    assert loss == 0
    assert (torch.autograd.grad(loss, z)[0] == 0).all()
    nothing = px.entmax_loss(_scores(), _target(), weight=0 * _weight(), backend="triton")
    assert nothing.isnan()


def test_an_index_that_is_no_class_gives_nan():
    """Where values can be read it raises before; a GPU's are not read."""
    target = _target()
    target[2], target[3] = CLASSES, -1
    settings = index_loss.Settings(-100, 0.0, "none", torch.float32)
    solved = index_loss.solve(_scores(), 1.5, target, None, settings)
    assert solved.loss.isnan().nonzero().flatten().tolist() == [2, 3]
    g = torch.ones(ROWS, device=DEVICE)
    gz, _ = index_loss.pull_back(solved, g, 1.5, target, None, settings, False)
    assert gz.isnan().all(1).nonzero().flatten().tolist() == [2, 3]
    assert not gz[[0, 1, 4]].isnan().any()


def test_strided_arguments_and_gradients():
    z, target = _scores(), _target()
    straight = px.entmax_loss(z, target, weight=_weight(), reduction="none", backend="triton")
    wide = torch.stack([_weight(), _weight()], 1)
    strided = px.entmax_loss(
        z.t().contiguous().t(),
        torch.stack([target, target], 1)[:, 0],
        weight=wide[:, 0],
        reduction="none",
        backend="triton",
    )
    assert strided.equal(straight)
    x = z.requires_grad_()
    px.entmax_loss(x, target, reduction="none", backend="triton").sum().backward()
    (gradient,) = torch.autograd.grad(
        px.entmax_loss(x, target, reduction="sum", backend="triton"), x
    )
    assert gradient.equal(x.grad)


def test_gradients_of_gradients_and_of_a_batch():
    """Against float64, by a loss whose gradient is squared; and by the older vmap."""
    alpha = torch.linspace(1.2, 1.9, ROWS, dtype=torch.float64, device=DEVICE).unsqueeze(1)
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        z = _scores(dtype).requires_grad_()
        a = alpha.clone().requires_grad_()
        loss = px.entmax_loss(z, _target(), a, _weight(dtype), label_smoothing=0.1, backend=backend)
        first = torch.autograd.grad(loss, (z, a), create_graph=True)
        total = sum((x.double() ** 2).sum() for x in first)
        results.append(torch.autograd.grad(total, (z, a)))
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine.double(), wanted.double(), rtol=1e-4, atol=1e-6)
    z = _scores().requires_grad_()
    loss = px.entmax_loss(z, _target(), reduction="none", backend="triton")
    (batched,) = torch.autograd.grad(
        loss, z, torch.eye(ROWS, device=DEVICE), is_grads_batched=True, retain_graph=True
    )
    (whole,) = torch.autograd.grad(loss, z, torch.ones_like(loss))
    torch.testing.assert_close(batched.sum(0), whole, rtol=1e-6, atol=1e-7)


def test_others_take_the_way_by_rows():
    z, target = _scores(), _target()
    options = px.losses.targets.Options(None, -100, "mean", 0.0)
    assert index_gpu.done_by_kernels(z, target, options, "triton")
    assert not index_gpu.done_by_kernels(z, target, options, "torch")
    assert not index_gpu.done_by_kernels(z[:, :, None], target, options, "triton")
    assert not index_gpu.done_by_kernels(z, z.softmax(1), options, "triton")
    assert not index_gpu.done_by_kernels(z[:0], target[:0], options, "triton")
    learned = px.losses.targets.Options(_weight().requires_grad_(), -100, "mean", 0.0)
    assert not index_gpu.done_by_kernels(z, target, learned, "triton")
    plain = px.entmax_loss(z, target, backend="triton")
    (gradient,) = torch.autograd.grad(
        px.entmax_loss(z.requires_grad_(), target, backend="triton"), z
    )

    def loss(x):
        return px.entmax_loss(x, target, backend="triton")

    by_func, value = torch.func.grad_and_value(loss)(z.detach())
    torch.testing.assert_close(value, plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(by_func, gradient, rtol=1e-6, atol=1e-8)
