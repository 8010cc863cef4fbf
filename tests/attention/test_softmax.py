"""At alpha = 1 attention is F.scaled_dot_product_attention, whatever the arguments."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import parsimax as px

sdpa = F.scaled_dot_product_attention


def rand(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients(function: Any, inputs: list[Tensor], seed: int) -> tuple[Tensor, ...]:
    """(output, gradient of each input) for one random direction."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    cotangent = rand(seed, *output.shape, dtype=output.dtype)
    return output.detach(), *torch.autograd.grad(output, leaves, cotangent)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Any combination of what scaled_dot_product_attention takes."""
    gqa = draw(st.booleans())
    lead: tuple[int, ...] = draw(st.sampled_from([(), (2,), (2, 4), (3, 2, 4), (1, 4)]))
    kv_lead = lead
    if gqa:
        lead = draw(st.sampled_from([(4,), (2, 4), (3, 2, 4)]))
        kv_lead = (*lead[:-1], draw(st.sampled_from([1, 2, 4])))
    elif lead and draw(st.booleans()):  # batches broadcast
        kv_lead = (1, *lead[1:])
    lq, lk = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    e, ev = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    one_head = (*lead[:-1], 1, lq, lk) if lead else (lq, lk)
    mask_shape = draw(
        st.sampled_from([(lq, lk), (1, lk), (lq, 1), (*lead, lq, lk), one_head, (*lead, 1, lk)])
    )
    return {
        "q": (*lead, lq, e),
        "k": (*kv_lead, lk, e),
        "v": (*kv_lead, lk, ev),
        "mask_shape": mask_shape,
        "mask": draw(st.sampled_from(["none", "bool", "added", "added -inf"])),
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3, -0.7, 0.0, 2])),
        "enable_gqa": gqa,
        "seed": draw(st.integers(0, 2**20)),
    }


def make_mask(problem: dict[str, Any]) -> Tensor | None:
    kind, seed = problem["mask"], problem["seed"]
    noise = rand(seed + 3, *problem["mask_shape"])
    if kind == "none":
        return None
    if kind == "bool":
        return noise > 0
    return noise if kind == "added" else noise.masked_fill(noise > 0.3, -torch.inf)


def both(mask: Tensor | None, lq: int, lk: int, causal: bool) -> tuple[Tensor | None, bool]:
    """A mask and causality as one mask, because torch takes only one of them."""
    if mask is None or not causal:
        return mask, causal
    lower = torch.ones(lq, lk, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return mask & lower, False
    return torch.where(lower, mask, -torch.inf), False


@settings(max_examples=200, deadline=None)
@given(problems())
def test_equals_torch_with_every_argument(problem: dict[str, Any]) -> None:
    seed, lq, lk = problem["seed"], problem["q"][-2], problem["k"][-2]
    inputs = [rand(seed + i, *problem[name]) for i, name in enumerate("qkv")]
    mask = make_mask(problem)
    learned_mask = mask is not None and mask.is_floating_point()
    if mask is not None and learned_mask:
        inputs.append(mask)
    common = {"scale": problem["scale"], "enable_gqa": problem["enable_gqa"]}

    def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = mask) -> Tensor:
        causal = problem["is_causal"]
        return px.attention(q, k, v, bias, is_causal=causal, alpha=1.0, **common)

    def theirs(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = mask) -> Tensor:
        bias, causal = both(bias, lq, lk, problem["is_causal"])
        return sdpa(q, k, v, bias, is_causal=causal, **common)

    with sdpa_kernel(SDPBackend.MATH):  # the one that differentiates an added mask
        expected = gradients(theirs, inputs, seed + 7)
    for a, b in zip(gradients(ours, inputs, seed + 7), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# float32: sums of a few dozen products in another order; 1e-5 is a hundred roundings.
# Half precision: both compute in float32 and round once, so they may differ by one last place of
# the largest value around, 2**-7 (bfloat16) or 2**-10 (float16) of about 3.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3 * 2**-7, torch.float16: 3 * 2**-10}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("masked", ["no", "bool", "added"])
def test_equals_torch_in_every_precision(dtype: torch.dtype, masked: str) -> None:
    inputs = [rand(i, 2, 3, 40, 16, dtype=dtype) for i in range(3)]
    noise = rand(3, 2, 1, 40, 40, dtype=torch.float32)
    mask = {"no": None, "bool": noise > 0, "added": noise.to(dtype)}[masked]
    expected = gradients(lambda q, k, v: sdpa(q, k, v, mask), inputs, 9)
    found = gradients(lambda q, k, v: px.attention(q, k, v, mask, alpha=1.0), inputs, 9)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_accurate_as_torch(dtype: torch.dtype) -> None:
    """Large scores: if those were rounded to half precision, the error would be ten times this."""
    inputs = [rand(i, 2, 4, 64, 64, dtype=dtype) * (3 if i < 2 else 1) for i in range(3)]
    exact = sdpa(*(x.double() for x in inputs))
    with sdpa_kernel(SDPBackend.MATH):
        torchs = (sdpa(*inputs).double() - exact).abs().max()
    ours = (px.attention(*inputs, alpha=1.0).double() - exact).abs().max()
    assert ours <= torchs * 1.01  # the one rounding at the end is all there is


def test_an_added_mask_of_float32_may_go_with_half_precision() -> None:
    q, k, v = (rand(i, 2, 5, 4, dtype=torch.bfloat16) for i in range(3))
    mask = rand(3, 5, 5, dtype=torch.float32)
    expected = sdpa(q.float(), k.float(), v.float(), mask).bfloat16()
    torch.testing.assert_close(px.attention(q, k, v, mask, alpha=1.0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_what_torch_casts(dtype: torch.dtype) -> None:
    q, k, v = (rand(i, 2, 3, 5, 4, dtype=torch.float32) for i in range(3))
    with torch.autocast("cpu", dtype):
        ours, theirs = px.attention(q, k, v, alpha=1.0), sdpa(q, k, v)
        mixed = px.attention(q, k.to(dtype), v, alpha=1.0)
        double = px.attention(q.double(), k.double(), v.double(), alpha=1.0)
        inside = torch.mm(q[0, 0], k[0, 0].mT)  # our switch was for our own products alone
    assert ours.dtype == theirs.dtype == mixed.dtype == inside.dtype == dtype
    assert double.dtype == torch.float64
    # not the product of lowered scores: the same as casting first and computing without autocast
    plain = px.attention(q.to(dtype), k.to(dtype), v.to(dtype), alpha=1.0)
    assert torch.equal(ours, plain)
    assert torch.equal(ours, mixed)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE[dtype])


def test_dropout_is_torchs() -> None:
    """The same seed drops the same weights, and a kept weight grows by 1 / (1 - p)."""
    q, k, v = (rand(i, 2, 3, 20, 4) for i in range(3))
    with sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(5)
        expected = sdpa(q, k, v, dropout_p=0.4)
    torch.manual_seed(5)
    torch.testing.assert_close(px.attention(q, k, v, dropout_p=0.4, alpha=1.0), expected)
    assert not px.attention(q, k, v, dropout_p=1.0).any()


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 3, 4), (2, 0, 4), (2, 0, 5)),  # no key: zeros
        ((2, 0, 4), (2, 3, 4), (2, 3, 5)),  # no query
        ((0, 3, 4), (0, 3, 4), (0, 3, 5)),  # no batch
        ((2, 3, 0), (2, 3, 0), (2, 3, 5)),  # no size: all scores are equal
        ((2, 3, 4), (2, 3, 4), (2, 3, 0)),
    ],
)
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_empty_sizes(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], alpha: float
) -> None:
    inputs = rand(0, *q), rand(1, *k), rand(2, *v)
    expected = sdpa(*inputs)  # where weights are equal or absent, every alpha agrees
    found = px.attention(*inputs, alpha=alpha)
    assert found.shape == expected.shape
    if alpha == 1.0 or q[-1] == 0 or k[-2] == 0:
        torch.testing.assert_close(found, expected)


def test_not_contiguous_and_stride_zero() -> None:
    q = rand(0, 2, 6, 3, 4).transpose(1, 2)
    k = rand(1, 2, 1, 5, 4).expand(2, 3, 5, 4)
    v = rand(2, 4, 5, 3, 2).permute(3, 2, 1, 0)
    for heads, causal in itertools.product((False, True), (False, True)):
        expected = sdpa(q, k, v, is_causal=causal)
        found = px.attention(q, k, v, is_causal=causal, enable_gqa=heads, alpha=1.0)
        torch.testing.assert_close(found, expected)
