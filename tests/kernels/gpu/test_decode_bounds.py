"""Decoding with bounds of the keys: what is known of them, and what then is not read."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from tests.kernels.gpu.test_decode import (
    BLOCK,
    LENGTHS,
    ON_GPU,
    SMALL,
    TOLERANCE,
    draw,
    expected,
    inputs,
    paged,
)

import parsimax as px
from parsimax.attention import flash_decoding, key_bounds
from parsimax.kernels.gpu.flash.decode import launch, plan, problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EVERYTHING = (None, None)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(launch, "_PLANS", {})
    if not ON_GPU:
        monkeypatch.setattr(problem, "tiles_for", lambda *_: SMALL)


def lengths_of(*lengths):
    return torch.tensor(lengths, device=DEVICE)


def blank(k, block):
    """Nothing is known."""
    shape = (*k.shape[:2], -(-k.shape[2] // block), k.shape[3])
    return px.attention.KeyBounds(
        torch.zeros(shape, dtype=k.dtype, device=DEVICE),
        torch.full(shape, torch.inf, dtype=k.dtype, device=DEVICE),
        torch.full(shape[:3], torch.inf, device=DEVICE),
        block,
    )


def decode(q, k, v, lengths, bounds, *, table=None, seen=None, alpha=1.5, reach=EVERYTHING):
    return flash_decoding.flash_decode(q, k, v, lengths, table, seen, reach, alpha, 0.5, bounds)


# --- what they say --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("page", [None, 16])
@pytest.mark.parametrize("new", [1, 7, 61])
def test_a_kernel_finds_what_operations_find(dtype, block, page, new):
    _, k, _ = inputs(dtype, heads=2)
    lengths, table = lengths_of(*LENGTHS), None
    if page is not None:
        k, table = paged(k, page)
        table = table.where(table < 10**6, 0)  # operations copy the whole of a table
    plain, found = blank(k, block), blank(k, block)
    key_bounds.plainly(plain, k, lengths, table, new)
    key_bounds.by_kernel(found, k, lengths, table, new)
    for mine, theirs in zip(found.tensors, plain.tensors, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2 if dtype == torch.bfloat16 else 2e-3,
                                   atol=1e-2 if dtype != torch.float32 else 1e-6)  # fmt: skip
    assert plain.radius.isfinite().any()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_no_key_is_further_than_they_say(dtype):
    """Whatever is rounded: keys far from zero, all alike, or very small."""
    k = torch.cat([draw(dtype, 3, 2, 64, 24) * size + size for size in (1e-3, 1.0, 300.0)])
    k[0, :, :BLOCK] = k[0, :, :1]
    found = blank(k, BLOCK)
    key_bounds.by_kernel(found, k, None, None, 64)
    apart = k.double().unflatten(2, (-1, BLOCK)) - found.middle.double().unsqueeze(3)
    assert (apart.abs() <= found.width.double().unsqueeze(3)).all()
    assert (apart.norm(dim=-1) <= found.radius.double().unsqueeze(3)).all()
    assert found.radius[1:].max() < 3 * apart.norm(dim=-1).max()  # and not much less


def test_a_page_that_is_none_changes_no_other():
    _, k, _ = inputs()
    k, table = paged(k, 16)
    found = blank(k, 16)
    kept = table[0].clone()
    table[0] = len(k) + 5
    table[2] = -1
    key_bounds.by_kernel(found, k, lengths_of(*LENGTHS), table, 61)
    assert found.radius.isinf().all()
    table[0] = kept
    key_bounds.by_kernel(found, k, lengths_of(*LENGTHS), table, 61)
    assert found.radius.isinf().sum() == found.radius.numel() - 4 * k.shape[1]


# --- what is not read -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 2 * BLOCK])
@pytest.mark.parametrize("alpha", [1.5, 2.0, torch.tensor([1.3, 1.9])])
def test_keys_of_blocks_without_weight_are_not_read(monkeypatch, page, alpha):
    # every program that looks at bounds reads a block: the best that it has seen
    tiles = SMALL if not ON_GPU else problem.Tiles()
    monkeypatch.setattr(problem, "tiles_for", lambda *_: tiles._replace(looking_programs=1))
    keys = 12 * BLOCK
    q, k = draw(torch.float32, 1, 2, 1, 16), draw(torch.float32, 1, 1, keys, 16)
    q[..., 0], k[..., 0] = 8.0, -20.0
    live = [1, 4, 7]
    for block in live:
        k[:, :, block * BLOCK : (block + 1) * BLOCK, 0] = 0.0
    v = draw(torch.float32, 1, 1, keys, 8, seed=5)
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    lengths = lengths_of(keys - 3)
    right = expected(q, k, v, alpha, lengths)
    bounds = px.attention.KeyBounds.of(k, lengths, block=BLOCK)
    table = None
    for block in set(range(12)) - set(live):
        k[:, :, block * BLOCK : (block + 1) * BLOCK] = torch.nan
    if page is not None:
        order = torch.randperm(keys // page, device=DEVICE)
        table = order.argsort()[None]

        def in_pages(x, size):
            parts = x.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
            return parts[order].contiguous()

        k, v = in_pages(k, page), in_pages(v, page)
        per_page = page // BLOCK
        bounds = px.attention.KeyBounds(
            in_pages(bounds.middle, per_page), in_pages(bounds.width, per_page),
            in_pages(bounds.radius, per_page), BLOCK,
        )  # fmt: skip
    found = decode(q, k, v, lengths, bounds, table=table, alpha=alpha)
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


def test_a_key_that_stands_out_of_its_block_is_found():
    """Its block has the highest middle nowhere, and many others promise more."""
    keys = 12 * BLOCK
    for place in (0, BLOCK + 3, keys - 1):
        q, v = draw(torch.float32, 1, 1, 1, 16), draw(torch.float32, 1, 1, keys, 8, seed=5)
        k = draw(torch.float32, 1, 1, keys, 16, seed=place)
        k[0, 0, place] = 3.0 * q[0, 0, 0] / q.norm()
        lengths = lengths_of(keys)
        bounds = px.attention.KeyBounds.of(k, lengths, block=BLOCK)
        right = expected(q, k, v, 1.5, lengths)
        torch.testing.assert_close(
            decode(q, k, v, lengths, bounds).double(), right, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("page", [None, 16])
def test_where_nothing_is_known_everything_is_read(page):
    q, k, v = inputs(group=2)
    lengths, table = lengths_of(*LENGTHS), None
    right = expected(q, k, v, 1.5, lengths)
    if page is not None:
        (k, table), (v, _) = paged(k, page), paged(v, page)
    for block in (8, 16):
        found = decode(q, k, v, lengths, blank(k, block), table=table)
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


def test_numbers_that_are_added_may_lift_any_key():
    q, k, v = inputs()
    lengths = lengths_of(*LENGTHS)
    added = torch.zeros(3, 1, 1, 61, device=DEVICE)
    added[..., 5] = 50.0
    bounds = px.attention.KeyBounds.of(k, lengths, block=BLOCK)
    right = expected(q, k, v, 1.5, lengths, seen=added)
    found = decode(q, k, v, lengths, bounds, seen=added)
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


@pytest.fixture
def scratch(monkeypatch):
    """The pieces of scratch of every new plan, as kernels leave them; fresh memory is NaN."""
    cuts = []
    plain, fresh = plan.Plan.cut, torch.Tensor.new_empty
    monkeypatch.setattr(plan.Plan, "cut", lambda *x: cuts.append(plain(*x)) or cuts[-1])

    def poisoned(self, *shape, **options):
        made = fresh(self, *shape, **options)
        return made.fill_(float("nan") if made.is_floating_point() else 2**14)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    return cuts


MANY_ROWS = {"group": 9, "queries": 2, "reach": (None, 0)}


@pytest.mark.skipif(ON_GPU, reason="blocks are larger on a GPU")
@pytest.mark.parametrize(
    ("options", "tiles"),
    [
        ({}, {}),
        ({"scale": -0.5}, {}),
        ({"scale": -0.5, "noise": 1.0}, {}),
        ({"keys": 400, "noise": 0.6}, {}),
        ({"reach": (20, 0)}, {}),
        ({"reach": (20, 0), "page": 8}, {}),
        ({"queries": 3, "reach": (None, 0)}, {}),
        (MANY_ROWS, {}),
        (MANY_ROWS | {"opposite": True}, {}),
        ({"alpha": 1.2, "group": 2}, {}),
        ({"alpha": 2.0, "page": 16}, {}),
        ({"keys": 1400}, {"looking_programs": 300, "programs": 12, "many": 128, "value_many": 128}),
        ({"keys": 400}, {"looking_programs": 3, "looked_at": 2}),
        ({"keys": 400, "page": 16}, {"looking_programs": 1, "looked_at": 4}),
    ],
)
def test_most_blocks_are_not_read_and_the_result_is_right(monkeypatch, scratch, options, tiles):
    """Blocks that have little to do with each other."""
    monkeypatch.setattr(problem, "tiles_for", lambda *_: SMALL._replace(**tiles))
    options = {"scale": 0.5, "reach": EVERYTHING, "alpha": 1.5, "keys": 120, "page": None} | options
    noise, opposite = options.pop("noise", 0.1), options.pop("opposite", False)
    keys, page, reach, alpha = (options.pop(x) for x in ("keys", "page", "reach", "alpha"))
    scale = options.pop("scale")
    q, k, v = inputs(keys=keys, **options)
    lengths = lengths_of(keys, 0, keys - 9)
    centres = draw(torch.float32, *k.shape[:2], -(-keys // 16), k.shape[3], seed=7)
    centres = 4 * centres.repeat_interleave(16, 2)[:, :, :keys]
    k = noise * draw(torch.float32, *k.shape, seed=8) + centres
    if opposite:  # the first tile of queries wants other blocks than the last
        q[:] = q[:, :1, :1]
        q[:, 8:] *= -1.0
    v = v.where(~v.isnan(), 0.5)
    right = expected(q, k, v, alpha, lengths, scale=scale, reach=reach)
    table = None
    if page is not None:
        columns = -(-keys // page)
        order = torch.randperm(3 * columns)
        table = order.argsort().view(3, columns)
        k, v = (
            torch.nn.functional.pad(x, (0, 0, 0, columns * page - keys))
            .unflatten(2, (-1, page)).transpose(1, 2).flatten(0, 1)[order].contiguous()
            for x in (k, v)
        )  # fmt: skip
    bounds = px.attention.KeyBounds.of(k, lengths, table, block=8 if page == 8 else 16)
    found = flash_decoding.flash_decode(
        q, k, v, lengths, table, None, reach, alpha, scale, bounds
    )  # fmt: skip
    assert (found.double() - right).norm() <= 1e-5 * right.norm()
    tops = scratch[-1]["tops"]
    unread = int((tops == -torch.inf).sum())
    assert unread >= 0.05 * int((~tops.isnan()).sum())


@pytest.mark.skipif(ON_GPU, reason="plans are run by addresses there")
@pytest.mark.parametrize("spread", ["one dimension", "all"])
def test_the_smaller_of_box_and_ball(scratch, spread):
    """Where one dimension varies the box is smaller, and where all do, the ball."""
    q, k, v = (draw(torch.float32, 1, 1, n, 16, seed=n) for n in (1, 128, 129))
    v = v[:, :, :128]
    if spread == "one dimension":
        k[..., 1:] = 0.3
    lengths = lengths_of(128)
    bounds = px.attention.KeyBounds.of(k, lengths, block=16)
    decode(q, k, v, lengths, bounds)
    middle, width, radius = (x[0, 0].double() for x in bounds.tensors)
    row = q[0, 0, 0].double()
    box, ball = width @ row.abs(), radius * row.norm()
    assert ((box < ball) == (spread == "one dimension")).all()
    right = 0.5 * (middle @ row + torch.minimum(box, ball))
    torch.testing.assert_close(scratch[-1]["uppers"][:8].double(), right, rtol=1e-4, atol=1e-4)


def test_what_is_far_too_small_to_be_squared():
    keys = 4 * BLOCK
    lengths = lengths_of(keys)
    v = draw(torch.float32, 1, 1, keys, 8)
    for size in (1e-24, 1e18):
        q, k = torch.zeros(1, 1, 1, 16, device=DEVICE), draw(torch.float32, 1, 1, keys, 16, seed=1)
        q[..., 0] = size
        k = k / size * 1e-6
        bounds = px.attention.KeyBounds.of(k, lengths, block=BLOCK)
        found = flash_decoding.flash_decode(
            q, k, v, lengths, None, None, EVERYTHING, 1.5, 1e7, bounds
        )  # fmt: skip
        right = flash_decoding.flash_decode(q, k, v, lengths, None, None, EVERYTHING, 1.5, 1e7)
        torch.testing.assert_close(found, right)
        assert found.any()


# --- what cannot be -------------------------------------------------------------------------------


def test_what_is_not_a_number_shows():
    q, k, v = inputs(group=2)
    lengths = lengths_of(*LENGTHS)
    k[0, 0, 40, 2] = torch.nan
    q[2, 1, 0, 3] = torch.nan
    out = decode(q, k, v, lengths, px.attention.KeyBounds.of(k, lengths, block=BLOCK))
    assert out[0].isnan().all()
    assert out[2, 1].isnan().all()
    assert out[2, 0].isfinite().all()
    k[0, 0, 40, 2] = torch.inf
    out = decode(q, k, v, lengths, px.attention.KeyBounds.of(k, lengths, block=BLOCK))
    plain = decode(q, k, v, lengths, None)
    assert torch.equal(out.isnan(), plain.isnan())


def test_a_page_that_is_lost_shows():
    q, k, v = inputs(heads=2)
    (pages, table), (values, _) = paged(k, 16), paged(v, 16)
    lengths = lengths_of(*LENGTHS)
    bounds = px.attention.KeyBounds.of(pages, lengths, table)
    for column in range(4):
        lost = table.clone()
        lost[0, column] = len(pages)
        out = decode(q, pages, values, lengths, bounds, table=lost)
        assert out[0].isnan().all()
        assert out[1:].isfinite().all()


# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [None, 16])
def test_step_by_step(page):
    """Keys come one by one, or some at once; bounds that are kept are those of all keys."""
    full_k, full_v = draw(torch.float32, 3, 2, 64, 8), draw(torch.float32, 3, 2, 64, 8, seed=1)
    k, v = torch.full_like(full_k, torch.nan), torch.full_like(full_v, torch.nan)
    lengths = lengths_of(0, 14, 30)
    for item, length in enumerate(lengths.tolist()):
        k[item, :, :length], v[item, :, :length] = (
            full_k[item, :, :length],
            full_v[item, :, :length],
        )
    table = None
    if page is not None:
        table = torch.randperm(12, device=DEVICE).view(3, 4)

    def laid(x):
        if page is None:
            return x
        out = torch.empty(12, 2, page, 8, device=DEVICE)
        out[table.flatten()] = x.unflatten(2, (-1, page)).transpose(1, 2).flatten(0, 1)
        return out

    bounds = px.attention.KeyBounds.of(laid(k), lengths, table, block=16)
    for new in (1, 1, 5, 1, 20, 1):
        for item in range(3):
            here = slice(int(lengths[item]), int(lengths[item]) + new)
            k[item, :, here], v[item, :, here] = full_k[item, :, here], full_v[item, :, here]
        lengths += new
        bounds.update(laid(k), lengths, table, new=new)
        fresh = px.attention.KeyBounds.of(laid(k), lengths, table, block=16)
        for mine, theirs in zip(bounds.tensors, fresh.tensors, strict=True):
            torch.testing.assert_close(mine, theirs)
        q = draw(torch.float32, 3, 4, 1, 8, seed=new)
        right = expected(q, k, v, 1.5, lengths)
        found = decode(q, laid(k), laid(v), lengths, bounds, table=table)
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not ON_GPU, reason="only GPUs have graphs")
def test_a_step_with_its_update_is_captured():
    q, k, v = (draw(torch.bfloat16, 2, 8, 1, 64), draw(torch.bfloat16, 2, 2, 4096, 64),
               draw(torch.bfloat16, 2, 2, 4096, 64, seed=1))  # fmt: skip
    lengths = lengths_of(4000, 900)
    bounds = px.attention.KeyBounds.of(k, lengths, block=BLOCK)

    def step():
        lengths.add_(1)
        bounds.update(k, lengths)
        return px.attention.decode(q, k, v, lengths, enable_gqa=True, bounds=bounds)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for _ in range(70):  # into another block
        graph.replay()
    right = px.attention.decode(q, k, v, lengths, enable_gqa=True)
    assert (out.double() - right.double()).norm() <= 1e-2 * right.double().norm()
    fresh = px.attention.KeyBounds.of(k, lengths, block=BLOCK)
    assert all(torch.equal(a, b) for a, b in zip(bounds.tensors, fresh.tensors, strict=True))
