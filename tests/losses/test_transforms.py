"""torch.func, torch.compile, half precision, autocast, layouts."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.backends import AVAILABLE
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import parsimax as px

COMPILER = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    z = 2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return z.to(dtype), torch.randint(0, 6, (4,), generator=generator)


# --- torch.func -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", AVAILABLE)
def test_func_transforms(backend):
    z, target = problem()
    y = torch.softmax(z.flip(0), -1)

    def loss(z, y=None):
        return px.entmax_loss(z, target if y is None else y, label_smoothing=0.1, backend=backend)

    torch.testing.assert_close(jacfwd(loss)(z), jacrev(loss)(z))
    torch.testing.assert_close(jacfwd(loss, 1)(z, y), jacrev(loss, 1)(z, y))
    wanted = torch.autograd.functional.hessian(loss, z)
    torch.testing.assert_close(hessian(loss)(z), wanted)
    torch.testing.assert_close(jacrev(jacrev(loss))(z), wanted)
    assert wanted.abs().max() > 0.01


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0])
def test_forward_mode_inside_forward_mode(alpha, backend):
    z, target = problem()
    weight = torch.eye(6, dtype=torch.float64)

    def loss(z, a):
        return px.entmax_loss(z, target, a, label_smoothing=0.1, backend=backend)

    def linear(z, a):
        return px.linear_entmax_loss(
            z, weight, target, alpha=a, label_smoothing=0.1, backend=backend
        )

    a = torch.tensor(alpha, dtype=torch.float64)
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        wanted = jacrev(jacrev(loss, first), second)(z, a)
        assert wanted.abs().max() > 1e-4
        for function in (loss, linear):
            torch.testing.assert_close(jacfwd(jacfwd(function, first), second)(z, a), wanted)


def test_vmap():
    z, target = problem()
    one_hot = torch.eye(6, dtype=torch.float64)[target]
    per_item = vmap(grad(px.entmax_loss))(z, target)
    torch.testing.assert_close(per_item, px.entmax(z) - one_hot)
    several = vmap(lambda z: px.entmax_loss(z, target))(torch.stack([z, 2 * z]))
    wanted = torch.stack([px.entmax_loss(z, target), px.entmax_loss(2 * z, target)])
    torch.testing.assert_close(several, wanted)
    alphas = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
    over_alpha = vmap(lambda a: px.entmax_loss(z, target, a))(alphas)
    wanted = torch.stack([px.entmax_loss(z, target, a) for a in (1.0, 1.5, 2.0)])
    torch.testing.assert_close(over_alpha, wanted)
    over_targets = vmap(lambda t: px.entmax_loss(z, t), in_dims=1)(
        torch.stack([target, target.flip(0)], 1)
    )
    torch.testing.assert_close(over_targets[1], px.entmax_loss(z, target.flip(0)))


def test_bad_targets_under_vmap_give_nan_in_their_row():
    z, target = problem()
    bad = torch.stack([target, target.clone()])
    bad[1, 2] = 6
    losses = vmap(lambda t: px.entmax_loss(z, t, reduction="none"))(bad)
    assert losses.isnan().nonzero().tolist() == [[1, 2]]


# --- torch.compile --------------------------------------------------------------------------------


def test_compile_in_training():
    z, target = problem()

    def loss(z, alpha, y, w):
        index = px.entmax_loss(torch.tanh(z), target, alpha, w, label_smoothing=0.1)
        dense = px.entmax_loss(z, y.softmax(-1), reduction="sum")
        return index + dense + px.fenchel_young_loss(z, target, "sparsegen(lam=0.3)")

    inputs = (z, torch.tensor(1.4).double(), z.flip(0))
    inputs = tuple(x.clone().requires_grad_() for x in inputs)
    w = torch.rand(6).double()
    compiled = torch.compile(loss, fullgraph=True, backend=COMPILER)
    wanted, got = loss(*inputs, w), compiled(*inputs, w)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs), torch.autograd.grad(wanted, inputs)
    )


def test_func_inside_compile():
    z, target = problem()

    def loss(z, alpha=1.5):
        return px.entmax_loss(z, target, alpha, label_smoothing=0.1)

    def both(z, alpha):
        return jacfwd(jacrev(loss))(z), jacfwd(loss, 1)(z, alpha)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    alpha = torch.tensor(1.3).double()
    second, first = compiled(z, alpha)
    torch.testing.assert_close(second, hessian(loss)(z))
    torch.testing.assert_close(first, jacrev(loss, 1)(z, alpha))


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_half_precision_is_rounded_once(alpha, dtype):
    generator = torch.Generator().manual_seed(0)
    z = (4 * torch.randn(64, 500, generator=generator)).to(dtype).requires_grad_()
    target = torch.randint(0, 500, (64,), generator=generator)
    for reduction in ("none", "mean"):
        loss = px.entmax_loss(z, target, alpha, reduction=reduction)
        exact = px.entmax_loss(z.double(), target, alpha, reduction=reduction)
        assert loss.dtype == dtype
        # the nearest number, or its neighbour where float32 lands on the other side of a tie
        wrong = (loss.double() - exact).abs()
        ulp = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
        assert (wrong <= 0.51 * ulp + 2e-6).all()
    (g,) = torch.autograd.grad(loss, z)
    (exact,) = torch.autograd.grad(px.entmax_loss(z.double(), target, alpha), z)
    assert g.dtype == dtype
    # p is rounded where it is kept, and its product with 1/64, exact in binary, is not
    torch.testing.assert_close(g, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_returns_float32(dtype):
    z, target = problem(torch.float32)
    for scores in (z, z.to(dtype)):
        with torch.autocast("cpu", dtype=dtype):
            ours = px.entmax_loss(scores, target, 1.0)
            theirs = torch.nn.functional.cross_entropy(scores, target)
            dense = px.entmax_loss(scores, torch.softmax(scores, -1).to(dtype), 1.5)
        assert ours.dtype == theirs.dtype == dense.dtype == torch.float32
        torch.testing.assert_close(ours, theirs)


# --- layouts --------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_layout_is_the_two_dimensional_loss(data):
    batch = data.draw(st.integers(0, 3))
    rest = tuple(data.draw(st.lists(st.integers(1, 3), max_size=2)))
    classes = data.draw(st.integers(1, 5))
    kind = data.draw(st.sampled_from(["index", "probability"]))
    form = data.draw(st.sampled_from(["contiguous", "transposed", "expanded", "strided"]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shape = (batch, classes, *rest)
    z = torch.randn(shape, generator=generator)
    if form == "transposed":
        z = torch.randn(shape[::-1], generator=generator).permute(*reversed(range(len(shape))))
    elif form == "expanded":
        z = torch.randn(1, *shape[1:], generator=generator).expand(shape)
    elif form == "strided":
        z = torch.randn(batch, 2 * classes, *rest, generator=generator)[:, ::2]
    if kind == "index":
        target = torch.randint(0, classes, (batch, *rest), generator=generator)
        flat_target = target.reshape(-1)
    else:
        target = torch.rand(shape, generator=generator)
        flat_target = target.movedim(1, -1).reshape(-1, classes)
    mapping = data.draw(st.sampled_from(["entmax(alpha=1.5)", "entmax(alpha=1.2)", "normmax"]))
    flat = z.movedim(1, -1).reshape(-1, classes)
    wanted = px.fenchel_young_loss(flat, flat_target, mapping, reduction="none")
    got = px.fenchel_young_loss(z, target, mapping, reduction="none")
    assert got.shape == (batch, *rest)
    assert got.reshape(-1).equal(wanted)
    if batch and not rest:
        assert px.fenchel_young_loss(z[0], target[0], mapping).equal(wanted[0])


def test_stride_zero_gradients():
    z, target = problem()
    z.requires_grad_()
    loss = px.entmax_loss(z, target, reduction="none")
    (g,) = torch.autograd.grad(loss, z, torch.ones(()).double().expand(4))
    torch.testing.assert_close(g, px.entmax(z) - torch.eye(6).double()[target])


def test_per_item_alpha_in_any_layout():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 5, 3, generator=generator)
    target = torch.randint(0, 5, (2, 3), generator=generator)
    alpha = 1 + torch.rand(2, 1, 3, generator=generator)
    loss = px.entmax_loss(z, target, alpha, reduction="none")
    for i in range(2):
        for j in range(3):
            one = px.entmax_loss(z[i, :, j], target[i, j], alpha[i, 0, j].item())
            torch.testing.assert_close(loss[i, j], one)


def test_threads_do_not_change_the_result():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(200, 1000, generator=generator).requires_grad_()
    target = torch.randint(0, 1000, (200,), generator=generator)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            loss = px.entmax_loss(z, target, reduction="none")
            results.append((loss, *torch.autograd.grad(loss.sum(), z)))
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(*results, strict=True))
