"""MultiheadAttention with alpha fixed or learned, any mapping; loading, copying, compiling."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from tests.attention import loops
from torch import Tensor, nn

import parsimax as px

E, H, N, L = 8, 4, 2, 5


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def make(**arguments: Any) -> Any:
    torch.manual_seed(0)
    return px.nn.MultiheadAttention(E, H, batch_first=True, dtype=torch.float64, **arguments)


def by_loops(
    module: Any, x: Tensor, alpha: Any, rows: Any = loops.entmax_row
) -> tuple[Tensor, ...]:
    """Self-attention from the module's parameters and the loops."""
    w, b = module.in_proj_weight.detach(), module.in_proj_bias.detach()
    q, k, v = (
        (x @ w[i : i + E].T + b[i : i + E]).view(N, L, H, E // H).transpose(1, 2)
        for i in (0, E, 2 * E)
    )
    output, weights = loops.attention(q, k, v, alpha, rows=rows)
    joined = output.transpose(1, 2).reshape(N, L, E)
    return joined @ module.out_proj.weight.T + module.out_proj.bias, weights


ALPHAS = [1.0, 1.25, 1.5, 2.0]


@pytest.mark.parametrize("kind", ["tensor", "parameter", "module"])
def test_one_alpha_for_each_head(kind: str) -> None:
    values = torch.tensor(ALPHAS, dtype=torch.float64)

    class Constant(nn.Module):
        def forward(self) -> Tensor:
            return values

    alpha: Any = {"tensor": values, "parameter": nn.Parameter(values), "module": Constant()}[kind]
    module, x = make(alpha=alpha), 3 * rand(1, N, L, E)
    found = module(x, x, x, average_attn_weights=False)
    expected = by_loops(module, x, lambda b, h, i: ALPHAS[h])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert (found.weights == 0).any()


def test_default_is_entmax_at_one_and_a_half() -> None:
    module, x = make(), 3 * rand(1, N, L, E)
    expected, _ = by_loops(module, x, lambda b, h, i: 1.5)
    torch.testing.assert_close(module(x, x, x).context, expected)
    assert "alpha=1.5" in repr(module)


@pytest.mark.parametrize(
    "mapping",
    [
        "sparsegen(lam=0.3)",
        px.mappings.Sparsegen(0.3),
        px.nn.Sparsegen(nn.Parameter(torch.tensor(0.3))),
    ],
    ids=["text", "value", "module"],
)
def test_any_mapping(mapping: Any) -> None:
    module, x = make(mapping=mapping), rand(1, N, L, E)
    lam = torch.tensor(0.3).item()  # as float32 has it

    def rows(z: Any, _: float) -> list[float]:
        return loops.entmax_row([s / (1 - lam) for s in z], 2.0)

    expected, _ = by_loops(module, x, lambda b, h, i: 0.0, rows)
    torch.testing.assert_close(module(x, x, x).context, expected, rtol=1e-6, atol=1e-6)
    assert "lam=0.3" in repr(module)


def test_learned_alpha_gets_the_gradient_of_finite_differences_and_moves() -> None:
    module = make(alpha=px.nn.AdaptiveAlpha(H, dtype=torch.float64))
    x, direction = 2 * rand(1, N, L, E), rand(2, N, L, E)

    def value() -> Tensor:
        return (module(x, x, x).context * direction).sum()

    value().backward()
    found = module.alpha.a.grad.clone()
    assert (found.abs() > 1e-6).all()
    for h in range(H):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                module.alpha.a[h] += sign * 1e-5
                ends.append(value())
                module.alpha.a[h] -= sign * 1e-5
        torch.testing.assert_close(found[h], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)
    before = module.alpha().detach().clone()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert (module.alpha() != before).all()


def test_the_same_seed_gives_torchs_weights() -> None:
    for arguments in ({}, {"kdim": 6, "add_bias_kv": True}, {"bias": False}):
        torch.manual_seed(7)
        theirs = nn.MultiheadAttention(E, H, **arguments)
        torch.manual_seed(7)
        ours = px.nn.MultiheadAttention(E, H, **arguments)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)


def test_loading_is_strict_both_ways_unless_alpha_is_learned() -> None:
    theirs = nn.MultiheadAttention(E, H)
    for fixed in (1.5, torch.linspace(1, 2, H)):
        ours = px.nn.MultiheadAttention(E, H, alpha=fixed)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        theirs.load_state_dict(ours.state_dict(), strict=True)
    learned = px.nn.MultiheadAttention(E, H, alpha=px.nn.AdaptiveAlpha(H))
    with pytest.raises(RuntimeError, match=r"Missing key.*alpha\.a"):
        learned.load_state_dict(theirs.state_dict(), strict=True)
    assert learned.load_state_dict(theirs.state_dict(), strict=False).missing_keys == ["alpha.a"]


@pytest.mark.parametrize("arguments", [{}, {"kdim": 6, "vdim": 7, "bias": False}])
def test_from_torch(arguments: dict[str, Any]) -> None:
    theirs = nn.MultiheadAttention(
        E, H, dropout=0.25, add_bias_kv=True, batch_first=True, dtype=torch.float64, **arguments
    ).eval()
    theirs.out_proj.weight.requires_grad_(False)
    ours = px.nn.MultiheadAttention.from_torch(theirs, alpha=px.nn.AdaptiveAlpha(H))
    assert {name for name, _ in ours.named_parameters()} - {
        name for name, _ in theirs.named_parameters()
    } == {"alpha.a"}
    assert not ours.training
    assert not ours.out_proj.weight.requires_grad
    assert ours.dropout == 0.25
    dense = px.nn.MultiheadAttention.from_torch(theirs, mapping="softmax")
    inputs = rand(1, N, L, E), rand(2, N, 3, theirs.kdim), rand(3, N, 3, theirs.vdim)
    for a, b in zip(dense(*inputs), theirs(*inputs), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():  # a copy, not a view
        theirs.bias_k.zero_()
    assert dense.bias_k.any()


def test_from_torch_refuses_what_it_would_not_copy_wholly() -> None:
    theirs = nn.MultiheadAttention(E, H)
    theirs.relative = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match="relative"):
        px.nn.MultiheadAttention.from_torch(theirs)
    with pytest.raises(TypeError, match=r"torch\.nn\.MultiheadAttention, got Linear"):
        px.nn.MultiheadAttention.from_torch(nn.Linear(2, 2))


def test_torchs_encoder_layer_does_not_bypass_it() -> None:
    """In evaluation torch's layer may fuse everything with softmax, from our weights."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
    layer.self_attn = px.nn.MultiheadAttention(E, H, batch_first=True, alpha=2.0)
    x = 2 * rand(1, N, L, E).float()
    padded = torch.zeros(N, L, dtype=torch.bool)
    padded[0, 3:] = True
    trained = layer.train()(x, src_key_padding_mask=padded)
    with torch.inference_mode():
        found = layer.eval()(x, src_key_padding_mask=padded)
    torch.testing.assert_close(found, trained)


@pytest.mark.parametrize(
    "alpha", [1.5, torch.linspace(1, 2, H), nn.Parameter(torch.linspace(1.1, 2, H)), "adaptive"]
)
def test_copy_pickle_and_save(alpha: Any) -> None:
    def build() -> Any:
        value = px.nn.AdaptiveAlpha(H) if isinstance(alpha, str) else alpha
        return px.nn.MultiheadAttention(E, H, alpha=copy.deepcopy(value))

    module, x = build(), rand(1, L, N, E).float()
    expected = module(x, x, x)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    loaded = build()
    loaded.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        found = other(x, x, x)
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
    double = module.double()(x.double(), x.double(), x.double())
    torch.testing.assert_close(double.context.float(), expected.context)


def test_compile_and_export() -> None:
    torch._dynamo.reset()
    module, x = make(alpha=px.nn.AdaptiveAlpha(H)), rand(1, N, L, E)
    padded = torch.zeros(N, L, dtype=torch.bool)
    padded[0, 3:] = True
    expected = module(x, x, x, padded)
    wanted = list(module.parameters())
    gradients = torch.autograd.grad(expected.context.square().sum(), wanted)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found = compiled(x, x, x, padded)
    torch.testing.assert_close(found.context, expected.context)
    torch.testing.assert_close(found.weights, expected.weights)
    again = torch.autograd.grad(found.context.square().sum(), wanted)
    for a, b in zip(again, gradients, strict=True):
        torch.testing.assert_close(a, b)
    program = torch.export.export(module, (x, x, x, padded)).module()
    torch.testing.assert_close(program(x, x, x, padded)[0], expected.context)
