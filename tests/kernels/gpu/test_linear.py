"""The loss of a linear layer by Triton kernels: on the GPU if there is one, else interpreted."""

from __future__ import annotations

import pytest
import torch

import parsimax as px

pytest.importorskip("triton")
from parsimax.kernels.gpu import linear
from parsimax.losses import linear_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"  # what Triton's interpreter is too slow for
TOKENS, WORDS, SIZE = 6, 70, 20  # a row takes the interpreter a tenth of a second
EPS = torch.finfo(torch.float32).eps

# Interpreted, the kernels look at lanes that hold no number.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _poisoned():
    """New tensors hold NaN, or the largest integers, until somebody writes to them."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["lists", "dense"])
def way(request, monkeypatch):
    """Both ways of the backward: one entry is more than the lists have room for."""
    if request.param == "dense":
        monkeypatch.setattr(linear, "_MOST_LIST", 1)
    return request.param


def layer(scale=1.0, dtype=torch.float32, items=(TOKENS,), words=WORDS, size=SIZE):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*items, size, generator=generator)
    weight = torch.randn(words, size, generator=generator) * (scale / size**0.5)
    bias = 0.3 * torch.randn(words, generator=generator)
    target = torch.randint(0, words, items, generator=generator)
    tensors = [x.to(DEVICE, dtype).requires_grad_() for x in (hidden, weight, bias)]
    return *tensors, target.to(DEVICE)


def both(inputs, target, names=("hidden", "weight", "bias"), **options):
    """(loss, gradients) by the kernels, and what float64 makes of the same numbers."""
    results = []
    for backend in ("triton", "torch"):
        exact = backend == "torch"
        tensors = [x.detach().double().requires_grad_() if exact else x for x in inputs]
        given = dict(zip(names, tensors, strict=True))
        rest = {
            k: v.double() if isinstance(v, torch.Tensor) and exact else v
            for k, v in options.items()
        }
        loss = px.linear_entmax_loss(target=target, **given, **rest, backend=backend)
        g = torch.linspace(0.5, 2, loss.numel()).to(loss).reshape(loss.shape)
        results.append((loss.detach(), torch.autograd.grad(loss, tensors, g)))
    return results


def assert_near(inputs, target, tolerance, **options):
    (loss, grads), (wanted, exact) = both(inputs, target, **options)
    torch.testing.assert_close(loss.double(), wanted, rtol=tolerance, atol=tolerance)
    for got, want in zip(grads, exact, strict=True):
        assert got.isfinite().all()
        assert (got.double() - want).norm() <= tolerance * want.norm()


# Loss and gradients are sums of at most 70 products, each right to a few roundings of float32.
FEW = 16 * EPS


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 3.0, *([1.01, 2.0] if ON_GPU else [])])
@pytest.mark.parametrize("scale", [0.3, 8.0])  # large supports, small supports
def test_every_alpha(alpha, scale, way):
    hidden, weight, bias, target = layer(scale)
    # logits of some 30, each off by its own rounding, move p by that much
    assert_near((hidden, weight, bias), target, FEW * max(1.0, scale / 4), alpha=alpha)


def test_every_option(way):
    class_weight = torch.linspace(0.2, 2, WORDS).to(DEVICE)
    for smoothing, reduction, weights in (
        (0.0, "mean", class_weight),
        (0.0, "sum", None),
        (0.1, "mean", None),
        (0.1, "none", class_weight),
    ):
        hidden, weight, bias, target = layer(2.0)
        target[3], target[5] = -100, -100
        options = {
            "class_weight": weights,
            "reduction": reduction,
            "label_smoothing": smoothing,
        }
        assert_near((hidden, weight, bias), target, FEW, **options)


def test_learnable_alpha(way):
    hidden, weight, bias, target = layer(2.0)
    rows = torch.linspace(1, 3, TOKENS, device=DEVICE).unsqueeze(-1).requires_grad_()
    one = torch.tensor(1.4, device=DEVICE, requires_grad=True)
    names = ("hidden", "weight", "bias", "alpha")
    for alpha, reduction in ((rows, "none"), (one, "mean")):
        inputs = (hidden, weight, bias, alpha)
        assert_near(inputs, target, 2 * FEW, names=names, reduction=reduction)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_half_precision(alpha, dtype, way):
    """Logits are not rounded: the gradients' error is that of p and of the result itself.

    The interpreter cuts digits off where a GPU rounds, which doubles it.
    """
    hidden, weight, bias, target = layer(8.0, dtype)
    (_, grads), (_, exact) = both((hidden, weight, bias), target, alpha=alpha)
    for reduction in ("mean", "sum", "none"):
        loss, wanted = (
            x[0] for x in both((hidden, weight, bias), target, alpha=alpha, reduction=reduction)
        )
        assert loss.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(loss.double(), wanted, rtol=2 * eps, atol=2 * eps)
    for got, want in zip(grads, exact, strict=True):
        assert got.dtype == dtype
        assert (got.double() - want).norm() <= 2 * torch.finfo(dtype).eps * want.norm()


def test_small_gradients_survive_float16(way):
    """A mean over many rows has factors below what float16 can hold."""
    hidden, weight, bias, target = layer(0.3, torch.float16)
    tiny = torch.full((WORDS,), 2.0**-14, device=DEVICE)  # what every row counts
    loss = px.linear_entmax_loss(
        hidden, weight, target, bias, 1.2, tiny, reduction="sum", backend="triton"
    )
    grads = torch.autograd.grad(loss.double() * 2.0**13, (hidden, weight, bias))
    exact = both((hidden, weight, bias), target, alpha=1.2, reduction="sum")[1][1]
    for got, want in zip(grads, exact, strict=True):
        assert (got.double() - want).norm() <= 2 * torch.finfo(torch.float16).eps * want.norm()


def test_chunks_and_blocks(way, monkeypatch):
    """Several chunks of rows, several blocks of words, widths that are no multiple of anything."""
    words = 530
    hidden, weight, bias, target = layer(words=words, items=(5,), size=33)
    monkeypatch.setattr(linear, "_CHUNK", 2 * 4 * 532)
    monkeypatch.setattr(linear, "_LEAST_ROWS", 1)
    monkeypatch.setattr(linear, "_BLOCK", 1)
    monkeypatch.setattr(linear, "_LANES", 128)
    assert_near((hidden, weight, bias), target, FEW, alpha=1.3, label_smoothing=0.1)


def test_who_computes_is_decided_by_the_number_of_entries():
    hidden, weight, _, target = layer(8.0)
    rows = linear.Rows(hidden.detach(), weight.detach(), None, 1.5, target, None, -100, 0.0, "sum")
    lists = linear.solve(rows, False, torch.float32)[-1]
    total = int(lists.total)
    assert total == int(lists.spans[1].sum()) < 5 * TOKENS
    assert lists.grads[:total].sum().item() == pytest.approx(0, abs=1e-5)
    own = set((target * TOKENS + torch.arange(TOKENS, device=DEVICE)).tolist())
    assert own <= set(lists.keys[:total].tolist())


def test_keys_of_large_problems_are_wide():
    assert linear.key_dtype(8192, 128_256) == torch.int32
    assert linear.key_dtype(65_536, 128_256) == torch.int64
    assert linear.capacity(8192, 128_256, 1.0) == 0
    # what is kept and sorted stays below a quarter of a GiB
    assert linear.capacity(1 << 20, 1 << 18, 1.5) * 8 <= 1 << 26


def test_wide_keys(monkeypatch):
    monkeypatch.setattr(linear, "key_dtype", lambda tokens, words: torch.int64)
    hidden, weight, bias, target = layer(2.0)
    assert_near((hidden, weight, bias), target, FEW)


def test_broken_ignored_and_masked_rows(way):
    hidden, weight, bias, target = layer(2.0)
    broken = hidden.detach().clone()
    broken[3], broken[5] = torch.nan, torch.nan
    broken.requires_grad_()
    target[5] = -100
    loss = px.linear_entmax_loss(broken, weight, target, reduction="none", backend="triton")
    assert loss.isnan().nonzero().tolist() == [[3]]
    g, gw = torch.autograd.grad(loss.sum(), (broken, weight))
    assert g.isnan().any(-1).nonzero().tolist() == [[3]]
    assert gw.isnan().all()
    masked = bias.detach().clone()
    masked[target[0]] = -torch.inf
    loss = px.linear_entmax_loss(hidden, weight, target, masked, reduction="none", backend="triton")
    assert loss[0] == torch.inf
    assert all(x.isfinite().all() for x in torch.autograd.grad(loss.sum(), (hidden, weight)))
    nothing = torch.full_like(target, -100)
    loss = px.linear_entmax_loss(hidden, weight, nothing, backend="triton")
    assert loss == 0
    assert all(x.eq(0).all() for x in torch.autograd.grad(loss, (hidden, weight)))
    empty = px.linear_entmax_loss(hidden[:0], weight, target[:0], reduction="sum", backend="triton")
    assert empty == 0
    assert torch.autograd.grad(empty, weight)[0].eq(0).all()


def test_ties_and_far_scores():
    """A row of equal logits, and one where thousands would hide behind one lane's largest."""
    bias = torch.zeros(WORDS, device=DEVICE)
    hidden = torch.tensor([[0.0], [1.0], [1e4]], device=DEVICE).requires_grad_()
    weight = torch.linspace(-1, 1, WORDS, device=DEVICE).unsqueeze(-1).requires_grad_()
    target = torch.tensor([1, 5, WORDS - 1], device=DEVICE)
    for alpha in (1.0, 1.5, 1.7, 2.0, 4.0):
        (loss, grads), (wanted, exact) = both(
            (hidden, weight, bias.requires_grad_()), target, alpha=alpha, reduction="none"
        )
        torch.testing.assert_close(loss.double(), wanted, rtol=FEW, atol=FEW)
        for got, want in zip(grads, exact, strict=True):
            assert (got.double() - want).norm() <= 1e-5 * want.norm()


def test_a_row_does_not_depend_on_its_neighbours_and_repeats():
    hidden, weight, bias, target = layer(2.0)
    options = {"reduction": "none", "backend": "triton"}
    loss = px.linear_entmax_loss(hidden, weight, target, bias, **options)
    grads = torch.autograd.grad(loss.sum(), (hidden, weight, bias))
    again = px.linear_entmax_loss(hidden, weight, target, bias, **options)
    assert torch.equal(loss, again)
    repeated = torch.autograd.grad(again.sum(), (hidden, weight, bias))
    assert all(a.equal(b) for a, b in zip(grads, repeated, strict=True))
    # torch's own product depends on the number of rows in its last digits
    part = px.linear_entmax_loss(hidden[4:6], weight, target[4:6], bias, **options)
    torch.testing.assert_close(part, loss[4:6], rtol=FEW, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "none"] if ON_GPU else ["mean"])
def test_compile_in_training(reduction, way):
    hidden, weight, bias, target = layer(2.0)
    alpha = torch.tensor(1.4, device=DEVICE, requires_grad=True)

    def loss(hidden, weight, bias, alpha):
        value = px.linear_entmax_loss(
            torch.tanh(hidden), weight, target, bias, alpha,
            reduction=reduction, label_smoothing=0.1, backend="triton",
        )  # fmt: skip
        return (1.5 * value).sum()

    inputs = (hidden, weight, bias, alpha)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(*inputs), loss(*inputs)
    torch.testing.assert_close(ours, theirs)
    grads = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    torch.testing.assert_close(*grads)


def test_the_operators_are_what_torch_expects():
    hidden, weight, bias, target = (x.detach() for x in layer(2.0))
    settings = (1.5, -100, 0.1, "mean", torch.float32)
    arguments = (hidden, weight, bias, None, target, None, *settings, True)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(linear_gpu._operator, arguments, test_utils=checks)


def test_only_what_is_wanted(way):
    hidden, weight, bias, target = layer(2.0)
    loss = px.linear_entmax_loss(hidden.detach(), weight.detach(), target, bias, backend="triton")
    (alone,) = torch.autograd.grad(loss, bias)
    loss = px.linear_entmax_loss(hidden, weight, target, bias, backend="triton")
    first = torch.autograd.grad(loss, (hidden, bias), retain_graph=True)
    second = torch.autograd.grad(2 * loss, (hidden, bias))
    torch.testing.assert_close(alone, first[1])
    torch.testing.assert_close([2 * g for g in first], list(second))


def test_strided_inputs():
    hidden, weight, _, target = layer(2.0)
    tied = weight.detach().t().contiguous().t().requires_grad_()
    sliced = torch.cat([hidden, hidden], -1).detach()[:, :SIZE].requires_grad_()
    ours = px.linear_entmax_loss(sliced, tied, target, backend="triton")
    theirs = px.linear_entmax_loss(hidden, weight, target, backend="triton")
    assert torch.equal(ours, theirs)
    grads = torch.autograd.grad(ours, (sliced, tied)), torch.autograd.grad(theirs, (hidden, weight))
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))
