"""Bool masks of keys alone, which attention by blocks reads as few numbers and bits."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE

import parsimax as px
from parsimax.attention import flash
from parsimax.attention.visibility import Band
from parsimax.kernels.gpu.flash import problem as problems
from parsimax.kernels.gpu.flash import tables

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SMALL = problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
KEYS = 53
# the same operations on the same numbers; a compiler may still fuse them otherwise
SAME = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2} if ON_GPU else {}
EVERYTHING, CAUSAL = Band(), Band(right=0, offset=KEYS - 5)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(problems, "tiles_for", lambda q, v: SMALL)


def inputs(dtype=torch.float32, *, items=3, queries=5, keys=KEYS):
    """Two heads that share those of the keys."""
    generator = torch.Generator().manual_seed(keys)
    sizes = ((2, queries, 8), (1, keys, 8), (1, keys, 12))
    return [torch.randn(items, *size, generator=generator).to(DEVICE, dtype) * 2 for size in sizes]


def padding(keys=KEYS):
    """(3, 1, 1, keys): padding on the right, on the left with a gap behind, and an empty item."""
    seen = torch.ones(3, 1, 1, keys, dtype=torch.bool)
    seen[0, ..., 20:] = False
    seen[1, ..., :17] = False
    seen[1, ..., 35:40] = False
    seen[2] = False
    return seen.to(DEVICE)


def gradients(q, k, v, seen, band=EVERYTHING, lengths=None, alpha=1.5):
    """The result and all gradients."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    learned = [alpha.detach().requires_grad_()] if isinstance(alpha, torch.Tensor) else []
    out = flash.flash_attention(*leaves, seen, band, lengths, *(learned or [alpha]), 0.5)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves + learned)]


def same(made, expected):
    for mine, theirs in zip(made, expected, strict=True):
        tolerance = SAME.get(made[0].dtype, 0.0)
        assert (mine.double() - theirs.double()).norm() <= tolerance * theirs.double().norm()


def problem(seen, lengths=None):
    q, k, v = inputs(items=seen.shape[0], keys=seen.shape[3])
    whole = seen.expand(*q.shape[:3], k.shape[2])
    return problems.Problem(q, k, v, whole, 1.5, 0.5, lengths=lengths, tiles=SMALL)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("many", [32, 4096])
def test_spans_are_those_of_a_loop(share, many, monkeypatch):
    monkeypatch.setattr(tables, "_MASK_AT_ONCE", many)
    seen = torch.rand(4, 1, 1, 100, generator=torch.Generator().manual_seed(0)) >= share
    lengths = torch.tensor([100, 64, 63, 0], dtype=torch.int32)
    table = tables.spans(problem(seen.to(DEVICE), lengths.to(DEVICE)))
    numbers, bits = table[:16].view(4, 4).tolist(), table[16:].view(4, 4).tolist()
    for item, (end, begin, run_start, run_stop) in enumerate(numbers):
        visible = [bool(x) and i < lengths[item] for i, x in enumerate(seen[item, 0, 0])]
        text = "".join("x" if x else " " for x in visible)
        assert (begin, end) == (len(text) - len(text.lstrip()), len(text.rstrip())) or not end
        assert run_stop - run_start == max(map(len, text.split()), default=0)
        assert all(visible[run_start:run_stop])
        read = [bits[item][i // 32] >> (i % 32) & 1 for i in range(128)]
        assert read == [int(x) for x in visible] + [0] * 28


def test_only_masks_that_are_the_same_for_heads_and_queries_are_read_so():
    seen = padding()
    assert tables.spans(problem(seen)) is not None
    assert tables.spans(problem(seen[:1].expand(3, -1, -1, -1))) is not None
    assert tables.spans(problem(seen.expand(3, 2, 1, KEYS).contiguous())) is None
    assert tables.spans(problem(seen.expand(3, 1, 5, KEYS).contiguous())) is None
    assert tables.spans(problem(seen.float())) is None


@pytest.mark.parametrize(
    ("band", "lengths", "alpha"),
    [
        (EVERYTHING, None, 1.5),
        (CAUSAL, None, (1.3, 2.4)),
        (Band(30, 2, 40), (18, 53, 50), 1.3),
    ],
    ids=["alone", "causal", "window and lengths"],
)
def test_the_same_mask_written_down_for_all_queries_gives_the_same_bits(band, lengths, alpha):
    q, k, v = inputs()
    alpha = torch.tensor(alpha, device=DEVICE) if isinstance(alpha, tuple) else alpha
    lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    seen = padding()
    dense = seen.expand(3, 2, 5, KEYS).contiguous()
    made = [gradients(q, k, v, mask, band, lengths, alpha) for mask in (seen, dense)]
    same(*made)
    for x in made[0][:4]:
        assert x[:2].any()
        assert not x[2].any()


def test_all_blocks_are_whole_but_for_the_mask():
    """Keys and values are then read without asking where they end."""
    q, k, v = inputs(queries=16, keys=64)
    apart = torch.stack([padding(64)] * 2, -1)[..., 1]  # bytes of a mask do not lie side by side
    found = gradients(q, k, v, apart)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = px.attention(*wide, padding(64), scale=0.5, enable_gqa=True)
    expected = [out, *torch.autograd.grad(out.square().sum(), wide)]
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


def test_counts():
    q, k, _ = inputs()
    found = flash.count(q, k, padding(), CAUSAL, None, 1.5, 0.5, 16)
    expected = px.attention.statistics(
        q.double(), k.double(), padding(), True, 0.5, True, causal_align="bottom-right",
        block_size=16,
    )  # fmt: skip
    for name in ("support", "visible", "live_blocks", "visible_blocks"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


# --- on a GPU alone -------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("keys", [1024, 1111])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_larger_problems_with_the_mask_written_down(dtype, keys, size):
    q, k, v = (torch.randn(3, 4, keys, size, device=DEVICE, dtype=dtype) for _ in "qkv")
    seen = padding(keys)
    seen[0, ..., 20:] = True
    seen[0, ..., 900:] = False
    dense = seen.expand(3, 4, keys, keys).contiguous()
    for alpha in (1.5, torch.tensor([1.0, 1.3, 2.0, 2.4], device=DEVICE)):
        for band in (EVERYTHING, Band(right=0), Band(200, 100)):
            same(*(gradients(q, k, v, mask, band, None, alpha) for mask in (seen, dense)))


@gpu
def test_a_graph_follows_a_new_mask_and_nothing_waits():
    q, k, v = (torch.randn(3, 4, 600, 64, device=DEVICE).bfloat16() for _ in "qkv")
    seen = padding(600)
    gradients(q, k, v, seen)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(q, k, v, seen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(q, k, v, seen)
    seen.copy_(seen.roll(1, 0))
    graph.replay()
    for mine, theirs in zip(captured, gradients(q, k, v, seen), strict=True):
        assert torch.equal(mine, theirs)


@gpu
def test_compiled_in_training():
    torch._dynamo.reset()
    q, k, v = (torch.randn(3, 4, 300, 64, device=DEVICE).bfloat16() for _ in "qkv")
    seen = padding(300)

    def step(q, k, v):
        return px.attention(q, k, v, seen)

    def run(function):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out.float().square().sum(), leaves)]

    for mine, theirs in zip(run(torch.compile(step, fullgraph=True)), run(step), strict=True):
        assert torch.equal(mine, theirs)
