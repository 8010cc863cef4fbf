"""Attention over few keys in one kernel, against the plain path in float64."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from tests.kernels.gpu.addresses import Interpreted, launch_by_addresses

import parsimax as px
from parsimax.attention import functional
from parsimax.attention.fused import few_keys, fused_attention, kernel_alpha
from parsimax.kernels.gpu import short_attention

ON_GPU = DEVICE.type == "cuda"
# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Inputs have half precision and are exact in float64; what is left is the rounding of the result,
# half a unit of 2^-8, and sums of a few such weights.
BFLOAT16 = 2**-7
ALPHAS = (1.0, 1.02, 1.3, 1.5, 1.8, 2.0)
PER_HEAD = torch.tensor([1.0, 1.01, 1.4, 2.0, 2.7, 1.5])


def inputs(
    items=2, heads=6, queries=19, keys=13, size=8, values=12, groups=1, dtype=torch.bfloat16
):
    generator = torch.Generator().manual_seed(queries * keys + size)

    def draw(length, many, width):
        x = torch.randn(items, length, many, width, generator=generator)
        return x.to(DEVICE, dtype).transpose(1, 2)  # as a model's projections lie

    return (
        draw(queries, heads, size) * 2,
        draw(keys, heads // groups, size),
        draw(keys, heads // groups, values),
    )


def both(q, k, v, alpha, *, visible=None, causal=False, scale=0.4):
    """(result and gradients of the kernel, the same by the plain path in float64)."""

    def run(function, dtype):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        if isinstance(alpha, torch.Tensor):
            leaves.append(alpha.detach().to(DEVICE).clone().requires_grad_())
        out = function(*leaves)
        generator = torch.Generator().manual_seed(1)
        weights = torch.randn(out.shape, generator=generator).to(DEVICE, q.dtype).to(dtype)
        return [x.double() for x in (out.detach(), *torch.autograd.grad(out, leaves, weights))]

    grouped = q.shape[1] != k.shape[1]
    fused = run(
        lambda q, k, v, a=alpha: fused_attention(q, k, v, visible, causal, a, scale), q.dtype
    )
    plain = run(
        lambda q, k, v, a=alpha: px.attention(
            q, k, v, visible, 0.0, causal, scale, grouped, alpha=a
        ),
        torch.float64,
    )
    return fused, plain


def assert_close(fused, plain, tolerance=BFLOAT16):
    for mine, theirs in zip(fused, plain, strict=True):
        error = (mine - theirs).abs().max()
        assert error <= tolerance * theirs.abs().max().clamp_min(1e-3), error


@pytest.mark.parametrize("alpha", ALPHAS)
def test_values_and_gradients(alpha):
    visible = torch.rand(2, 1, 1, 13, generator=torch.Generator().manual_seed(0)) > 0.3
    assert_close(*both(*inputs(), alpha, visible=visible.to(DEVICE)))


@pytest.mark.parametrize("causal", [False, True])
def test_an_alpha_for_each_head_with_its_gradient(causal):
    fused, plain = both(*inputs(), PER_HEAD, causal=causal)
    assert_close(fused, plain)
    # one number a head, rounded nowhere: far more exact than the rest
    assert (fused[-1] - plain[-1]).abs().max() < 1e-3 * plain[-1].abs().max()


@pytest.mark.parametrize(
    "sizes",
    [
        {"queries": 1, "keys": 1},
        {"queries": 1, "keys": 128, "heads": 2},
        {"queries": 70, "keys": 5, "heads": 1, "items": 1},  # more than one tile of queries
        {"queries": 40, "keys": 70, "heads": 1, "items": 1, "size": 64, "values": 128},
        {"queries": 3, "keys": 17, "size": 33, "values": 16, "heads": 2},
        {"groups": 3},
        {"dtype": torch.float16},
    ],
    ids=str,
)
def test_sizes(sizes):
    assert_close(*both(*inputs(**sizes), 1.5))


LIMITS = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_learned_alphas_keep_to_a_third_of_what_half_precision_may_cost(dtype, spread):
    alphas = torch.tensor([1.0, 1.03, 1.07, 1.3, 1.6, 1.9, 1.98, 2.0, 2.4])
    q, k, v = inputs(items=1, heads=9, queries=20, keys=40, size=16, values=16, dtype=dtype)
    fused, plain = both(q, k, v, alphas, scale=spread / 8)  # scores of about this spread
    for mine, theirs in zip(fused, plain, strict=True):
        assert (mine - theirs).norm() < LIMITS[dtype] / 3 * theirs.norm()
    assert (fused[-1] - plain[-1]).norm() < 1e-4 * plain[-1].norm()  # it is rounded nowhere


def test_later_calls_by_addresses_alone(monkeypatch):
    """And none of them takes the plan of another; what differs in one thing alone, in turn."""
    if not ON_GPU:
        launch_by_addresses(monkeypatch)
    plans = [{}, {}]
    for name, found in zip(("_FORWARDS", "_BACKWARDS"), plans, strict=True):
        monkeypatch.setattr(short_attention, name, found)
    sizes = {"heads": 2, "queries": 5, "keys": 7}
    q, k, v = data = inputs(**sizes)
    visible = torch.rand(2, 2, 5, 7, generator=torch.Generator().manual_seed(0)).to(DEVICE) > 0.3
    alphas = PER_HEAD[2:4]
    cases = [
        (data, 1.5, {}),
        (inputs(**sizes | {"keys": 6}), 1.5, {}),
        (inputs(**sizes | {"values": 10}), 1.5, {}),
        (inputs(**sizes, groups=2), 1.5, {}),
        (inputs(**sizes, dtype=torch.float16), 1.5, {}),
        ((q.contiguous(), k, v), 1.5, {}),
        ((q, k, v.contiguous()), 1.5, {}),
        (data, 1.3, {}),
        (data, alphas, {}),
        (data, alphas.double(), {}),
        (data, 1.5, {"causal": True}),
        (data, 1.5, {"scale": 0.3}),
        (data, 1.5, {"visible": visible}),
        (data, 1.5, {"visible": visible[:, :, :1]}),
        (data, 1.5, {"visible": visible[:, :1]}),
    ]
    for _ in range(2):
        for arguments, alpha, options in cases:
            assert_close(*both(*arguments, alpha, **options))
        assert [len(found) for found in plans] == [len(cases), len(cases)]
    assert ON_GPU or Interpreted.again == 2 * len(cases)


def test_memory_that_is_not_aligned_is_launched_as_such(monkeypatch):
    monkeypatch.setattr(short_attention, "_FORWARDS", {})
    q, k, v = inputs(heads=2, queries=5, keys=7)
    room = k.new_empty(k.numel() + 1)
    shifted = room[1:].view(k.transpose(1, 2).shape).transpose(1, 2).copy_(k)
    assert shifted.data_ptr() % 16 != 0
    assert shifted.stride() == k.stride()
    found = [fused_attention(q, x, v, None, False, 1.5, 0.4) for x in (k, shifted, k)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert len(short_attention._FORWARDS) == 2


@pytest.mark.parametrize("heads_first", [False, True])
def test_results_lie_as_their_inputs_do(heads_first):
    leaves = [
        (x.contiguous() if heads_first else x).detach().requires_grad_()
        for x in inputs(heads=2, queries=5, keys=7)
    ]
    out = fused_attention(*leaves, None, False, 1.5, 0.4)
    results = (out, *torch.autograd.grad(out, leaves, torch.ones_like(out)))
    for x in results:
        assert (x if heads_first else x.transpose(1, 2)).is_contiguous()


def test_gradients_may_lie_anyhow():
    leaves = [x.detach().requires_grad_() for x in inputs(heads=2, queries=5, keys=7)]
    out = fused_attention(*leaves, None, False, 1.5, 0.4)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    wanted = torch.autograd.grad(out, leaves, g.contiguous(), retain_graph=True)
    for other in (g.transpose(1, 2).contiguous().transpose(1, 2), g.mT.contiguous().mT):
        found = torch.autograd.grad(out, leaves, other, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_mask_of_keys_is_the_same_written_out_for_all_queries():
    q, k, v = inputs(heads=2, queries=5)
    visible = torch.rand(2, 1, 1, 13, generator=torch.Generator().manual_seed(0)) > 0.3
    visible = visible.to(DEVICE)
    short = fused_attention(q, k, v, visible, True, 1.5, 0.4)
    long = fused_attention(q, k, v, visible.repeat(1, 1, 5, 1), True, 1.5, 0.4)
    assert torch.equal(short, long)


def test_half_precision_is_computed_in_float32_inside():
    # weights 1/3 are no bfloat16 numbers; a sum of 128 of them would be off by more than rounding
    q = torch.zeros(1, 1, 1, 16, dtype=torch.bfloat16, device=DEVICE)
    k = torch.zeros(1, 1, 3, 16, dtype=torch.bfloat16, device=DEVICE)
    v = torch.full((1, 1, 3, 16), 1.0, dtype=torch.bfloat16, device=DEVICE)
    assert (fused_attention(q, k, v, None, False, 1.5, 1.0) == 1.0).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, PER_HEAD], ids=str)
def test_a_query_that_sees_nothing_gets_zeros_and_gives_none(alpha):
    q, k, v = inputs(queries=7)
    visible = torch.ones(2, 1, 7, 13, dtype=torch.bool, device=DEVICE)
    visible[1, :, 4] = False
    fused, plain = both(q, k, v, alpha, visible=visible)
    assert (fused[0][1, :, 4] == 0).all()
    assert (fused[1][1, :, 4] == 0).all()
    assert_close(fused, plain)


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor([1.02, 1.4, 2.6])], ids=str)
def test_a_row_of_nan_has_such_gradients_and_no_other_row_has(alpha):
    q, k, v = inputs(items=1, heads=3, queries=5)
    q[0, 1, 3, 2] = torch.nan
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    out = fused_attention(*leaves, None, False, alpha, 0.4)
    gq, gk, gv = torch.autograd.grad(out.sum(), leaves)
    assert gq[0, 1, 3].isnan().all()
    assert gq.isnan().sum() == gq.shape[-1]
    for of_keys in (gk, gv):  # of which that query sees all
        assert of_keys[0, 1].isnan().all()
        assert not of_keys[0, ::2].isnan().any()


def test_a_bad_number_in_a_key_that_nobody_sees_does_no_harm():
    q, k, v = inputs(items=1, heads=6, queries=5)
    visible = torch.ones(1, 1, 1, 13, dtype=torch.bool, device=DEVICE)
    visible[..., 4] = False
    k[:, :, 4] = torch.nan
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = fused_attention(*leaves, visible, False, PER_HEAD.to(DEVICE), 0.4)
    assert out.isfinite().all()
    _gq, gk, gv = torch.autograd.grad(out.sum(), leaves)
    assert gk.isfinite().all()
    assert gv.isfinite().all()


def test_what_lies_beyond_lengths_does_not_matter(monkeypatch):
    q, k, v = inputs(heads=2, queries=5)
    lengths = torch.tensor([4, 13], device=DEVICE)
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[0, :, 4:], dirty_v[0, :, 4:] = torch.nan, torch.inf
    taken = []
    monkeypatch.setattr(functional, "kernel_alpha", lambda *_: 1.5)
    monkeypatch.setattr(
        functional, "fused_attention", lambda *x: taken.append(x) or fused_attention(*x)
    )

    def results(*tensors):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = px.attention(*leaves, key_lengths=lengths)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    for found, expected in zip(results(q, dirty_k, dirty_v), results(q, k, v), strict=True):
        assert torch.equal(found, expected)
    assert len(taken) == 2


def test_a_bad_number_stays_in_its_row_and_a_bad_alpha_in_its_head():
    q, k, v = inputs(items=1, heads=2, queries=5)
    q[0, 1, 3] = torch.nan
    out = fused_attention(q, k, v, None, False, 1.5, 1.0)
    assert out[0, 1, 3].isnan().all()
    assert out.isnan().sum() == out.shape[-1]
    alpha = torch.tensor([1.5, 0.5], device=DEVICE)
    out = fused_attention(q[:, :, :3], k, v, None, False, alpha, 1.0)
    assert out[0, 1].isnan().all()
    assert not out[0, 0].isnan().any()


def test_the_same_every_time():
    q, k, v = (x.detach().requires_grad_() for x in inputs())
    first, second = (
        torch.autograd.grad(fused_attention(q, k, v, None, False, 1.5, 0.3).sum(), (q, k, v))
        for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_gradient_of_the_gradient():
    few = inputs(items=1, heads=2, queries=3, keys=4)
    q, k, v = ((0.3 * x).detach().requires_grad_() for x in few)  # flat: nothing is all or nothing
    alpha = torch.tensor([1.4, 1.7], device=DEVICE, requires_grad=True)

    def penalty(attend):
        leaves = (q, k, v, alpha)
        first = torch.autograd.grad(attend().square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.float().square().sum() for g in first), leaves)

    mine = penalty(lambda: fused_attention(q, k, v, None, True, alpha, 0.5))
    theirs = penalty(
        lambda: px.attention(
            q.float(), k.float(), v.float(), is_causal=True, scale=0.5, alpha=alpha
        )
    )
    for a, b in zip(mine, theirs, strict=True):
        assert (a.float() - b.float()).abs().max() < 0.05 * b.float().abs().max()


def test_a_gradient_of_the_gradient_of_one_tensor_and_of_keys_that_lie_otherwise():
    (x, k, _) = (x.detach().requires_grad_() for x in inputs(1, 2, 5, 7, 8, 8))
    turned = k.detach().mT.contiguous().mT.requires_grad_()
    assert turned.stride(3) != 1

    def gradients(create_graph):
        out = fused_attention(x, turned, turned, None, False, 1.4, 0.5)
        out = out + fused_attention(x, x, x, None, True, 1.4, 0.5)
        return torch.autograd.grad(
            out.float().square().sum(), (x, turned), None, None, create_graph
        )

    for found, right in zip(gradients(True), gradients(False), strict=True):
        error = (found.double() - right.double()).abs().max()
        assert error <= 2 * BFLOAT16 * right.abs().max()


def test_what_32_bits_cannot_say_goes_elsewhere():
    k = v = torch.empty(1, 1, 8, 64, dtype=torch.bfloat16, device="meta")

    def taken(queries, stride):
        strides = (0, 0, stride, 1)
        q = torch.empty_strided((1, 1, queries, 64), strides, dtype=k.dtype, device="meta")
        return short_attention.fits(q, k, v)

    assert taken(1 << 19, 64)
    assert not taken(1 << 21, 64)  # more pieces than a grid has room for
    assert not taken(1 << 19, 1 << 12)  # rows too far from the first


def test_rows_of_masks_and_gradients_that_are_too_far_apart_for_32_bits(monkeypatch):
    """Are brought together; the limit is a small one here."""
    data = inputs()
    wide = torch.rand(2, 1, 19, 4096, generator=torch.Generator().manual_seed(0)).to(DEVICE) > 0.3
    visible = wide[..., :13]
    expected = both(*data, 1.4, visible=visible.contiguous())[0]
    monkeypatch.setattr(short_attention, "_FARTHEST", 19 * 1000)
    for mine, theirs in zip(both(*data, 1.4, visible=visible)[0], expected, strict=True):
        assert torch.equal(mine, theirs)
    given = []
    monkeypatch.setattr(short_attention, "run", lambda passes, key, given_, make: given.append(key))
    with pytest.raises(TypeError):
        short_attention.forward(*data, visible.expand(2, 6, 19, 13), False, 1.4, 0.4)
    assert given[0][8][2] == 13


def test_who_takes_the_kernel():
    q, k, v = inputs()
    assert kernel_alpha(q, k, v, 1.5, None, 0.0) == (1.5 if ON_GPU else None)
    if ON_GPU:
        mapping = px.mappings.parse
        assert kernel_alpha(q, k, v, 1.5, mapping("sparsemax"), 0.0) == 2.0
        assert kernel_alpha(q, k, v, PER_HEAD.cuda(), None, 0.0) is not None
        for refused in (
            (q, k, v, 1.5, None, 0.1),
            (q, k, v, 1.5, mapping("normmax"), 0.0),
            (q, k.float(), v, 1.5, None, 0.0),
            (q.double(), k.double(), v.double(), 1.5, None, 0.0),
        ):
            assert kernel_alpha(*refused) is None
        assert few_keys(q, k, v, 1.5)
        assert not few_keys(q, k, v, 2.5)
        assert not few_keys(q.float(), k.float(), v.float(), 1.5)
