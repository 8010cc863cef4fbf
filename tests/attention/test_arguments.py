"""What px.attention refuses, and that it says which argument, what was expected and what came."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import parsimax as px
from parsimax.attention import fused, tiled, visibility
from parsimax.attention.inputs import check_scale

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 5, 6)
NESTED = torch.nested.nested_tensor([K[0], V[0]])  # has no shape
EIGHT_BITS = torch.float8_e4m3fn
ONE = {"q": Q[0, 0], "k": K[0, 0], "v": V[0, 0]}  # without batch and heads


TYPE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("q must be a torch.Tensor, got list", {"q": [[1.0]]}),
    ("k must have a floating-point dtype, got torch.int64", {"k": K.long()}),
    ("same dtype, got torch.float32, torch.float64", {"k": K.double()}),
    ("attn_mask must be a tensor or None, got str", {"attn_mask": "causal"}),
    ("attn_mask must be bool .* got torch.int64", {"attn_mask": torch.ones(3, 5).long()}),
    ("dropout_p must be a number from 0 to 1, got str", {"dropout_p": "0.1"}),
    ("is_causal must be True or False, got int 1", {"is_causal": 1}),
    ("enable_gqa must be True or False, got str", {"enable_gqa": "yes"}),
    ("scale must be a finite number .* got Tensor", {"scale": torch.ones(())}),
    ("key_lengths must be a tensor or None, got list", {"key_lengths": [1, 2]}),
    ("key_lengths .* integer dtype, got torch.float32", {"key_lengths": torch.ones(2)}),
    ("key_lengths .* got torch.bool", {"key_lengths": torch.ones(2).bool()}),
    ("alpha must be a number or a tensor, got None", {"alpha": None}),
    ("alpha must have a floating-point dtype", {"alpha": torch.tensor([1, 2, 1, 1])}),
    ("mapping must be text", {"mapping": torch.softmax}),
    ("q must have a dtype of 16, 32 or 64 bits, got torch.float8", {"q": Q.to(EIGHT_BITS)}),
    ("k must be a dense tensor, got layout torch.sparse_coo", {"k": K.to_sparse()}),
    ("v must be a dense tensor, got a nested one", {"v": NESTED}),
    ("attn_mask must be a dense tensor, got a nested one", {"attn_mask": NESTED}),
    ("attn_mask .* got layout torch.sparse_coo", {"attn_mask": torch.ones(3, 5).to_sparse()}),
]
VALUE_ERRORS: list[tuple[str, dict[str, Any]]] = [
    ("must be on one device, got q on cpu, k on meta", {"k": K.to("meta")}),
    ("q, attn_mask must be on one device", {"attn_mask": torch.ones(3, 5).to("meta")}),
    (r"v must have at least two dimensions .* \(6,\)", {"v": V[0, 0, 0]}),
    (r"last dimension, got 7 in q .* and 8 in k", {"q": Q[..., :7]}),
    (r"same length, got 5 keys .* and 4 values", {"v": V[:, :, :4]}),
    (r"broadcast, got q \(2, 4, 3, 8\) and k \(2, 2.*enable_gqa", {"k": K[:, :2]}),
    (r"broadcast, got q .* and v \(3, 4, 5, 6\)$", {"v": V.new_zeros(3, 4, 5, 6)}),
    (
        r"leading dimensions of k and v must broadcast, got k \(2.* v \(3",
        {"q": Q[:1], "v": V.new_zeros(3, 4, 5, 6)},
    ),
    ("4 heads in q and 3 in k", {"k": K[:, :3], "v": V[:, :3], "enable_gqa": True}),
    ("4 heads in q and 3 in v", {"k": K[:, :2], "v": V[:, :3], "enable_gqa": True}),
    ("needs a dimension of heads", dict(**ONE, enable_gqa=True)),
    (r"broadcast, got q \(2.* k \(3", {"k": K.new_zeros(3, 2, 5, 8), "enable_gqa": True}),
    (r"scores \(2, 4, 3, 5\), got shape \(2, 5\)", {"attn_mask": torch.ones(2, 5)}),
    (r"got shape \(1, 1, 1, 3, 5\)", {"attn_mask": torch.ones(1, 1, 1, 3, 5)}),
    ("dropout_p must be a number from 0 to 1, got 1.5", {"dropout_p": 1.5}),
    ("dropout_p .* got nan", {"dropout_p": float("nan")}),
    ("scale must be a finite number .* got inf", {"scale": float("inf")}),
    ("scale must be a finite number .* got 10000", {"scale": 10**400}),
    ("causal_align must be one of top-left.*'bottom-right'", {"causal_align": "bottom_right"}),
    ("window must be None, an int from -1 up .* got -2", {"window": -2}),
    ("window .* got 1.5", {"window": 1.5}),
    ("window .* got True", {"window": True}),
    (r"window .* got \(1, 2, 3\)", {"window": (1, 2, 3)}),
    ("each of the 2 items of the batch, got 3", {"key_lengths": torch.ones(3).int()}),
    (r"key_lengths must have shape \(2,\) or \(\)", {"key_lengths": torch.ones(2, 1).int()}),
    ("without a batch", dict(**ONE, key_lengths=torch.ones(1).int())),
    (
        "every value of key_lengths must be from 0 to 5, got 6",
        {"key_lengths": torch.tensor([6, 1])},
    ),
    ("key_lengths must be from 0 to 5, got -1", {"key_lengths": torch.tensor([2, -1])}),
    ("alpha must be at least 1", {"alpha": 0.5}),
    ("every value of alpha must be at least 1", {"alpha": torch.tensor([1.0, 2.0, 0.9, 1.0])}),
    (
        r"shape \(4,\), one value for each head.*\(2, 4, 3, 1\), got shape \(3,\)",
        {"alpha": torch.ones(3)},
    ),
    (r"got shape \(3, 5\)", {"alpha": torch.ones(3, 5)}),
    (r"shape \(1,\), one value.*got shape \(3,\)", dict(**ONE, alpha=torch.ones(3))),
    ("alpha or mapping, not both: got alpha=2.0", {"alpha": 2.0, "mapping": "softmax"}),
    ("alpha or mapping, not both: got alpha=1.5", {"alpha": 1.5, "mapping": "softmax"}),
    ("unknown mapping 'softmux'.*did you mean 'softmax'", {"mapping": "softmux"}),
]


@pytest.mark.parametrize(("match", "given"), TYPE_ERRORS)
def test_type_error(match: str, given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=match):
        px.attention(**{"q": Q, "k": K, "v": V, **given})


@pytest.mark.parametrize(("match", "given"), VALUE_ERRORS)
def test_value_error(match: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=match):
        px.attention(**{"q": Q, "k": K, "v": V, **given})


def test_signature_is_torchs_with_ours_behind() -> None:
    parameters = inspect.signature(px.attention).parameters
    torchs = ["attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(parameters)[:8] == ["q", "k", "v", *torchs]
    assert [parameters[name].default for name in torchs] == [None, 0.0, False, None, False]
    ours = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert ours == {
        "alpha": 1.5,
        "mapping": None,
        "causal_align": "top-left",
        "window": None,
        "key_lengths": None,
    }
    assert "alpha: 'float | Tensor' = 1.5" in str(inspect.signature(px.attention))


@pytest.mark.parametrize("alpha", [True, "1.5", [1.5] * 4, np.full(4, 1.5), 1.5j])
def test_kernels_refuse_what_is_no_alpha_as_well(alpha: Any) -> None:
    """True would be softmax, for which nobody asked."""
    for refuse in (
        lambda: fused._alpha_of(alpha, None, 4),
        lambda: px.attention(Q, K, V, alpha=alpha),
    ):
        with pytest.raises(TypeError, match="alpha must be a number or a tensor, got"):
            refuse()
    assert type(fused._alpha_of(np.float32(1.5), None, 4)) is float


def test_a_scale_reaches_the_kernels_as_a_float() -> None:
    """Triton compiles others for whole numbers, one of them for 1 alone."""
    for scale in (1, 2, np.float64(0.5), None):
        assert type(check_scale(scale, 4)) is float


def test_lengths_may_have_any_integer_dtype_and_be_one_for_all() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(x.shape, generator=generator) for x in (Q, K, V))
    expected = px.attention(q, k[:, :, :2], v[:, :, :2])
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        for shape in ((2,), ()):
            lengths = torch.full(shape, 2, dtype=dtype)
            torch.testing.assert_close(px.attention(q, k, v, key_lengths=lengths), expected)
    one = px.attention(q[0, 0], k[0, 0], v[0, 0], key_lengths=torch.tensor(2))
    torch.testing.assert_close(one, expected[0, 0])


def test_lengths_that_were_counted_on_the_cpu_go_where_the_scores_are() -> None:
    q, k, v = (x.to("meta") for x in (Q, K, V))
    for lengths in (torch.tensor([2, 1]), torch.tensor(2)):
        assert px.attention(q, k, v, key_lengths=lengths).device.type == "meta"


def test_a_window_may_be_wider_than_any_integer_of_a_tensor() -> None:
    assert torch.equal(px.attention(Q + 1, K, V, window=10**30), px.attention(Q + 1, K, V))


@pytest.mark.parametrize("lead", [(), (1,)])
def test_keys_that_items_share_are_not_copied_for_each_length(lead: tuple[int, ...]) -> None:
    """What an item cannot see, and another can, is seen by that one alone."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(x.shape, generator=generator) for x in (Q, K, V))
    lengths = torch.tensor([2, 3])
    shared = [x[0].clone().view(*lead, *x.shape[1:]) for x in (k, v)]
    for x in shared:
        x[..., 3:, :] = torch.nan
    expected = [px.attention(q[i], *(x.view(K.shape[1:3] + x.shape[-1:])[:, :n] for x in shared))
                for i, n in enumerate((2, 3))]  # fmt: skip
    torch.testing.assert_close(px.attention(q, *shared, key_lengths=lengths), torch.stack(expected))
    if lead:
        wide = [x.expand(2, *x.shape[1:]) for x in shared]
        found = px.attention(q, *wide, key_lengths=lengths)
        torch.testing.assert_close(found, torch.stack(expected))
        within = visibility.within_lengths(lengths, torch.Size((2, 4, 3, 5)))[0]
        assert all(x.stride(0) == 0 for x in visibility.hide_beyond(within, *wide))


@pytest.mark.parametrize("tiles", [False, True])
def test_what_lies_beyond_the_lengths_does_not_matter(
    tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tiles:
        monkeypatch.setitem(tiled._LARGE, "cpu", -1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(x.shape, generator=generator) for x in (Q, K, V))
    lengths = torch.tensor([2, 3])
    dirty_k, dirty_v = k.clone(), v.clone()
    for item, length in enumerate(lengths.tolist()):
        dirty_k[item, :, length:] = torch.nan
        dirty_v[item, :, length:] = torch.inf

    def results(*inputs: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = px.attention(*leaves, key_lengths=lengths)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]

    for found, expected in zip(results(q, dirty_k, dirty_v), results(q, k, v), strict=True):
        torch.testing.assert_close(found, expected)
    one = px.attention(q[0, 0], dirty_k[0, 0], dirty_v[0, 0], key_lengths=torch.tensor(2))
    torch.testing.assert_close(one, px.attention(q[0, 0], k[0, 0, :2], v[0, 0, :2]))


@pytest.mark.parametrize("tiles", [False, True])
def test_a_length_for_each_head_of_queries_where_there_is_no_batch(
    tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that share keys may then see more or fewer of them."""
    if tiles:
        monkeypatch.setitem(tiled._LARGE, "cpu", -1)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(x.shape[1:], generator=generator) for x in (Q, K[:, :2], V[:, :2]))
    k[0, 2:], v[0, 4:] = torch.nan, torch.nan
    lengths = (2, 2, 5, 3)
    out = px.attention(q, k, v, enable_gqa=True, key_lengths=torch.tensor(lengths))
    for head, length in enumerate(lengths):
        alone = px.attention(q[head], k[head // 2, :length], v[head // 2, :length])
        torch.testing.assert_close(out[head], alone)
