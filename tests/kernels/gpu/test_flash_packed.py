"""Packed sequences by the kernels that skip blocks, against each sequence alone in float64."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE

import parsimax as px
from parsimax.attention import flash, varlen
from parsimax.attention.visibility import Band
from parsimax.kernels.gpu.flash import problem as problems

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SMALL = problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# a sequence of several blocks, empty ones, one of a query without keys, one of keys alone
QUERIES, KEYS = (18, 0, 3, 0, 5, 1), (37, 0, 0, 4, 3, 17)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(problems, "tiles_for", lambda q, v: SMALL)


def starts(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, dtype)


def inputs(dtype=torch.float32, queries=QUERIES, keys=KEYS, *, heads=2, groups=1, size=8, ev=8):
    generator = torch.Generator().manual_seed(size)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    q = draw(sum(queries), heads, size) * 2
    k, v = (draw(sum(keys), heads // groups, width) for width in (size, ev))
    return q, k, v


def alone(q, k, v, queries, keys, alpha, **arguments):
    """Each sequence by the plain path."""
    parts = (x.split(list(n)) for x, n in ((q, queries), (k, keys), (v, keys)))
    found = [
        px.attention(*(x.transpose(0, 1) for x in part), alpha=alpha, **arguments).transpose(0, 1)
        for part in zip(*parts, strict=True)
    ]
    return torch.cat(found)


def compare(q, k, v, alpha=1.5, *, queries=QUERIES, keys=KEYS, band=None, bottom=False):
    """Result and all gradients beside those of the sequences alone in float64."""
    band = band or Band()
    longest = (max(queries), max(keys))

    def run(function, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        a = alpha
        if isinstance(alpha, torch.Tensor):
            a = alpha.to(DEVICE, torch.promote_types(dtype, torch.float32)).requires_grad_()
            leaves.append(a)
        out = function(*leaves[:3], a)
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(out.shape, generator=generator).to(DEVICE, q.dtype).to(dtype)
        return [x.double() for x in (out.detach(), *torch.autograd.grad(out, leaves, g))]

    window = None if band.left is None else (band.left, -1 if band.right is None else band.right)
    fused = run(
        lambda q, k, v, a: flash.packed_attention(
            q, k, v, (starts(queries), starts(keys)), longest, band, bottom, a, 0.5
        ),
        q.dtype,
    )
    plain = run(
        lambda q, k, v, a: alone(
            q, k, v, queries, keys, a, is_causal=band.right == 0, window=window, scale=0.5,
            enable_gqa=True, causal_align="bottom-right" if bottom else "top-left",
        ),
        torch.float64,
    )  # fmt: skip
    for mine, theirs in zip(fused, plain, strict=True):
        off = (mine - theirs).norm() / theirs.norm()
        assert off <= TOLERANCE[q.dtype], off
    return fused


def test_sequences_of_any_length_and_heads_that_share_keys():
    out, gq, gk, _ = compare(*inputs(heads=2, groups=2, size=12, ev=20))
    assert out.is_contiguous()
    assert not out[18:21].any()  # they have no keys
    assert not gq[18:21].any()
    assert not gk[37:41].any()  # nobody asks for these


@pytest.mark.parametrize("bottom", [False, True], ids=["top left", "bottom right"])
@pytest.mark.parametrize("band", [Band(right=0), Band(4, 2)], ids=["causal", "window"])
def test_bands(band, bottom):
    compare(*inputs(heads=1), band=band, bottom=bottom)


def test_an_alpha_for_each_head_with_its_gradient():
    lengths = {"queries": (5, 0, 9), "keys": (17, 2, 9)}
    alpha = torch.tensor([1.0, 1.3, 2.0, 2.5])
    compare(*inputs(heads=4, **lengths), alpha, band=Band(right=0), **lengths)


def test_halves():
    compare(*inputs(torch.bfloat16), 1.3, band=Band(right=0), bottom=True)


def test_tensors_that_lie_otherwise():
    def other(x):
        return torch.stack([x, x], -1).transpose(0, 1).contiguous().transpose(0, 1)[..., 1]

    lengths = {"queries": (5, 19), "keys": (3, 21)}
    q, k, v = (other(x) for x in inputs(**lengths))
    assert q.stride(-1) == 2
    compare(q, k, v, **lengths)


WRONG = {
    "begins late": ([1, 5, 23], [0, 5, 40]),
    "goes back": ([0, 23, 12, 23], [0, 5, 6, 40]),
    "ends early": ([0, 5, 22], [0, 5, 40]),
    "ends late": ([0, 5, 23], [0, 5, 41]),
    "longer than it may be": ([0, 5, 23], [0, 2, 40]),
}


@pytest.mark.parametrize("case", WRONG)
def test_starts_that_cannot_be_give_nan_and_touch_nothing_else(case):
    q, k, v = inputs(queries=(23,), keys=(40,), heads=1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    places = tuple(torch.tensor(x, device=DEVICE) for x in WRONG[case])
    out = flash.packed_attention(*leaves, places, (20, 36), Band(), False, 1.5, 0.5)
    assert out.isnan().all()
    gq, gk, gv = torch.autograd.grad(out.sum(), leaves)
    assert gq.isnan().all()
    assert not gk.any()
    assert not gv.any()


@pytest.mark.parametrize("how", ["strided", torch.uint8, torch.int8])
def test_starts_of_any_integers_that_lie_anyhow(how):
    queries = keys = (100, 7, 20) if how == torch.int8 else (140, 60, 20)
    q, k, v = inputs(queries=queries, keys=keys, heads=1)
    right = alone(q, k, v, queries, keys, 1.5, scale=0.5)
    places = starts(queries)
    if how == "strided":
        places = torch.stack([places, places + 1], 1)[:, 0]
    else:
        places = places.to(how)
    longest = (max(queries),) * 2
    found = flash.packed_attention(q, k, v, (places, places), longest, Band(), False, 1.5, 0.5)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_only_blocks_that_may_exist_take_memory():
    queries = (1000, *(1,) * 200)
    q = torch.empty(1, 2, sum(queries), 8)
    packed = problems.Packed(starts(queries), starts(queries), 1000, 1000, False)
    problem = problems.Problem(q, q, q, None, 1.5, 1.0, tiles=SMALL, packed=packed)
    needed = sum(-(-n // 32) * 2 for n in queries)
    assert needed <= problem.row_blocks < 1.1 * needed
    assert problem.key_blocks == 63


def test_gradients_of_gradients():
    queries, keys = (3, 2), (5, 4)
    q, k, v = (x.requires_grad_() for x in inputs(queries=queries, keys=keys))

    def second(function):
        (gq,) = torch.autograd.grad(function(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(gq.square().sum(), (q, k, v))

    places = starts(queries), starts(keys)
    mine = second(
        lambda *x: flash.packed_attention(*x, places, (3, 5), Band(right=0), True, 1.5, 0.5)
    )
    options = {"is_causal": True, "scale": 0.5, "causal_align": "bottom-right"}
    theirs = second(lambda *x: alone(*x, queries, keys, 1.5, **options))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# --- the front door; without a GPU it is told to take the kernels ----


@pytest.fixture
def front(monkeypatch):
    """Lets it take CPU tensors, for Triton's interpreter."""
    if not ON_GPU:
        monkeypatch.setattr(
            varlen, "kernel_alpha", lambda q, k, v, alpha, mapping, p: None if p else alpha
        )
    calls = []
    taken = flash.packed_attention

    def packed_attention(*arguments):
        calls.append(arguments[4])  # the longest
        return taken(*arguments)

    monkeypatch.setattr(flash, "packed_attention", packed_attention)
    return calls


def test_the_front_door_takes_them_and_finds_the_longest(front):
    queries, keys = (18, 0, 5), (20, 2, 3)
    q, k, v = inputs(queries=queries, keys=keys, groups=2)
    options = {"is_causal": True, "enable_gqa": True, "causal_align": "bottom-right"}
    places = starts(queries), starts(keys, torch.int64)
    found = px.attention.packed(q, k, v, *places, **options)
    wide = (x.double() for x in (q, k, v))
    expected = alone(*wide, queries, keys, 1.5, **options)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    given = px.attention.packed(q, k, v, *places, max_seqlen_q=30, max_seqlen_k=21, **options)
    assert torch.equal(given, found)
    assert front == [(18, 20), (30, 21)]
    px.attention.packed(q, k, v, *places, 0.5, **options)
    assert len(front) == 2  # dropout has no kernel


def test_the_front_door_reads_starts_that_it_is_not_told_about(front):
    q, k, v = inputs(queries=(5,), keys=(5,))
    with pytest.raises(ValueError, match="cu_seqlens_q must end with the total length of q, 5"):
        px.attention.packed(q, k, v, starts((4,)))
    assert px.attention.packed(q, k, v, starts((4,)), max_seqlen_q=5).isnan().all()
    with pytest.raises(ValueError, match="enable_gqa"):
        px.attention.packed(*inputs(queries=(5,), keys=(5,), heads=4, groups=2), starts((5,)))
    with pytest.raises(ValueError, match="causal_align"):
        px.attention.packed(q, k, v, starts((5,)), causal_align="middle")


def test_compiled_without_a_break(front):
    torch._dynamo.reset()
    queries = (7, 0, 5)
    q, k, v = inputs(queries=queries, keys=queries)
    alpha = torch.tensor([1.3, 1.6], device=DEVICE)

    def run(function):
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, alpha)]
        out = function(*leaves, starts(queries))
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    def step(q, k, v, alpha, starts):
        return px.attention.packed(q, k, v, starts, is_causal=True, alpha=alpha)

    backend = "inductor" if ON_GPU else "aot_eager"
    compiled = run(torch.compile(step, fullgraph=True, backend=backend))
    for mine, theirs in zip(compiled, run(step), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


# --- on a GPU alone ------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@gpu
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 64), (torch.float16, 40), (torch.bfloat16, 128), (torch.bfloat16, 256)],
)
def test_lengths_that_are_no_power_of_two(dtype, size):
    queries, keys = (301, 1, 0, 77, 640), (517, 3, 9, 77, 400)
    q, k, v = inputs(dtype, queries, keys, heads=8, groups=8, size=size, ev=size)
    q = q * (2 / size**0.5)
    compare(q, k, v, 1.5, queries=queries, keys=keys, band=Band(right=0), bottom=size > 64)
    alpha = torch.linspace(1.0, 2.0, 8)
    compare(q, k, v, alpha, queries=queries, keys=keys, band=Band(100, 30))


@gpu
def test_a_cuda_graph_follows_new_starts():
    total = 700
    q, k, v = inputs(torch.bfloat16, (total,), (total,), heads=4, size=64, ev=64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    places = starts((300, 100, 300))

    def step():
        out = px.attention.packed(*leaves, places, is_causal=True, max_seqlen_q=400)
        return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for lengths in ((300, 100, 300), (400, 7, 293)):
        places.copy_(starts(lengths))
        graph.replay()
        for mine, theirs in zip(made, step(), strict=True):
            assert torch.equal(mine, theirs)


@gpu
def test_many_short_sequences_beside_a_long_one_take_little_memory():
    lengths = (30_000, *(20,) * 1000)
    q, k, v = inputs(torch.bfloat16, lengths, lengths, heads=4, size=64, ev=64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    px.attention.packed(*leaves, starts(lengths), is_causal=True).sum().backward()
    # a map of (sequences, heads, 469, 469) blocks alone would take 880 MB, beside some 600 that
    # there are room for kernels to work in
    assert torch.cuda.max_memory_allocated() - before < 750e6
