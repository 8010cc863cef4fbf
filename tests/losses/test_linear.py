"""linear_entmax_loss is entmax_loss of a linear layer, in less memory."""

import itertools
import subprocess
import sys

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.losses import oracle
from torch.func import grad, jacfwd, jacrev, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import parsimax as px
from parsimax.losses import linear_chunks
from parsimax.losses.linear_products import Problem, Wanted

WORDS, SIZE = 50, 5


@pytest.fixture
def small_chunks(monkeypatch):
    """Six rows a chunk, so that small problems have several, the last one shorter."""
    monkeypatch.setattr(linear_chunks, "_CHUNK", 6 * WORDS)
    monkeypatch.setattr(linear_chunks, "_LEAST_ROWS", 2)


def layer(items=(4, 5), scale=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*items, SIZE, generator=generator, dtype=torch.float64)
    weight = scale * torch.randn(WORDS, SIZE, generator=generator, dtype=torch.float64)
    bias = torch.randn(WORDS, generator=generator, dtype=torch.float64)
    target = torch.randint(0, WORDS, items, generator=generator)
    return *(x.to(dtype).requires_grad_() for x in (hidden, weight, bias)), target


def plain(hidden, weight, target, bias=None, alpha=1.5, class_weight=None, **options):
    z = F.linear(hidden, weight, bias).movedim(-1, 1 if hidden.ndim > 1 else 0)
    if isinstance(alpha, torch.Tensor) and alpha.ndim > 1:
        alpha = alpha.movedim(-1, 1)
    return px.entmax_loss(z, target, alpha, class_weight, **options)


def assert_same(ours, theirs, inputs, **tolerance):
    torch.testing.assert_close(ours, theirs, **tolerance)
    g = torch.linspace(0.5, 2, max(1, theirs.numel())).to(theirs).reshape(theirs.shape)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, g), torch.autograd.grad(theirs, inputs, g), **tolerance
    )


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
# nearly equal logits have a large support, far ones a small one: all three ways are taken
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
def test_equals_the_plain_path(alpha, scale, backend):
    hidden, weight, bias, target = layer(scale=scale)
    target[0, 2], target[1] = -100, -100
    class_weight = torch.linspace(0.2, 2, WORDS, dtype=torch.float64)
    for smoothing, reduction, weighted, biased in itertools.product(
        (0.0, 0.1), ("mean", "sum", "none"), (False, True), (False, True)
    ):
        options = {
            "alpha": alpha,
            "bias": bias if biased else None,
            "class_weight": class_weight if weighted else None,
            "reduction": reduction,
            "label_smoothing": smoothing,
            "backend": backend,
        }
        inputs = (hidden, weight, bias) if biased else (hidden, weight)
        ours = px.linear_entmax_loss(hidden, weight, target, **options)
        assert_same(ours, plain(hidden, weight, target, **options), inputs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(), (4, 5, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.05, 5.0])
def test_learnable_alpha(shape, reduction, scale):
    hidden, weight, bias, target = layer(scale=scale)
    target[2, 1:3] = -100
    generator = torch.Generator().manual_seed(0)
    alpha = 1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    alpha.requires_grad_()
    options = {"bias": bias, "alpha": alpha, "reduction": reduction, "label_smoothing": 0.1}
    ours = px.linear_entmax_loss(hidden, weight, target, **options)
    assert_same(ours, plain(hidden, weight, target, **options), (hidden, weight, bias, alpha))


def test_value_against_the_definition():
    hidden, weight, bias, target = layer((7,))
    ours = px.linear_entmax_loss(hidden, weight, target, bias, reduction="none")
    z = F.linear(hidden, weight, bias).detach().numpy()
    for row, t, loss in zip(z, target, ours, strict=True):
        assert loss.item() == pytest.approx(oracle.entmax_class_losses(row, 1.5)[t], abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.usefixtures("small_chunks")
def test_precisions(alpha, dtype):
    hidden, weight, bias, target = layer(dtype=dtype)
    ours = px.linear_entmax_loss(hidden, weight, target, bias, alpha)
    assert ours.dtype == dtype
    assert_near(ours, (hidden, weight, bias), target, torch.finfo(dtype).eps, alpha=alpha)


def assert_near(loss, inputs, target, eps, **options):
    """Loss and gradients are what float64 makes of the same numbers, up to a few roundings."""
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = plain(exact[0], exact[1], target, exact[2], **options)
    torch.testing.assert_close(loss.double(), wanted, rtol=4 * eps, atol=0)
    grads = torch.autograd.grad(loss, inputs), torch.autograd.grad(wanted, exact)
    for got, want in zip(*grads, strict=True):
        assert (got.double() - want).norm() <= 4 * eps * want.norm()


@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("compiled", [False, True])
def test_small_gradients_survive_float16(compiled, reduction, backend):
    """With the upstream factor of a loss scaler, words off target keep their gradients of 1e-7."""
    tokens, words, upstream = 2048, 4096, 4096.0
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 4, generator=generator).half().requires_grad_()
    weight = (0.3 * torch.randn(words, 4, generator=generator)).half().requires_grad_()
    bias = torch.zeros(words).half().requires_grad_()
    target = torch.randint(0, 64, (tokens,), generator=generator)
    inputs, off_target = (hidden, weight, bias), slice(64, None)

    def loss(hidden, weight, bias):
        value = px.linear_entmax_loss(
            hidden, weight, target, bias, 1.0, reduction=reduction, backend=backend
        )
        return (value.float() if reduction == "mean" else value.float() / tokens).sum()

    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = torch.autograd.grad(plain(*exact[:2], target, exact[2], 1.0), exact)
    function = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    got = torch.autograd.grad(upstream * function(*inputs), inputs)
    for ours, theirs in zip(got, wanted, strict=True):
        part = slice(None) if ours is got[0] else off_target
        wrong = ours[part].double() / upstream - theirs[part]
        assert wrong.norm() <= 4e-3 * theirs[part].norm()
        assert ours[part].ne(0).double().mean() > 0.99


def test_large_sums_do_not_overflow_float16():
    """The sum over a chunk's rows is out of float16's reach, and the mean is not."""
    tokens = 40_000
    hidden = torch.full((tokens, 1), 100.0).half()
    weight = torch.zeros(2, 1).half().requires_grad_()
    loss = px.linear_entmax_loss(hidden, weight, torch.zeros(tokens, dtype=torch.int64), alpha=1.0)
    (g,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(g, torch.tensor([[-50.0], [50.0]]).half(), rtol=1e-3, atol=0)


def test_half_precision_gradients_are_added_up_in_float32(monkeypatch):
    """1024 chunks add 2^-10 each of the result: in bfloat16 the sum would stop growing early."""
    monkeypatch.setattr(linear_chunks, "_CHUNK", 4 * 3)
    monkeypatch.setattr(linear_chunks, "_LEAST_ROWS", 1)
    hidden = torch.ones(4096, 1, dtype=torch.bfloat16)
    weight = torch.zeros(3, 1, dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(4096, dtype=torch.int64)
    loss = px.linear_entmax_loss(hidden, weight, target, alpha=2.0)
    (g,) = torch.autograd.grad(loss, weight)
    wanted = torch.tensor([[-2 / 3], [1 / 3], [1 / 3]])
    torch.testing.assert_close(g.float(), wanted, rtol=8e-3, atol=0)


@pytest.mark.usefixtures("small_chunks")
def test_a_backward_under_autocast_stays_precise():
    hidden, weight, bias, target = layer(dtype=torch.float32)
    grads = []
    for enabled in (False, True):
        loss = px.linear_entmax_loss(
            hidden, weight, target, bias, 1.0, reduction="none", label_smoothing=0.1
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            grads.append(torch.autograd.grad(loss.sum(), (hidden, weight, bias)))
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("scale", "total", "kept", "dense", "again"),
    [
        (5.0, True, True, False, False),
        (5.0, False, True, False, False),
        (0.01, True, False, True, False),
        (0.01, False, False, False, True),
    ],
)
def test_what_happens_to_a_chunk(scale, total, kept, dense, again):
    """A small support is kept; a large one gives gradients at once, or logits again later."""
    hidden, weight, _, target = layer((20,), scale=scale)
    ones = torch.ones(20, dtype=torch.float64)
    problem = Problem(
        hidden.detach(), weight.detach(), None, 1.5, target, ones, ones, ones, None, False, "numba"
    )
    outcome = linear_chunks.solve_chunks(problem, Wanted(True, True, False, False), total, True)
    assert (outcome.kept.support is not None) == kept
    assert (outcome.kept.dense is not None) == dense
    assert bool(outcome.kept.again) == again


def test_autocast():
    hidden, weight, bias, target = layer(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = px.linear_entmax_loss(hidden, weight, target, bias, label_smoothing=0.1)
        theirs = plain(hidden, weight, target, bias, label_smoothing=0.1)
    assert ours.dtype == theirs.dtype == torch.float32
    # the logits are bfloat16 in both, so the losses differ by float32 rounding only
    torch.testing.assert_close(ours, theirs)
    lifted = plain(hidden, weight, target, bias, label_smoothing=0.1)
    assert not torch.allclose(ours, lifted, rtol=1e-6, atol=0)
    inputs = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight, bias)]
    grads = torch.autograd.grad(ours, (hidden, weight, bias))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wanted = plain(exact[0], exact[1], target, exact[2], label_smoothing=0.1)
    for got, want in zip(grads, torch.autograd.grad(wanted, exact), strict=True):
        assert (got.double() - want).norm() <= 4 * torch.finfo(torch.bfloat16).eps * want.norm()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_all_derivatives(reduction):
    hidden, weight, bias, target = layer((3,))
    inputs = (hidden, weight[:7].detach().requires_grad_(), bias[:7].detach().requires_grad_())
    target = target % 7
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)

    def loss(hidden, weight, bias, alpha):
        return px.linear_entmax_loss(
            hidden, weight, target, bias, alpha, reduction=reduction, label_smoothing=0.1
        )

    checks = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(loss, (*inputs, alpha), check_forward_ad=True, **checks)
    assert torch.autograd.gradgradcheck(loss, (*inputs, alpha), **checks)
    forward, backward = (f(loss, (0, 1, 2, 3))(*inputs, alpha) for f in (jacfwd, jacrev))
    torch.testing.assert_close(forward, backward)


def test_vmap():
    hidden, weight, _, target = layer((6,))
    per_item = vmap(grad(lambda h, t: px.linear_entmax_loss(h, weight.detach(), t)))(hidden, target)
    loss = px.linear_entmax_loss(hidden, weight, target, reduction="sum")
    torch.testing.assert_close(per_item, torch.autograd.grad(loss, hidden)[0])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("reduction", "backend"), [("mean", "inductor"), ("none", "aot_eager")])
def test_compile_in_training(reduction, backend):
    from tests.losses.test_transforms import COMPILER

    hidden, weight, bias, target = layer(scale=2.0)
    target[1, 2] = -100
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)

    def loss(hidden, weight, bias, alpha):
        value = px.linear_entmax_loss(
            torch.tanh(hidden), weight, target, bias, alpha, None, -100, reduction, 0.1
        )
        return 1.5 * value

    backend = COMPILER if backend == "inductor" else backend
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    inputs = (hidden, weight, bias, alpha)
    assert_same(compiled(*inputs), loss(*inputs), inputs)


@pytest.mark.usefixtures("small_chunks")
def test_gradients_only_where_wanted_and_as_often_as_wanted():
    for alpha, reduction in itertools.product((1.0, 1.5), ("mean", "none")):
        hidden, weight, bias, target = layer()
        frozen = weight.detach()
        loss = px.linear_entmax_loss(hidden, frozen, target, bias, alpha, reduction=reduction).sum()
        first = torch.autograd.grad(loss, (hidden, bias), retain_graph=True)
        second = torch.autograd.grad(2 * loss, (hidden, bias))
        torch.testing.assert_close([2 * g for g in first], list(second))
        with torch.no_grad():
            assert not px.linear_entmax_loss(hidden, weight, target).requires_grad


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("backend", AVAILABLE)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [0.3, 8.0])  # large supports, small supports
def test_odd_rows(backend, smoothing, scale):
    hidden, weight, bias, target = layer((12,), scale, torch.float32)
    options = {"label_smoothing": smoothing, "backend": backend}
    ignored = torch.full((12,), -100)
    nothing = px.linear_entmax_loss(hidden, weight, ignored, bias, **options)
    assert nothing == 0
    assert all(g.eq(0).all() for g in torch.autograd.grad(nothing, (hidden, weight, bias)))
    empty = px.linear_entmax_loss(hidden[:0], weight, target[:0], reduction="none", **options)
    assert empty.shape == (0,)
    one = px.linear_entmax_loss(hidden[0], weight, target[0], bias, **options)
    torch.testing.assert_close(one, plain(hidden[0], weight, target[0], bias, **options))

    masked = bias.detach().clone()
    masked[target[0]] = -torch.inf
    masked.requires_grad_()
    ours = px.linear_entmax_loss(hidden, weight, target, masked, reduction="none", **options)
    theirs = plain(hidden, weight, target, masked, reduction="none", **options)
    assert ours[0] == torch.inf
    assert_same(ours, theirs, (hidden, weight, masked))
    options["class_weight"] = torch.ones(WORDS).index_fill(0, target[:1], 0.0)
    ours = px.linear_entmax_loss(hidden, weight, target, masked, reduction="none", **options)
    theirs = plain(hidden, weight, target, masked, reduction="none", **options)
    assert ours.isfinite().all()
    assert_same(ours, theirs, (hidden, weight, masked))
    del options["class_weight"]

    broken = hidden.detach().clone()
    broken[3], broken[5] = torch.nan, torch.nan
    broken.requires_grad_()
    skipped = target.clone()
    skipped[5] = -100
    loss = px.linear_entmax_loss(broken, weight, skipped, reduction="none", **options)
    assert loss.isnan().nonzero().tolist() == [[3]]
    (g,) = torch.autograd.grad(loss.sum(), broken)
    assert g.isnan().any(-1).nonzero().tolist() == [[3]]


def test_strided_inputs_and_threads():
    hidden, weight, _, target = layer((40,), dtype=torch.float32)
    tied = weight.detach().t().contiguous().t().requires_grad_()
    sliced = torch.cat([hidden, hidden], -1).detach()[:, :SIZE].requires_grad_()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        ours = px.linear_entmax_loss(sliced, tied, target)
        g = torch.autograd.grad(ours, (sliced, tied))
    finally:
        torch.set_num_threads(before)
    theirs = px.linear_entmax_loss(hidden, weight, target)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(g, torch.autograd.grad(theirs, (hidden, weight)))


MEASURE = """
import sys, torch
import torch.nn.functional as F
import parsimax as px
from pathlib import Path

def run(tokens, size, words):
    hidden = torch.randn(tokens, size, requires_grad=True)
    weight = (torch.randn(words, size) / size**0.5).requires_grad_()
    target = torch.randint(0, words, (tokens,))
    start = peak(reset=True)
    if sys.argv[1] == "fused":
        loss = px.linear_entmax_loss(hidden, weight, target, alpha=float(sys.argv[2]))
    else:
        loss = px.entmax_loss(F.linear(hidden, weight), target, alpha=float(sys.argv[2]))
    loss.backward()
    return peak() - start

def peak(reset=False):
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM"))

torch.manual_seed(0)
torch.set_num_threads(1)
run(70, 8, 100)
print(run(1024, 64, 32000))
"""


def kilobytes(which, alpha):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, which, str(alpha)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_peak_memory_is_below_a_quarter():
    logits = 1024 * 32000 * 4 // 1024
    baseline = kilobytes("plain", 1.5)
    assert baseline > 1.9 * logits  # the measurement sees p and the gradient
    for alpha in (1.5, 1.0):
        assert kilobytes("fused", alpha) < baseline / 4


def test_everything_is_on_one_device():
    hidden, weight, target = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match="weight must be on the device of hidden, cpu, got one"):
        px.linear_entmax_loss(hidden, weight.to("meta"), target)
    with pytest.raises(ValueError, match="bias must be on the device"):
        px.linear_entmax_loss(hidden, weight, target, torch.zeros(5, device="meta"))
    with pytest.raises(ValueError, match="class_weight must be on the device"):
        px.linear_entmax_loss(hidden, weight, target, class_weight=torch.ones(5, device="meta"))


@pytest.mark.parametrize("backend", AVAILABLE)
def test_a_layer_without_inputs(backend):
    hidden, weight = torch.zeros(3, 0, requires_grad=True), torch.zeros(5, 0, requires_grad=True)
    loss = px.linear_entmax_loss(hidden, weight, torch.tensor([0, 1, 2]), backend=backend)
    expected = px.entmax_loss(torch.zeros(3, 5), torch.tensor([0, 1, 2]))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert weight.grad.shape == (5, 0)


def test_a_checkpoint_gives_what_was_saved_only_once():
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, 4, generator=generator).requires_grad_() for n in (6, 9)]
    target = torch.arange(6)

    def loss(hidden, weight):
        return px.linear_entmax_loss(hidden, weight, target)

    kept = torch.autograd.grad(checkpoint(loss, *leaves, use_reentrant=False), leaves)
    for found, right in zip(kept, torch.autograd.grad(loss(*leaves), leaves), strict=True):
        assert torch.equal(found, right)
