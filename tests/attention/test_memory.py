"""Additive and bilinear attention, against their formulas written as loops."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from tests.attention.loops import entmax_row
from torch import Tensor, nn

import parsimax as px

B, LQ, LK, DQ, DM, DH = 2, 3, 5, 4, 6, 7


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def additive(query_dim: int | None = DQ, **arguments: Any) -> Any:
    torch.manual_seed(0)
    module = px.nn.AdditiveAttention(query_dim, DM, DH, dtype=torch.float64, **arguments)
    with torch.no_grad():
        module.score.weight *= 8  # far enough apart for zeros
    return module


def bilinear(**arguments: Any) -> Any:
    torch.manual_seed(0)
    return px.nn.BilinearAttention(DQ, DM, dtype=torch.float64, **arguments)


def additive_score(module: Any, q: list[float] | None, m: list[float]) -> float:
    """v' tanh(W_q q + W_m m + b)."""
    bias, total = module.memory_proj.bias, 0.0
    for h in range(DH):
        x = 0.0 if bias is None else bias.tolist()[h]
        x += dot(module.memory_proj.weight.tolist()[h], m)
        if q is not None:
            x += dot(module.query_proj.weight.tolist()[h], q)
        total += module.score.weight.tolist()[0][h] * math.tanh(x)
    return total


def bilinear_score(module: Any, q: list[float] | None, m: list[float]) -> float:
    """q' W m."""
    assert q is not None
    return dot(q, [dot(row, m) for row in module.weight.tolist()])


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def expected(
    module: Any, score: Any, query: Tensor | None, memory: Tensor, mask: Tensor | None, alpha: float
) -> tuple[Tensor, Tensor]:
    """Context and weights for query (B, Lq, Dq), or None for one row without a query."""
    length = 1 if query is None else query.shape[1]
    weights = torch.zeros(B, length, LK, dtype=torch.float64)
    for b in range(B):
        for i in range(length):
            q = None if query is None else query[b, i].tolist()
            scores = [
                score(module, q, memory[b, j].tolist())
                if mask is None or bool(mask[b, i, j])
                else -math.inf
                for j in range(LK)
            ]
            weights[b, i] = torch.tensor(entmax_row(scores, alpha), dtype=torch.float64)
    return torch.einsum("bij,bjd->bid", weights, memory), weights


@pytest.mark.parametrize("kind", ["additive", "additive without bias", "bilinear"])
@pytest.mark.parametrize("masked", ["no", "keys", "all"])
@pytest.mark.parametrize("one", [False, True])
def test_equals_the_formula(kind: str, masked: str, one: bool) -> None:
    if kind == "bilinear":
        module, score = bilinear(mapping="sparsemax"), bilinear_score
    else:
        module, score = additive(mapping="sparsemax", bias=kind == "additive"), additive_score
    query, memory = rand(1, B, LQ, DQ), rand(2, B, LK, DM)
    if one:
        query = query[:, :1]
    full = rand(3, B, query.shape[1], LK) > -0.3
    if masked == "keys":
        full = full[:, :1].expand_as(full)
    mask = {"no": None, "keys": full[:, 0], "all": full}[masked]
    if one and mask is not None and mask.ndim == 3:
        mask = mask[:, 0]
    found = module(query[:, 0] if one else query, memory, mask)
    context, weights = expected(
        module, score, query, memory, None if masked == "no" else full, alpha=2.0
    )
    if one:
        context, weights = context[:, 0], weights[:, 0]
    torch.testing.assert_close(found.context, context)
    torch.testing.assert_close(found.weights, weights)
    assert (weights == 0).any()


def test_attention_without_a_query() -> None:
    module, memory = additive(query_dim=None, mapping="entmax(alpha=1.5)"), rand(2, B, LK, DM)
    mask = torch.ones(B, LK, dtype=torch.bool)
    mask[0, 2:] = False
    context, weights = expected(module, additive_score, None, memory, mask[:, None], alpha=1.5)
    found = module(None, memory, mask)
    torch.testing.assert_close(found.context, context[:, 0])
    torch.testing.assert_close(found.weights, weights[:, 0])
    assert not any("query" in name for name, _ in module.named_parameters())


@pytest.mark.parametrize("make", [additive, bilinear])
def test_default_mapping_and_gradients(make: Any) -> None:
    module, query, memory = make(), rand(1, B, LQ, DQ), rand(2, B, LK, DM)
    score = additive_score if make is additive else bilinear_score
    torch.testing.assert_close(
        module(query, memory).weights, expected(module, score, query, memory, None, 1.5)[1]
    )
    query.requires_grad_()
    memory.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, m: tuple(module(q, m)), (query, memory))
    mask = torch.zeros(B, LK, dtype=torch.bool)
    context, weights = module(query, memory, mask)
    assert not context.any()
    assert not weights.any()
    for gradient in torch.autograd.grad(context.sum(), [query, memory, *module.parameters()]):
        assert not gradient.any()


@pytest.mark.parametrize("make", [additive, bilinear])
def test_a_mapping_that_is_learned(make: Any) -> None:
    alpha = nn.Parameter(torch.tensor(1.4, dtype=torch.float64))
    module = make(mapping=px.nn.Entmax(alpha))
    assert "mapping.alpha" in module.state_dict()
    query, memory = rand(1, B, LQ, DQ), rand(2, B, LK, DM)

    def value() -> Tensor:
        return (module(query, memory).context * rand(3, B, LQ, DM)).sum()

    (found,) = torch.autograd.grad(value(), alpha)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            alpha += sign * 1e-5
            ends.append(value())
            alpha -= sign * 1e-5
    torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("make", [additive, bilinear])
def test_inside_the_rest_of_torch(make: Any) -> None:
    torch._dynamo.reset()
    module, args = make(), (rand(1, B, LQ, DQ), rand(2, B, LK, DM), rand(3, B, LK) > 0)
    expected = module(*args)
    others = {
        "copy": copy.deepcopy(module),
        "pickle": pickle.loads(pickle.dumps(module)),
        "compile": torch.compile(module, fullgraph=True, backend="aot_eager"),
        "export": torch.export.export(module, args).module(),
    }
    for other in others.values():
        for a, b in zip(other(*args), expected, strict=True):
            torch.testing.assert_close(a, b)
    half = copy.deepcopy(module).bfloat16()(args[0].bfloat16(), args[1].bfloat16(), args[2])
    assert half.context.dtype == half.weights.dtype == torch.bfloat16
    assert "mapping=entmax(alpha=1.5)" in repr(module)


Q, M = torch.zeros(B, LQ, DQ).double(), torch.zeros(B, LK, DM).double()


@pytest.mark.parametrize(
    ("error", "match", "given"),
    [
        (TypeError, "memory must be a torch.Tensor", {"memory": None}),
        (
            ValueError,
            r"memory must have shape \(B, Lk, 6\), got shape \(2, 5, 4\)",
            {"memory": M[..., :4]},
        ),
        (
            ValueError,
            r"query must have shape \(B, 4\) or \(B, Lq, 4\), got shape \(2, 3, 3\)",
            {"query": Q[..., :3]},
        ),
        (ValueError, "same batch, got 1 in query .* and 2 in memory", {"query": Q[:1]}),
        (
            TypeError,
            "mask must be a bool tensor .*True = allowed.* got torch.float32",
            {"mask": torch.ones(B, LK)},
        ),
        (TypeError, "mask must be a bool tensor .* got list", {"mask": [True]}),
        (ValueError, r"\(2, 5\) or \(2, 3, 5\), got \(2, 3\)", {"mask": torch.ones(B, LQ).bool()}),
    ],
)
@pytest.mark.parametrize("make", [additive, bilinear])
def test_bad_call(make: Any, error: type[Exception], match: str, given: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        make()(**{"query": Q, "memory": M, **given})


def test_bad_query() -> None:
    with pytest.raises(ValueError, match="attention without one has query_dim=None"):
        additive()(None, M)
    with pytest.raises(ValueError, match="query must be None, because query_dim is None"):
        additive(query_dim=None)(Q, M)
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor, got NoneType"):
        bilinear()(None, M)
    for size, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="memory_dim must be"):
            px.nn.BilinearAttention(3, size)
