"""Thresholds, supports and live blocks by the kernels, against the plain path in float64."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE

import parsimax as px
from parsimax.attention import flash, measuring
from parsimax.attention.visibility import Band
from parsimax.kernels.gpu.flash import problem as problems

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SMALL = problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
FIELDS = ("support", "visible", "live_blocks", "visible_blocks")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(problems, "tiles_for", lambda q, v: SMALL)


def inputs(dtype=torch.float32, *, items=1, heads=2, groups=1, queries=18, keys=69, size=8):
    generator = torch.Generator().manual_seed(3)

    def draw(length, many):
        x = torch.randn(items, length, many, size, generator=generator)
        return x.to(DEVICE, dtype).transpose(1, 2)

    return draw(queries, heads) * 4, draw(keys, heads // groups)


def compare(q, k, alpha, band=None, *, seen=None, lengths=None, block=16, scale=0.5):
    band = band or Band()
    found = flash.count(q, k, seen, band, lengths, alpha, scale, block)
    wide = alpha.double() if isinstance(alpha, torch.Tensor) else alpha
    window = None if band.left is None else (band.left, -1 if band.right is None else band.right)
    expected = px.attention.statistics(
        q.double(), k.double(), seen, band.right == 0, scale, True, alpha=wide,
        causal_align="bottom-right" if band.offset else "top-left", window=window,
        key_lengths=lengths, block_size=block,
    )  # fmt: skip
    for name in FIELDS:
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert mine.dtype == torch.int64
        assert torch.equal(mine, theirs), name
    for name in ("tau", "threshold"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5)
    return found


def test_each_alpha():
    q, k = inputs(heads=7, groups=7, keys=45)
    alpha = torch.tensor([1.0, 1.02, 1.3, 1.5, 1.8, 2.0, 2.5], device=DEVICE)
    found = compare(q, k, alpha, Band(right=0, offset=27))
    assert (found.support[:, 0] == found.visible[:, 0]).all()  # softmax
    assert 0 < found.live_blocks.sum() < found.visible_blocks.sum()


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
def test_a_number(alpha):
    compare(*inputs(heads=1), alpha, Band(9, 3), block=32)


def test_masks_lengths_and_queries_that_see_nothing():
    q, k = inputs(items=2)
    lengths = torch.tensor([69, 20], device=DEVICE)
    seen = torch.rand(2, 1, 18, 69, generator=torch.Generator().manual_seed(0)) > 0.5
    seen[0, :, 3] = False
    seen = seen.to(DEVICE)
    found = compare(q, k, 1.5, seen=seen, lengths=lengths, block=48)
    assert (found.tau[0, :, 3] == torch.inf).all()
    added = torch.where(seen, 0.3 * torch.arange(69, device=DEVICE) % 1, -torch.inf)
    compare(q, k, 1.5, seen=added, lengths=lengths)


def test_halves_and_any_scale():
    q, k = inputs(torch.bfloat16)
    compare(q, k, 1.5, scale=-0.3)


def test_weights_too_small_for_float32_count():
    q, k = inputs(heads=1, queries=3)
    found = compare(q * 10, k, 1.0, scale=0.5)
    assert torch.equal(found.support, found.visible)
    weights = px.entmax(5 * q @ k.mT, 1.0)
    assert (weights == 0).any()


def test_what_is_not_a_number_shows_in_its_row():
    q, k = inputs(heads=1)
    q[0, 0, 4, 0] = float("nan")
    found = flash.count(q, k, None, Band(), None, 1.5, 0.5, 16)
    assert found.tau.isnan().nonzero().tolist() == [[0, 0, 4]]
    assert found.support[0, 0, 4] == 0
    assert found.visible[0, 0, 4] == 69


def test_the_front_door_takes_them(monkeypatch):
    calls = []
    taken = flash.count
    q, k = inputs(heads=2, groups=2)
    options = {"is_causal": True, "enable_gqa": True, "causal_align": "bottom-right"}
    expected = px.attention.statistics(q.double(), k.double(), **options, block_size=32)
    monkeypatch.setattr(flash, "count", lambda *x: calls.append(x) or taken(*x))
    if not ON_GPU:
        monkeypatch.setattr(measuring, "kernel_alpha", lambda q, k, v, alpha, *_: alpha)
    found = px.attention.statistics(q, k, **options, block_size=32)
    assert found.block_size == 32
    assert torch.equal(found.support, expected.support)
    assert torch.equal(found.live_blocks, expected.live_blocks)
    torch.testing.assert_close(found.live_fraction, expected.live_fraction)
    torch.testing.assert_close(found.density, expected.density)
    px.attention.statistics(q, k, **options, block_size=5)  # no kernel has such blocks
    assert len(calls) == 1


def test_compiled_without_a_break(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(measuring, "kernel_alpha", lambda q, k, v, alpha, *_: alpha)
    torch._dynamo.reset()
    q, k = inputs(items=2, heads=2, groups=2)
    alpha = torch.tensor([1.3, 1.6], device=DEVICE)

    def function(q, k, alpha):
        found = px.attention.statistics(
            q, k, is_causal=True, enable_gqa=True, alpha=alpha, block_size=32
        )
        numbers = [getattr(found, name) for name in ("tau", "threshold", *FIELDS)]
        return *numbers, found.live_fraction

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(compiled(q, k, alpha), function(q, k, alpha), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [40, 128, 256])
def test_many_keys(dtype, size):
    q, k = inputs(dtype, items=2, heads=8, groups=8, queries=301, keys=1517, size=size)
    lengths = torch.tensor([1517, 400], device=DEVICE)
    alpha = torch.linspace(1.1, 2.0, 8, device=DEVICE)
    scale = 0.7 / size**0.5
    found = flash.count(q, k, None, Band(right=0, offset=900), lengths, alpha, scale, 64)
    scores = scale * q.double() @ k.double().repeat_interleave(8, 1).mT
    ahead = torch.arange(1517, device=DEVICE) - torch.arange(301, device=DEVICE)[:, None] - 900
    seen = (ahead <= 0) & (torch.arange(1517, device=DEVICE) < lengths[:, None, None, None])
    p = px.entmax(scores, alpha.double().view(8, 1, 1), mask=seen.expand(scores.shape))
    # float32 cannot tell on which side of the threshold the nearest scores lie
    assert (found.support - (p > 0).sum(-1)).abs().max() <= 1
    assert torch.equal(found.visible, seen.expand(scores.shape).sum(-1))
