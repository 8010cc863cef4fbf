"""MultiheadAttention against torch's own: same arguments, masks, layouts, outputs, gradients."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import parsimax as px
from parsimax._core.records import AttentionOutput

E, H, N, L, S = 8, 4, 3, 4, 5


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def pair(seed: int = 0, **arguments: Any) -> tuple[nn.MultiheadAttention, Any]:
    """Torch's module with random weights, and ours at alpha = 1 with the same, loaded strictly."""
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **arguments)
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data = rand(seed + i, *parameter.shape) / 2
    ours = px.nn.MultiheadAttention(E, H, dtype=torch.float64, alpha=1.0, **arguments)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def layout(x: Tensor, batched: bool, batch_first: bool) -> Tensor:
    if not batched:
        return x[0].contiguous()
    return x if batch_first else x.transpose(0, 1).contiguous()


@settings(max_examples=150, deadline=None)
@given(
    arguments=st.fixed_dictionaries(
        {
            "bias": st.booleans(),
            "add_bias_kv": st.booleans(),
            "add_zero_attn": st.booleans(),
            "kdim": st.sampled_from([None, E, 6]),
            "vdim": st.sampled_from([None, 7]),
            "batch_first": st.booleans(),
        }
    ),
    padding=st.sampled_from(["none", "bool", "added"]),
    mask=st.sampled_from(["none", "bool", "added", "bool 3-D", "added 3-D", "causal"]),
    batched=st.booleans(),
    need_weights=st.booleans(),
    average=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_torch_with_every_argument(
    arguments: dict[str, Any],
    padding: str,
    mask: str,
    batched: bool,
    need_weights: bool,
    average: bool,
    training: bool,
    seed: int,
) -> None:
    theirs, ours = pair(seed, **arguments)
    theirs.train(training)
    ours.train(training)
    inputs = [
        layout(rand(seed + i, N, length, size or E), batched, arguments["batch_first"])
        for i, (length, size) in enumerate(
            [(L, E), (S, arguments["kdim"]), (S, arguments["vdim"])], start=50
        )
    ]
    items = N if batched else 1
    # key 0 is never hidden, and queries see no later key than their own: no row is all masked
    padded = rand(seed + 60, items, S) > 0.5
    padded[:, 0] = False
    hidden = rand(seed + 61, items * H, L, S) > 0.5
    hidden[..., 0] = False
    later = torch.ones(L, S, dtype=torch.bool).triu(1)
    noise = rand(seed + 62, items * H, L, S)
    masks: dict[str, Tensor | None] = {
        "none": None,
        "bool": hidden[0],
        "added": noise[0].masked_fill(hidden[0], -torch.inf),
        "bool 3-D": hidden,
        "added 3-D": noise,
        "causal": later,
    }
    paddings: dict[str, Tensor | None] = {
        "none": None,
        "bool": padded,
        "added": rand(seed + 63, items, S).masked_fill(padded, -torch.inf),
    }
    padding_mask = paddings[padding]
    if padding_mask is not None and not batched:
        padding_mask = padding_mask[0]
    call = {
        "key_padding_mask": padding_mask,
        "need_weights": need_weights,
        "attn_mask": masks[mask],
        "average_attn_weights": average,
    }
    results = []
    for module in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in inputs]
        context, weights = module(*leaves, **call)
        total = (context * rand(seed + 70, *context.shape)).sum()
        if weights is not None:
            total = total + (weights * rand(seed + 71, *weights.shape)).sum()
        wanted = [*leaves, *module.parameters()]
        results.append((context, weights, *torch.autograd.grad(total, wanted)))
    for a, b in zip(*results, strict=True):
        if a is None:
            assert b is None
        else:
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("need_weights", [False, True])
def test_equals_torchs_fused_evaluation(need_weights: bool) -> None:
    theirs, ours = pair(batch_first=True)
    x = rand(9, N, L, E)
    padded = torch.zeros(N, L, dtype=torch.bool)
    padded[1, 2:] = True
    with torch.no_grad():
        expected = theirs.eval()(x, x, x, padded, need_weights)
        found = ours.eval()(x, x, x, padded, need_weights)
    torch.testing.assert_close(found.context, expected[0])
    assert (found.weights is None) == (expected[1] is None)
    if found.weights is not None:
        torch.testing.assert_close(found.weights, expected[1])


def test_dropout_is_torchs_and_only_in_training() -> None:
    theirs, ours = pair(dropout=0.4)
    x = rand(9, L, N, E)
    results = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        results.append(module.train()(x, x, x))
    torch.testing.assert_close(results[1][0], results[0][0])
    torch.testing.assert_close(results[1][1], results[0][1])
    calm = [module.eval()(x, x, x)[0] for module in (theirs, ours)]
    torch.testing.assert_close(calm[1], calm[0])
    assert not torch.allclose(calm[1], results[1][0])


def test_is_causal_needs_no_mask_and_leaves_appended_keys_visible() -> None:
    _, ours = pair(add_bias_kv=True, add_zero_attn=True)
    x = rand(9, L, N, E)
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    expected = ours(x, x, x, attn_mask=later)
    found = ours(x, x, x, is_causal=True)
    both = ours(x, x, x, is_causal=True, attn_mask=later)
    for a, b, c in zip(found, expected, both, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)
    assert found.weights.shape == (N, L, L + 2)
    assert (found.weights[..., -2:] > 0).all()


def test_a_query_that_sees_nothing_gets_the_bias_alone() -> None:
    _, ours = pair()
    x = rand(9, L, N, E).requires_grad_()
    padded = torch.zeros(N, L, dtype=torch.bool)
    padded[1] = True
    for mask in (padded, torch.zeros(N, L).double().masked_fill(padded, -torch.inf)):
        context, weights = ours(x, x, x, key_padding_mask=mask)
        assert not weights[1].any()
        torch.testing.assert_close(context[:, 1], ours.out_proj.bias.expand(L, E))
        gradients = torch.autograd.grad(context.sum(), [x, *ours.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not gradients[0][:, 1].any()


def test_returns_a_named_pair() -> None:
    _, ours = pair()
    x = rand(9, L, N, E)
    output = ours(x, x, x)
    assert isinstance(output, AttentionOutput)
    assert output.context is output[0]
    assert output.weights is output[1]


def test_signatures_are_torchs() -> None:
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
        ours = inspect.signature(getattr(px.nn.MultiheadAttention, method)).parameters
        shared = list(itertools.islice(ours.values(), len(theirs)))
        assert [(p.name, p.default) for p in shared] == [
            (p.name, p.default) for p in theirs.values()
        ]


def test_half_precision_and_autocast() -> None:
    _, ours = pair(add_bias_kv=True)
    x = rand(9, L, N, E)
    exact = ours(x, x, x)
    ours.float()
    with torch.autocast("cpu", torch.bfloat16):
        automatic = ours(x.float(), x.float(), x.float())
    ours.bfloat16()
    lowered = ours(x.bfloat16(), x.bfloat16(), x.bfloat16())
    for half in (automatic, lowered):
        assert half.context.dtype == half.weights.dtype == torch.bfloat16
        # projections in bfloat16 lose up to 2**-8 of each product of size 1 to 3
        torch.testing.assert_close(half.context.double(), exact.context, rtol=0, atol=0.06)
        torch.testing.assert_close(half.weights.double(), exact.weights, rtol=0, atol=0.03)


X = torch.zeros(L, N, E)


@pytest.mark.parametrize(
    ("error", "match", "given"),
    [
        (TypeError, "query must be a torch.Tensor, got list", {"query": [1.0]}),
        (ValueError, r"all be batched, \(L, N, E\).*got key of shape \(4, 8\)", {"key": X[:, 0]}),
        (ValueError, r"got query of shape \(1, 4, 3, 8\)", {"query": X[None]}),
        (ValueError, r"value must have size 8 .* \(4, 3, 7\)", {"value": X[..., :7]}),
        (ValueError, r"key and value must have the same length", {"value": X[:3]}),
        (ValueError, r"same batch, dimension 1", {"query": X[:, :2]}),
        (
            TypeError,
            "attn_mask must be bool .*True = hidden",
            {"attn_mask": torch.ones(L, L).int()},
        ),
        (ValueError, r"\(4, 4\) or \(12, 4, 4\), got \(3, 4\)", {"attn_mask": torch.ones(3, 4)}),
        (ValueError, r"\(3, 4\), got \(4, 3\)", {"key_padding_mask": torch.ones(4, 3)}),
        (TypeError, "key_padding_mask must be a tensor", {"key_padding_mask": [True]}),
        (TypeError, "is_causal must be True or False", {"is_causal": None}),
    ],
)
def test_bad_call(error: type[Exception], match: str, given: dict[str, Any]) -> None:
    module = px.nn.MultiheadAttention(E, H)
    with pytest.raises(error, match=match):
        module(**{"query": X, "key": X, "value": X, **given})


@pytest.mark.parametrize(
    ("error", "match", "given"),
    [
        (ValueError, "multiple of num_heads, got 8 and 3", {"num_heads": 3}),
        (ValueError, "num_heads must be at least 1, got 0", {"num_heads": 0}),
        (TypeError, "embed_dim must be an int, got float", {"embed_dim": 8.0}),
        (ValueError, "dropout must be a number from 0 to 1, got 2", {"dropout": 2}),
        (ValueError, "alpha must be at least 1", {"alpha": 0.9}),
        (ValueError, "each of the 4 heads, got 3", {"alpha": torch.ones(3)}),
        (ValueError, "alpha or mapping, not both", {"alpha": 2.0, "mapping": "softmax"}),
        (ValueError, "unknown mapping", {"mapping": "softmux"}),
        (TypeError, "mapping must be text", {"mapping": 1.5}),
        (
            ValueError,
            "Entmax holds a Parameter.*parsimax.nn.Entmax",
            {"mapping": px.mappings.Entmax(nn.Parameter(torch.tensor(1.5)))},
        ),
    ],
)
def test_bad_construction(error: type[Exception], match: str, given: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        px.nn.MultiheadAttention(**{"embed_dim": E, "num_heads": H, **given})


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        lambda: {"alpha": 1.5},
        lambda: {"alpha": nn.Parameter(torch.linspace(1.1, 2.0, H, dtype=torch.float64))},
        lambda: {"mapping": "sparsegen(lam=0.5)"},
        lambda: {"mapping": px.nn.Sparsemax()},
    ],
)
def test_without_weights_nothing_else_changes(choice: Any, causal: bool, extra: bool) -> None:
    arguments = {"add_bias_kv": extra, "add_zero_attn": extra, **choice()}
    ours = px.nn.MultiheadAttention(E, H, dtype=torch.float64, **arguments)
    x, memory = rand(1, L, N, E).requires_grad_(), rand(2, S, N, E).requires_grad_()
    hidden = torch.zeros(N, S, dtype=torch.bool)
    hidden[1, 3:] = hidden[2, :] = True
    added = rand(3, N * H, L, S).requires_grad_()
    leaves = [x, memory, added, *ours.parameters()]
    found = []
    for need_weights in (True, False):
        out, weights = ours(x, memory, memory, hidden, need_weights, added, is_causal=causal)
        assert (weights is not None) is need_weights
        found.append([out, *torch.autograd.grad(out, leaves, rand(4, L, N, E))])
    for with_weights, without in zip(*found, strict=True):
        torch.testing.assert_close(without, with_weights, rtol=1e-9, atol=1e-11)


def test_weights_that_nobody_needs_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []

    def attend(*arguments: Any) -> AttentionOutput:
        held.append(True)
        return AttentionOutput(arguments[2], None)

    monkeypatch.setattr("parsimax.attention.multihead.attend", attend)
    x = rand(1, 2, 5, E).float()
    layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=True)
    layer.self_attn = px.nn.MultiheadAttention(E, H, batch_first=True)
    layer(x, is_causal=True, src_mask=nn.Transformer.generate_square_subsequent_mask(5))
    assert not held
    layer.self_attn = px.nn.MultiheadAttention(E, H, batch_first=True, mapping=px.nn.Sparsemax())
    layer(x)
    assert held
