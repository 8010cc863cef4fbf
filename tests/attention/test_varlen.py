"""px.attention.packed: each sequence as if it were alone, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.attention import loops
from torch import Tensor

import parsimax as px

LENGTHS_Q, LENGTHS_K = (3, 0, 5, 1), (4, 2, 2, 6)
HQ, H, E, EV = 4, 2, 3, 2


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def starts(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    keys = sum(LENGTHS_K)
    return 3 * rand(0, sum(LENGTHS_Q), HQ, E), rand(1, keys, H, E), rand(2, keys, H, EV)


@pytest.mark.parametrize("alpha", ["number", "head", "query"])
@pytest.mark.parametrize("window", [None, (1, 2)])
@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
def test_each_sequence_equals_loops(alpha: str, window: Any, align: str) -> None:
    q, k, v = inputs()
    value: Any = 1.4
    full = torch.full((len(q), HQ), 1.4, dtype=torch.float64)
    if alpha != "number":
        value = 1 + rand(3, HQ).sigmoid() if alpha == "head" else 1 + rand(3, len(q), HQ).sigmoid()
        full = value.expand(len(q), HQ)
    found = px.attention.packed(
        q,
        k,
        v,
        starts(LENGTHS_Q),
        starts(LENGTHS_K),
        is_causal=True,
        enable_gqa=True,
        alpha=value,
        causal_align=align,
        window=window,
    )
    assert found.shape == (len(q), HQ, EV)
    a = b = 0
    for lq, lk in zip(LENGTHS_Q, LENGTHS_K, strict=True):
        cut = (
            x.transpose(0, 1).unsqueeze(0) for x in (q[a : a + lq], k[b : b + lk], v[b : b + lk])
        )
        part = full[a : a + lq]
        expected, _ = loops.attention(
            *cut,
            lambda _, h, i, part=part: float(part[i, h]),
            causal=True,
            align=align,
            window=window,
        )
        torch.testing.assert_close(
            found[a : a + lq], expected[0].transpose(0, 1), rtol=1e-9, atol=1e-9
        )
        a, b = a + lq, b + lk


def test_gradients_stay_inside_a_sequence() -> None:
    q, k, v = (x.requires_grad_() for x in inputs())
    alpha = (1 + rand(3, HQ).sigmoid()).requires_grad_()

    def function(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return px.attention.packed(
            q, k, v, starts(LENGTHS_Q), starts(LENGTHS_K), enable_gqa=True, alpha=alpha
        )

    assert torch.autograd.gradcheck(function, (q, k, v, alpha))
    gk = torch.autograd.grad(function(q, k, v, alpha)[:3].sum(), k)[0]
    assert gk[:4].any()
    assert not gk[4:].any()


def test_any_mapping_and_the_same_lengths_for_keys() -> None:
    q, _, _ = inputs()
    found = px.attention.packed(q, q, q, starts(LENGTHS_Q), mapping="sparsegen(lam=0.3)")
    last = q[8:].transpose(0, 1)
    expected = px.attention(last, last, last, mapping="sparsegen(lam=0.3)")
    torch.testing.assert_close(found[8:], expected.transpose(0, 1))


def test_no_sequences_and_sequences_without_keys() -> None:
    nothing = torch.zeros(0, HQ, E)
    assert px.attention.packed(nothing, nothing, nothing, torch.tensor([0])).shape == (0, HQ, E)
    for wrong in ({"is_causal": 3}, {"alpha": 0.2}, {"window": -9}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            px.attention.packed(nothing, nothing, nothing, torch.tensor([0]), **wrong)
    q = torch.randn(3, HQ, E)
    found = px.attention.packed(
        q, q[:2], q[:2], torch.tensor([0, 1, 3]), torch.tensor([0, 2, 2]), alpha=2.0
    )
    assert found[0].any()
    assert not found[1:].any()


Q, K, V = torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), torch.zeros(4, 2, 6)
GOOD = torch.tensor([0, 1, 4])
TYPE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("q must be a torch.Tensor, got list", {"q": [1.0]}),
    ("k must have a floating-point dtype", {"k": K.long()}),
    ("cu_seqlens_q must be a tensor of integers, got list", {"cu_seqlens_q": [0, 4]}),
    ("cu_seqlens_q must have an integer dtype, got torch.float32", {"cu_seqlens_q": GOOD.float()}),
    ("is_causal must be True or False", {"is_causal": 1}),
    ("max_seqlen_q must be an int, got float", {"max_seqlen_q": 4.0}),
]
VALUE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    (r"q must have three dimensions .* \(1, 4, 2, 8\)", {"q": Q.unsqueeze(0)}),
    ("same total length, got 4 keys .* and 3 values", {"v": V[:3]}),
    ("cu_seqlens_q must have shape", {"cu_seqlens_q": torch.tensor(4)}),
    ("cu_seqlens_q must begin with 0, got 1", {"cu_seqlens_q": torch.tensor([1, 4])}),
    ("never decrease, got 3 and then 2", {"cu_seqlens_q": torch.tensor([0, 3, 2, 4])}),
    ("end with the total length of q, 4, got 5", {"cu_seqlens_q": torch.tensor([0, 5])}),
    ("end with the total length of k, 4, got 3", {"cu_seqlens_k": torch.tensor([0, 1, 3])}),
    ("as many sequences, got 2 and 1", {"cu_seqlens_k": torch.tensor([0, 4])}),
    ("cu_seqlens_k must be given .* 4 queries and 3 keys", {"k": K[:3], "v": V[:3]}),
    (r"broadcast to \(total, heads\) = \(4, 2\)", {"alpha": torch.ones(3, 2)}),
    (r"shape \(2,\), one value for each head", {"alpha": torch.ones(3)}),
    ("max_seqlen_k must be at least 1, got 0", {"max_seqlen_k": 0}),
    ("max_seqlen_q must be at least the length of the longest .*, 3, got 2", {"max_seqlen_q": 2}),
    (
        "max_seqlen_k must be at least the length of the longest .*, 3, got 2",
        {"max_seqlen_q": 3, "max_seqlen_k": 2},
    ),
    ("alpha or mapping, not both", {"alpha": 1.5, "mapping": "softmax"}),
]


@pytest.mark.parametrize(("message", "wrong"), TYPE_ERRORS + VALUE_ERRORS)
def test_errors_name_the_argument(message: str, wrong: dict[str, Any]) -> None:
    arguments = {"q": Q, "k": K, "v": V, "cu_seqlens_q": GOOD, **wrong}
    kind = TypeError if any(message == text for text, _ in TYPE_ERRORS) else ValueError
    with pytest.raises(kind, match=message):
        px.attention.packed(**arguments)
