"""Attention over many keys by blocks, against the plain path in float64."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from torch.utils.checkpoint import checkpoint

import parsimax as px
from parsimax.attention import flash, functional, visibility
from parsimax.attention.visibility import Band
from parsimax.kernels.gpu.flash import launch, tables
from parsimax.kernels.gpu.flash import problem as problems
from parsimax.seq2seq.models import TransformerSettings, build
from parsimax.seq2seq.models.settings import LEARNED

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
# In the interpreter a program takes a second; blocks of 16 make several of them of little.
SMALL = problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PER_HEAD = (1.0, 1.3, 2.0, 1.02)
CAUSAL = Band(right=0)
EVERYTHING = Band()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(problems, "tiles_for", lambda q, v: SMALL)


def inputs(dtype=torch.float32, *, items=1, heads=2, groups=1, queries=18, keys=37, size=8, ev=8):
    generator = torch.Generator().manual_seed(queries * keys + size)

    def draw(length, many, width):
        x = torch.randn(items, length, many, width, generator=generator)
        return x.to(DEVICE, dtype).transpose(1, 2)  # as a model's projections lie

    return (
        draw(queries, heads, size) * 2,
        draw(keys, heads // groups, size),
        draw(keys, heads // groups, ev),
    )


def compare(
    q, k, v, alpha=1.5, *, seen=None, band=EVERYTHING, lengths=None, scale=0.5, tolerance=None
):  # fmt: skip
    """Result and all gradients of the kernels beside those of the plain path in float64."""
    bias = seen if seen is not None and seen.dtype != torch.bool else None
    visible = seen if bias is None else None

    def run(function, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        if isinstance(alpha, torch.Tensor):
            leaves.append(alpha.detach().to(DEVICE).to(torch.promote_types(dtype, torch.float32)))
        if bias is not None:
            leaves.append(bias.detach().to(dtype))
        for leaf in leaves[3:]:
            leaf.requires_grad_()
        a = leaves[3] if isinstance(alpha, torch.Tensor) else alpha
        out = function(*leaves[:3], a, leaves[-1] if bias is not None else None)
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(out.shape, generator=generator).to(DEVICE, q.dtype).to(dtype)
        return [x.double() for x in (out.detach(), *torch.autograd.grad(out, leaves, g))]

    window = None if band.left is None else (band.left, -1 if band.right is None else band.right)
    grouped = q.shape[1] != k.shape[1]
    fused = run(
        lambda q, k, v, a, b: flash.flash_attention(
            q, k, v, visible if b is None else b, band, lengths, a, scale
        ),
        q.dtype,
    )
    plain = run(
        lambda q, k, v, a, b: px.attention(
            q, k, v, visible if b is None else b, 0.0, band.right == 0, scale, grouped, alpha=a,
            causal_align="bottom-right" if band.offset else "top-left", window=window,
            key_lengths=lengths,
        ),
        torch.float64,
    )  # fmt: skip
    for mine, theirs in zip(fused, plain, strict=True):
        off = (mine - theirs).norm() / theirs.norm()
        assert off <= (tolerance or TOLERANCE[q.dtype]), off
    return fused


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_values_and_gradients(alpha):
    compare(*inputs(), alpha)


@pytest.mark.parametrize("band", [EVERYTHING, CAUSAL, Band(20, 3)])
def test_all_blocks_are_whole(band):
    q, k, v = inputs(queries=32, keys=64)
    compare(q, k, v, 1.5, band=band)
    compare(q, k, v, torch.tensor([1.2, 1.7], device=DEVICE), band=band)


def test_at_one_it_is_softmax():
    q, k, v = inputs()
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    softmax = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True, scale=0.5)
    for alpha in (1.0, torch.ones(2, device=DEVICE)):
        out = flash.flash_attention(*leaves, None, CAUSAL, None, alpha, 0.5)
        found = [out, *torch.autograd.grad(out.square().sum(), leaves)]
        expected = [
            softmax,
            *torch.autograd.grad(softmax.square().sum(), wide, retain_graph=True),
        ]
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


def test_above_two_by_halving():
    compare(*inputs(heads=1, queries=9), 2.6, tolerance=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    compare(*inputs(dtype), 1.5, band=CAUSAL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_alpha_for_each_head_with_its_gradient(dtype):
    compare(*inputs(dtype, heads=4), torch.tensor(PER_HEAD), band=CAUSAL)


def one_key_for_each_query(dtype, apart, keys=24):
    """Scores, at scale 1, that are higher by ``apart`` at one key; another one for each query."""
    k = torch.eye(keys)[None, None] * 4
    v = torch.randn(1, 1, keys, 8, generator=torch.Generator().manual_seed(0))
    return [x.to(DEVICE, dtype) for x in (k * apart / 16, k, v)]


@pytest.mark.parametrize(("alpha", "apart"), [(1.0, 10.0), (1.05, 8.0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_where_one_key_has_almost_all_weight(dtype, alpha, apart):
    """All but a thousandth: small differences to a mean, which must have more digits than they."""
    compare(*one_key_for_each_query(dtype, apart), alpha, scale=1.0)


def test_gradients_where_one_key_has_all_weight():
    q, k, v = one_key_for_each_query(torch.float16, 10.0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = flash.flash_attention(*leaves, None, EVERYTHING, None, 1.5, 1.0)
    assert torch.equal(out, v)
    for found in torch.autograd.grad(out, leaves, torch.randn_like(out))[:2]:
        assert found.abs().max() <= 1e-4


@pytest.mark.parametrize("alpha", [1.02, 1.5, torch.tensor(PER_HEAD[:2])])
def test_gradients_where_values_are_far_from_zero(alpha):
    """All of them, or those of one dimension."""
    q, k, v = inputs(torch.float16)
    compare(q, k, v + 200.0, alpha)
    v[..., 0] = 3000.0
    compare(q, k, v, alpha)


def test_gradients_where_values_are_zero_or_all_but():
    q, k, v = inputs(torch.bfloat16)
    compare(q, k, v * 1e-32)
    leaves = [x.requires_grad_() for x in (q, k, v * 0.0)]
    out = flash.flash_attention(*leaves, None, EVERYTHING, None, 1.5, 0.5)
    found = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert not any(x.any() for x in found[:2])


@pytest.mark.parametrize("height", [1.93, 1.95, 1.97])
def test_many_equal_keys_just_below_the_threshold_of_one_that_stands_out(height):
    q, k, v = (x.bfloat16() for x in inputs(heads=1, queries=16, keys=500))
    q[:], k[:] = 0.0, 0.0
    q[..., 0], k[..., 5, 0] = 2.0, height
    out = flash.flash_attention(q, k, v, None, EVERYTHING, None, 1.5, 0.5)
    expected = px.attention(*(x.double() for x in (q, k, v)), scale=0.5)
    assert (out - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize(("alpha", "strength"), [(1.4, 0.1), (1.5, 0.1), (1.6, 0.02), (1.8, 0.02)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scores_that_are_almost_equal(dtype, alpha, strength, monkeypatch):
    """A step from far above arrives at almost nothing, and says little of the next one."""
    monkeypatch.setattr(problems, "tiles_for", lambda q, v: problems.Tiles())
    q, k, v = inputs(dtype, heads=1, queries=16, keys=500, size=16, ev=16)
    q = q * strength
    found = flash.flash_attention(q, k, v, None, EVERYTHING, None, alpha, 0.125)
    expected = px.attention(*(x.double() for x in (q, k, v)), scale=0.125, alpha=alpha)
    assert (found - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def test_gradients_where_one_key_stands_out_and_many_are_almost_equal():
    q, k, v = (x.bfloat16() for x in inputs(heads=1, queries=16, keys=300))
    q, k = q * 0.02, k.clone()
    q[..., 0] = torch.linspace(0.5, 6.0, 16, device=DEVICE)
    k[..., 0] = 0.0
    k[..., 5, :] = 0.0
    k[..., 5, 0] = 1.0
    compare(q, k, v, 1.3)


def test_the_gradient_of_an_alpha_is_one_number_and_loses_no_digits():
    q, k, v = inputs(torch.bfloat16)
    leaves = [
        torch.tensor([1.0, 1.9], dtype=x, device=DEVICE) for x in (torch.float32, q.double().dtype)
    ]
    g = torch.randn(1, 2, 18, 8, generator=torch.Generator().manual_seed(1)).to(q)
    mine = flash.flash_attention(q, k, v, None, CAUSAL, None, leaves[0].requires_grad_(), 0.5)
    wide = [x.double() for x in (q, k, v)]
    theirs = px.attention(*wide, is_causal=True, scale=0.5, alpha=leaves[1].requires_grad_())
    (mine,) = torch.autograd.grad(mine, leaves[0], g)
    (theirs,) = torch.autograd.grad(theirs, leaves[1], g.double())
    assert (mine - theirs).norm() <= 1e-4 * theirs.norm()


@pytest.mark.parametrize(
    "band",
    [CAUSAL, Band(right=0, offset=19), Band(5, 3), Band(4, 0), Band(right=0, offset=-9)],
    ids=["causal", "bottom right", "window", "both", "more queries"],
)
def test_bands(band):
    shape = {"queries": 46} if band.offset < 0 else {}
    compare(*inputs(**shape), band=band)


def test_a_mask_and_an_empty_row():
    seen = torch.rand(1, 1, 18, 37, generator=torch.Generator().manual_seed(0)) > 0.4
    seen[..., 5, :] = False
    out, gq, *_ = compare(*inputs(), seen=seen.to(DEVICE))
    assert not out[0, :, 5].any()
    assert not gq[0, :, 5].any()


def test_numbers_added_to_the_scores_have_a_gradient():
    bias = torch.randn(2, 1, 37, generator=torch.Generator().manual_seed(0))
    bias[..., 7] = -float("inf")
    q, k, v = inputs()
    compare(q, k, v, seen=torch.where(bias.isinf(), -30.0, bias).to(DEVICE))
    hidden = flash.flash_attention(q, k, v, bias.to(DEVICE), EVERYTHING, None, 1.5, 0.5)
    expected = px.attention(q.double(), k.double(), v.double(), bias.double().to(DEVICE), scale=0.5)
    assert (hidden - expected).abs().max() < 1e-5


def test_numbers_added_in_float32_take_all_registers():
    """Triton 3.6's assembler left to itself takes 32 for heads of 128, and 12 KiB of stack."""
    numbers = torch.zeros(1, 2, 18, 37, device=DEVICE)
    found = []
    for dtype, seen in (
        (torch.float32, numbers),
        (torch.float32, numbers > 0.0),
        (torch.bfloat16, numbers),
    ):
        p = problems.Problem(*inputs(dtype), seen, 1.5, 0.5, tiles=SMALL)
        launches = launch._backward_pass(p, False, False)._chain._launches
        found += [x.options.get("maxnreg") for x in launches if x.kernel is launch.key_kernel]
    assert found == [255, None, None]


@pytest.mark.parametrize("alpha", [1.0, 1.02, 1.3, 2.5])
def test_the_least_number_hides_a_row_and_makes_none_that_is_no_number(alpha):
    bias = torch.zeros(5, 37, device=DEVICE)
    bias[:, 20:] = torch.finfo(torch.float32).min
    bias[3] = torch.finfo(torch.float32).min
    q, k, v = (x.detach().requires_grad_() for x in inputs(heads=1, queries=5))
    out = flash.flash_attention(q, k, v, bias, EVERYTHING, None, alpha, 0.5)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (out, *grads))
    expected = px.attention(*(x[:, :, :20].double() for x in (q, k, v)), scale=0.5, alpha=alpha)
    assert (out - expected)[:, :, [0, 1, 2, 4]].abs().max() < 1e-3
    assert not out[:, :, 3].any()
    assert not grads[0][:, :, 3].any()


@pytest.mark.parametrize("step", [True, False])
@pytest.mark.parametrize("wrong", [38, -1, 2**40])
def test_a_length_that_cannot_be_is_not_a_number_by_any_kernels(monkeypatch, wrong, step):
    q, k, v = inputs(items=3, heads=1, queries=3)
    monkeypatch.setattr(functional, "kernel_alpha", lambda *_: 1.3)
    monkeypatch.setattr(functional, "few_keys", lambda *_: False)
    monkeypatch.setattr(functional, "few_scores", lambda *_: step)
    monkeypatch.setattr(functional, "_MANY_KEYS", 1)
    monkeypatch.setattr(visibility, "values_readable", lambda: False)  # as on a GPU
    unwanted = (flash, "flash_attention") if step else (functional, "flash_decode")
    monkeypatch.setattr(*unwanted, pytest.fail)
    out = px.attention(q, k, v, key_lengths=torch.tensor([37, 0, wrong], device=DEVICE), alpha=1.3)
    assert out[0].isfinite().all()
    assert out[0].any()
    assert not out[1].any()
    assert out[2].isnan().all()


def test_one_length_for_all_items_and_one_of_a_small_dtype_are_written_down_for_each():
    q, k, _ = inputs(items=3, heads=1, queries=3)
    for lengths in (torch.tensor(-1), torch.tensor([-1] * 3, dtype=torch.int8)):
        _, found = flash.expand(q, k.expand(-1, 300, -1, -1).flatten(1, 2)[:, None], None, lengths)
        assert found.is_contiguous()
        assert found.tolist() == [300 * 37] * 3


def test_lengths_groups_and_sizes_of_heads():
    q, k, v = inputs(items=2, groups=2, size=12, ev=20)
    compare(q, k, v, lengths=torch.tensor([37, 11], device=DEVICE))


def test_eight_heads_share_the_keys_of_one_item_without_any():
    q, k, v = inputs(items=2, heads=8, groups=8, queries=5)
    alpha = torch.linspace(1.2, 2.4, 8)
    out, gq, gk, gv, _ = compare(
        q, k, v, alpha, band=Band(right=0, offset=32), lengths=torch.tensor([37, 0], device=DEVICE)
    )
    for x in (out, gq, gk, gv):
        assert x[0].any()
        assert not x[1].any()


def test_numbers_for_each_head_that_hide_whole_rows():
    bias = torch.randn(2, 2, 18, 37, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    bias[:, 1, 4] = -float("inf")
    q, k, v = inputs(items=2)
    leaves = [x.detach().requires_grad_() for x in (q, k, v, bias)]
    out = flash.flash_attention(*leaves, CAUSAL, None, 1.5, 0.5)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = px.attention(*wide, is_causal=True, scale=0.5)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found = [out, *torch.autograd.grad(out, leaves, g)]
    plain = [expected, *torch.autograd.grad(expected, wide, g.double())]
    for mine, theirs in zip(found, plain, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    assert not found[0][:, 1, 4].any()
    assert not found[4][:, 1, 4].any()


def test_tensors_that_lie_otherwise():
    q, k, v = inputs(items=2, queries=5)
    apart = torch.stack([q, q], -1)[..., 1]  # numbers of a row do not lie side by side
    shared = k[:1].expand_as(k)  # one tensor for all items
    backwards = v.flip(2).contiguous().flip(2).transpose(2, 3).contiguous().transpose(2, 3)
    assert apart.stride(-1) == 2
    assert shared.stride(0) == 0
    assert backwards.stride(-1) > 1
    out = flash.flash_attention(apart, shared, backwards, None, EVERYTHING, None, 1.5, 0.5)
    expected = px.attention(q.double(), shared.double(), v.double(), scale=0.5)
    assert (out - expected).norm() <= 1e-5 * expected.norm()


def test_results_lie_as_queries_do():
    """Projections of a model lie with positions first: neither they nor gradients are copied."""
    q, k, v = (x.contiguous() for x in inputs(items=2, heads=4, groups=2, ev=20, queries=5))
    g = torch.randn(2, 4, 5, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def run(q, k, v, g):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = flash.flash_attention(*leaves, None, Band(right=0, offset=20), None, 1.5, 0.5)
        return [out, *torch.autograd.grad(out, leaves, g)]

    def by_rows(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    expected = run(q, k, v, g)
    assert all(x.is_contiguous() for x in expected)
    for order in ((by_rows(q), k, v, g), tuple(map(by_rows, (q, k, v, g)))):
        for mine, theirs in zip(run(*order), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
            assert mine.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_any_scale(scale):
    q, k, v = inputs(queries=5)
    out = flash.flash_attention(q, k, v, None, EVERYTHING, None, 1.5, scale)
    torch.testing.assert_close(out, px.attention(q, k, v, scale=scale), rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_stays_in_its_row():
    q, k, v = inputs()
    q[0, 1, 3, 0] = float("nan")
    out = flash.flash_attention(q, k, v, None, EVERYTHING, None, 1.5, 0.5)
    assert out[0, 1, 3].isnan().all()
    assert out.isnan().sum() == v.shape[-1]
    k[0, 0, 4, 0] = float("inf")
    out = flash.flash_attention(q, k, v, None, EVERYTHING, None, 1.5, 0.5)
    assert out[0, 0][q[0, 0, :, 0] > 0].isnan().all()


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_what_is_not_a_number_in_a_value_shows_in_gradients(what):
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = inputs(dtype, keys=18)
        v[0, 1, 11, 0] = what
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = flash.flash_attention(*leaves, None, CAUSAL, None, 1.0, 0.5)
        gq, _, gv = torch.autograd.grad(out, leaves, torch.ones_like(out))
        assert gq[0, 1, 11:].isnan().all()  # of those that see it
        assert gq[0, 0].isfinite().all()
        assert gv.isfinite().all()


def test_blocks_without_weight_are_left_out():
    q, k, v = inputs(heads=1, queries=16, keys=64)
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, :, 16:48, 0] = -9.0  # these two blocks are far below the others
    problem = problems.Problem(q, k, v, None, 1.5, 0.5, tiles=SMALL)
    _, saved = launch.forward(problem, train=True)
    weights = px.entmax(0.5 * q.double() @ k.double().mT, 1.5)
    expected = weights.reshape(1, 1, 16, 4, 16).amax((2, 4)) > 0
    assert 0 < int(expected.sum()) < 4
    assert torch.equal(saved.live[:, :, 0].bool(), expected)


def test_scratch_of_few_tall_blocks_at_a_time_gives_the_same_bits(monkeypatch):
    """Heads and items follow each other, and the last tall block of each is not whole."""
    q, k, v = inputs(items=2, queries=40, keys=20)
    problem = problems.Problem(q, k, v, None, 1.5, 0.5, (flash.UNLIMITED, 0), tiles=SMALL)
    whole, saved = launch.forward(problem, train=True)
    monkeypatch.setattr(launch, "_TOGETHER", 3)
    monkeypatch.setattr(launch, "_SCRATCH", (1, 1))
    launch._FORWARDS.clear()
    pieces, saved_by_pieces = launch.forward(problem, train=True)
    assert torch.equal(whole, pieces)
    assert torch.equal(saved.live, saved_by_pieces.live)
    assert torch.equal(saved.counts, saved_by_pieces.counts)


def test_grids_have_one_dimension(monkeypatch):
    """The others end at 65,535, and there may be more heads of items than that."""
    grids = {}

    class Recorder:
        def __init__(self, name, kernel):
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid):
            grids[self.name] = grid
            return self.kernel[grid]

    kernels = {
        name: (module, kernel)
        for module in (launch, tables)
        for name, kernel in vars(module).items()
        if name.endswith("_kernel") or name == "compact"
    }
    for name, (module, kernel) in kernels.items():
        monkeypatch.setattr(module, name, Recorder(name, kernel))
    q, k, v = inputs(heads=1, queries=3, keys=5)
    out = flash.flash_attention(q.requires_grad_(), k, v, None, CAUSAL, None, 1.5, 0.5)
    torch.autograd.grad(out.sum(), q)
    seen = torch.ones(5, dtype=torch.bool, device=DEVICE)
    flash.count(q.detach(), k, seen, CAUSAL, None, 1.5, 0.5, 16)
    tiles = problems.tiles_for(q, v)._replace(listed=1)
    problem = problems.Problem(q.detach(), k, v, None, 1.5, 0.5, tiles=tiles)
    out, saved = launch.forward(problem, train=True)
    launch.backward(problem, saved, out)
    assert set(kernels) - set(grids) == {"tables_kernel"}  # of packed sequences
    assert all(len(grid) == 1 for grid in grids.values())


def test_gradients_of_gradients():
    q, k, v = (x.requires_grad_() for x in inputs(queries=3, keys=5, heads=2))

    def second(function):
        (gq,) = torch.autograd.grad(function(q, k, v).square().sum(), q, create_graph=True)
        return torch.autograd.grad(gq.square().sum(), (q, k, v))

    mine = second(lambda q, k, v: flash.flash_attention(q, k, v, None, CAUSAL, None, 1.5, 0.5))
    theirs = second(lambda q, k, v: px.attention(q, k, v, None, 0.0, True, 0.5))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_the_gradient_of_one_tensor():
    x = inputs(queries=5, keys=5, heads=2)[0].detach().requires_grad_()

    def gradients(create_graph):
        out = flash.flash_attention(x, x, 2 * x, None, CAUSAL, None, 1.5, 0.5)
        return torch.autograd.grad(out.square().sum(), x, create_graph=create_graph)

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_gives_what_was_saved_only_once():
    leaves = [x.detach().requires_grad_() for x in inputs(heads=1, queries=3, keys=5)]

    def attend(q, k, v):
        return flash.flash_attention(q, k, v, None, CAUSAL, None, 1.5, 0.5)

    kept = torch.autograd.grad(checkpoint(attend, *leaves, use_reentrant=False).sum(), leaves)
    for found, right in zip(kept, torch.autograd.grad(attend(*leaves).sum(), leaves), strict=True):
        assert torch.equal(found, right)


def test_what_the_kernels_do_not_know_goes_elsewhere():
    q, k, v = inputs(heads=4)
    assert flash.fits(q, k, v, 1.5)
    assert flash.fits(q, k, v, torch.full((4,), 9.0))  # nobody looks at it
    assert not flash.fits(q, k, v, 4.1)
    assert flash.fits(q, k[:, :1], v[:, :1], 4.0)
    assert not flash.fits(q[:, :1], k, v, 1.5)  # one head of queries for all of the keys
    assert not flash.fits(q, k[:, :, :0], v[:, :, :0], 1.5)
    wide = q.new_empty(1, 4, 18, 257)
    assert not flash.fits(wide, wide, wide, 1.5)
    most = torch.empty(1, 1, 16 << 15, 8, device="meta")  # blocks of 16 that 16 bits can name
    assert flash.fits(q[:, :1], most, most, 1.5) or ON_GPU
    more = torch.empty(1, 1, (64 << 15) + 1, 8, device="meta")
    assert not flash.fits(q[:, :1], more, more, 1.5)
    assert not flash.fits(more, k[:, :1], v[:, :1], 1.5)


# --- on a GPU alone: what is too large for the interpreter, and what only the front door does ---

gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 40, 64, 128, 256])
def test_lengths_that_are_no_power_of_two(dtype, size):
    q, k, v = inputs(dtype, items=2, heads=8, groups=8, queries=301, keys=517, size=size, ev=size)
    scale = size**-0.5
    compare(q, k, v, 1.5, band=CAUSAL, scale=scale)
    compare(q, k, v, 1.3, lengths=torch.tensor([517, 40], device=DEVICE), scale=scale)
    compare(q, k, v, torch.linspace(1.0, 2.0, 8), band=Band(100, 30), scale=scale)


@gpu
def test_the_front_door_takes_it_and_gives_the_same_bits():
    q, k, v = inputs(torch.bfloat16, heads=8, queries=700, keys=700, size=64, ev=64)
    calls = [px.attention(q, k, v, is_causal=True) for _ in range(3)]
    assert torch.equal(calls[0], calls[1])
    assert torch.equal(calls[0], calls[2])
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    grads = [
        torch.autograd.grad(px.attention(*leaves, is_causal=True).square().sum(), leaves)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@gpu
def test_memory_does_not_grow_with_the_square():
    def peak(length):
        q, k, v = (
            torch.randn(1, 8, length, 64, device=DEVICE, dtype=torch.bfloat16) for _ in "qkv"
        )
        leaves = [x.requires_grad_() for x in (q, k, v)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        px.attention(*leaves, is_causal=True).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(4096)
    assert peak(65536) < 5 * peak(16384)


@gpu
@pytest.mark.parametrize("alpha", ["default", "number", "tensor"])
def test_compiled_in_training(alpha):
    torch._dynamo.reset()
    q, k, v = inputs(torch.bfloat16, heads=4, queries=300, keys=300, size=64, ev=64)
    a = torch.tensor(PER_HEAD, device=DEVICE) if alpha == "tensor" else 1.3

    def step(q, k, v, a):
        chosen = {} if alpha == "default" else {"alpha": a}
        return px.attention(q, k, v, is_causal=True, **chosen)

    def run(function):
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        extra = [a.clone().requires_grad_()] if isinstance(a, torch.Tensor) else []
        out = function(*leaves, *(extra or [a]))
        return [out, *torch.autograd.grad(out.float().square().sum(), [*leaves, *extra])]

    compiled = torch.compile(step, fullgraph=True)
    for mine, theirs in zip(run(compiled), run(step), strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():  # by kernels that find nothing for a backward
        assert torch.equal(compiled(q, k, v, a), step(q, k, v, a))


@pytest.mark.parametrize("which", ["encoder", "decoder"])
def test_a_layer_of_a_transformer_compiled_in_training(which):
    torch._dynamo.reset()
    torch.manual_seed(0)
    size, length = (256, 300) if ON_GPU else (16, 24)
    settings = TransformerSettings(
        dim=size, heads=4, feedforward=2 * size, dropout=0.0, encoder_layers=1, decoder_layers=1,
        encoder_attention=LEARNED, context_attention=LEARNED, decoder_attention=LEARNED,
    )  # fmt: skip
    model = build(settings, 10, 10).to(DEVICE).train()
    layer = getattr(model, which)[0]
    x = torch.randn(2, length, size, device=DEVICE)
    seen = (torch.arange(length, device=DEVICE) < 20)[None, None, None]

    def step(x):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=ON_GPU):
            more = (layer.context.keys(x), seen) if which == "decoder" else (seen,)
            out = layer(x, *more)
            return (out[0] if which == "decoder" else out).float().square().mean()

    def gradients(function):
        layer.zero_grad()
        function(x).backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    compiled = torch.compile(step, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    for mine, theirs in zip(gradients(compiled), gradients(step), strict=True):
        assert mine.norm() > 0
        assert (mine - theirs).norm() <= (3e-2 if ON_GPU else 1e-5) * theirs.norm()


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_saved_may_come_back_with_other_strides(packed):
    """As from ``torch.autograd.graph.save_on_cpu``, with pinned memory or without."""
    q, k, v = inputs(heads=2, queries=18, keys=37)
    q = q[:, :1].expand(-1, 2, -1, -1)  # a copy of which lies otherwise
    starts = torch.tensor([0, 18], device=DEVICE), torch.tensor([0, 37], device=DEVICE)

    def gradients():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        if packed:
            rows = [x[0].transpose(0, 1) for x in leaves]
            out = flash.packed_attention(*rows, starts, (18, 37), EVERYTHING, False, 1.5, 0.5)
        else:
            out = flash.flash_attention(*leaves, None, EVERYTHING, None, 1.5, 0.5)
        return torch.autograd.grad(out.square().sum(), leaves)

    expected = gradients()
    for away in (
        torch.clone,
        lambda x: torch.empty(x.shape, dtype=x.dtype, device=DEVICE).copy_(x),
    ):
        with torch.autograd.graph.saved_tensors_hooks(away, lambda x: x):
            found = gradients()
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine - theirs).norm() <= 1e-6 * theirs.norm()


def test_what_lies_beyond_lengths_does_not_matter_to_second_gradients():
    q, k, v = inputs(queries=3, keys=20, heads=1)
    lengths = torch.tensor([7], device=DEVICE, dtype=torch.int32)
    dirty = [q, k.clone(), v.clone()]
    for x in dirty[1:]:
        x[:, :, 7:] = float("nan")

    def second(*tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = flash.flash_attention(*leaves, None, EVERYTHING, lengths, 1.5, 0.5)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(first[0].square().sum(), leaves)]

    for found, expected in zip(second(*dirty), second(q, k, v), strict=True):
        torch.testing.assert_close(found, expected)
