"""Attention at any alpha and with any mapping, against loops over Python numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention import loops
from torch import Tensor

import parsimax as px

B, HQ, LQ, LK, E, EV = 2, 4, 3, 5, 3, 2


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def qkv(seed: int = 0, kv_heads: int = HQ, lq: int = LQ, lk: int = LK) -> tuple[Tensor, ...]:
    q = 3 * rand(seed, B, HQ, lq, E)  # far enough apart for zeros
    return q, rand(seed + 1, B, kv_heads, lk, E), rand(seed + 2, B, kv_heads, lk, EV)


def make_alpha(kind: str, seed: int, lq: int) -> tuple[Any, Any]:
    """(what px.attention takes, the same as a function of item, head and query)."""
    if kind == "number":
        return 1.7, lambda b, h, i: 1.7
    shape = {"scalar": (), "head": (HQ,), "query": (lq, 1), "all": (B, HQ, lq, 1)}[kind]
    alpha = 1 + 1.5 * torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    alpha = alpha.double()
    full = (alpha.view(-1, 1, 1) if kind == "head" else alpha).expand(B, HQ, lq, 1)
    return alpha, lambda b, h, i: float(full[b, h, i, 0])


sides = st.sampled_from([None, -1, 0, 1, 2])
windows = st.one_of(st.none(), st.sampled_from([-1, 0, 1, 3]), st.tuples(sides, sides))


@settings(max_examples=80, deadline=None)
@given(
    alpha=st.sampled_from(["number", "scalar", "head", "query", "all"]),
    mask=st.sampled_from(["none", "bool", "added"]),
    causal=st.booleans(),
    scale=st.sampled_from([None, 1.3]),
    kv_heads=st.sampled_from([1, 2, 4]),
    lq=st.integers(1, 6),
    lk=st.integers(1, 6),
    align=st.sampled_from(["top-left", "bottom-right"]),
    window=windows,
    lengths=st.one_of(st.none(), st.tuples(st.integers(0, 6), st.integers(0, 6))),
    seed=st.integers(0, 1000),
)
def test_equals_loops_with_every_argument(
    alpha: str,
    mask: str,
    causal: bool,
    scale: float | None,
    kv_heads: int,
    lq: int,
    lk: int,
    align: str,
    window: Any,
    lengths: tuple[int, int] | None,
    seed: int,
) -> None:
    q, k, v = qkv(seed, kv_heads, lq, lk)
    value, function = make_alpha(alpha, seed, lq)
    noise = rand(seed + 3, B, 1, lq, lk)
    attn_mask = {"none": None, "bool": noise > -0.5, "added": noise}[mask]
    if lengths is not None:
        lengths = min(lengths[0], lk), min(lengths[1], lk)
    found = px.attention(
        q,
        k,
        v,
        attn_mask,
        0.0,
        causal,
        scale,
        enable_gqa=True,
        alpha=value,
        causal_align=align,
        window=window,
        key_lengths=None if lengths is None else torch.tensor(lengths),
    )
    expected, _ = loops.attention(
        q,
        k,
        v,
        function,
        mask=attn_mask,
        causal=causal,
        scale=scale,
        align=align,
        window=window,
        lengths=lengths,
    )
    # alpha was drawn in float32, and both solve in float64; bisection ends at about 1e-13
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_default_is_entmax_at_one_and_a_half() -> None:
    q, k, v = qkv()
    expected, weights = loops.attention(q, k, v, lambda b, h, i: 1.5)
    torch.testing.assert_close(px.attention(q, k, v), expected)
    assert (weights == 0).any()  # the inputs do show sparsity


@pytest.mark.parametrize("as_text", [True, False])
def test_any_mapping(as_text: bool) -> None:
    q, k, v = qkv()
    text = "sparsegen(lam=0.3)"
    mapping = text if as_text else px.mappings.parse(text)

    def sparsegen_row(z: Any, _: float) -> list[float]:  # sparsemax(z / (1 - lam))
        return loops.entmax_row([x / 0.7 for x in z], 2.0)

    expected, _ = loops.attention(
        q, k, v, lambda b, h, i: 0.0, causal=True, rows=sparsegen_row, align="bottom-right"
    )
    found = px.attention(q, k, v, is_causal=True, mapping=mapping, causal_align="bottom-right")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", sorted(px.mappings.registry()))
def test_every_registered_mapping_agrees_with_itself_on_the_scores(name: str) -> None:
    """Attention adds nothing to a mapping but scores, mask and values."""
    q, k, v = qkv()
    mapping = px.mappings.registry()[name]()
    mask = torch.ones(LQ, LK, dtype=torch.bool)
    mask[:, 2] = False
    scores = torch.einsum("bhie,bhje->bhij", q, k) / E**0.5
    expected = torch.einsum("bhij,bhje->bhie", mapping(scores, mask=mask), v)
    torch.testing.assert_close(px.attention(q, k, v, mask, mapping=mapping), expected)


@pytest.mark.parametrize("hidden", ["bool", "-inf", "lengths", "window"])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, "head"])
def test_a_query_that_sees_nothing_gives_zeros(hidden: str, alpha: Any) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    heads = torch.linspace(1, 2.5, HQ, dtype=torch.float64).requires_grad_()
    nothing: dict[str, Any] = {
        "bool": {"attn_mask": torch.zeros(LQ, LK, dtype=torch.bool)},
        "-inf": {"attn_mask": torch.full((LQ, LK), -torch.inf)},
        "lengths": {"key_lengths": torch.zeros(B, dtype=torch.int32)},
        "window": {"window": 0, "causal_align": "bottom-right", "is_causal": True},
    }
    if hidden == "window":  # six queries stand before the first key, the last one on it
        k, v = k[:, :, :1], v[:, :, :1]
    output = px.attention(q, k, v, alpha=heads if alpha == "head" else alpha, **nothing[hidden])
    blind = output[:, :, :-1] if hidden == "window" else output
    assert not blind.any()
    wanted = (q, k, v, heads) if alpha == "head" else (q, k, v)
    for gradient in torch.autograd.grad(blind.sum(), wanted):
        assert not gradient.any()  # NaN counts as something


def test_masked_keys_get_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    lengths = torch.tensor([2, 5])
    gradients = torch.autograd.grad(px.attention(q, k, v, key_lengths=lengths).sum(), (k, v))
    for gradient in gradients:
        assert not gradient[0, :, 2:].any()
        assert gradient[0, :, :2].any()


def test_learned_alpha_of_each_head_has_the_gradient_of_finite_differences() -> None:
    q, k, v = qkv(seed=4)
    direction = rand(9, B, HQ, LQ, EV)
    # at softmax, beside it, between, at sparsemax, and above
    alpha = torch.tensor([1.0, 1.001, 1.5, 2.2], dtype=torch.float64, requires_grad=True)

    def value(a: Tensor) -> Tensor:
        return (px.attention(q, k, v, is_causal=True, alpha=a) * direction).sum()

    (found,) = torch.autograd.grad(value(alpha), alpha)
    assert (found.abs() > 1e-4).all()
    step = 1e-5
    for h in range(HQ):
        moved = torch.zeros(HQ, dtype=torch.float64)
        moved[h] = step
        if h == 0:  # alpha cannot go below 1: a one-sided difference of second order
            ends = [value(alpha.detach() + n * moved) for n in (0, 1, 2)]
            slope = (-3 * ends[0] + 4 * ends[1] - ends[2]) / (2 * step)
        else:
            slope = (value(alpha.detach() + moved) - value(alpha.detach() - moved)) / (2 * step)
        # second-order differences: step**2 times a third derivative, plus 1e-15 / step of rounding
        torch.testing.assert_close(found[h], slope, rtol=1e-6, atol=1e-7)


def test_learned_alpha_can_have_any_shape_and_precision() -> None:
    q, k, v = qkv()
    for shape in [(), (1,), (HQ,), (HQ, 1, 1), (B, 1, 1, 1), (LQ, 1), (B, HQ, LQ, 1)]:
        alpha = torch.full(shape, 1.25, requires_grad=True)  # float32, with q in float64
        output = px.attention(q, k, v, alpha=alpha)
        torch.testing.assert_close(output, px.attention(q, k, v, alpha=1.25))
        (gradient,) = torch.autograd.grad(output[..., 0].sum(), alpha)
        assert gradient.shape == alpha.shape
        assert gradient.dtype == alpha.dtype
        assert gradient.isfinite().all()


def test_one_alpha_for_a_head_that_is_broadcast() -> None:
    """Heads that only k has count as heads."""
    q, k, v = qkv()
    alpha = torch.linspace(1, 2, HQ).double()
    found = px.attention(q[:, :1], k, v, alpha=alpha)
    torch.testing.assert_close(found, px.attention(q[:, :1].expand_as(q), k, v, alpha=alpha))


def test_half_precision_is_rounded_once() -> None:
    exact = [x.bfloat16() for x in qkv()]
    expected = px.attention(*(x.double() for x in exact), alpha=1.5)
    found = px.attention(*exact, alpha=1.5)
    assert found.dtype == torch.bfloat16
    # half a last place of bfloat16 is up to 2**-8 of the value; float32 inside adds 1e-5
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-5)
