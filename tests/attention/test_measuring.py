"""px.attention.statistics against the whole matrix of weights."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from tests.attention import loops
from torch import Tensor

import parsimax as px
from parsimax.attention import tiled, tiles

B, HQ, H, LQ, LK, E = 2, 4, 2, 11, 14, 3


@pytest.fixture(autouse=True, params=["one tile", "small tiles"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small tiles":
        monkeypatch.setitem(tiled._ROOM, "cpu", 30)
        monkeypatch.setattr(tiles, "_LEAST_ROWS", 1)


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def qk() -> tuple[Tensor, Tensor]:
    return 3 * rand(0, B, HQ, LQ, E), rand(1, B, H, LK, E)


def dense_scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhie,bhje->bhij", q, k.repeat_interleave(HQ // H, 1)) / E**0.5


@pytest.mark.parametrize("window", [None, (4, 1)])
@pytest.mark.parametrize("block", [1, 3, 64])
def test_counts_and_thresholds_of_entmax(window: Any, block: int) -> None:
    q, k = qk()
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.5], dtype=torch.float64)
    lengths = (14, 9)
    noise = rand(2, B, 1, LQ, LK)
    noise[0, 0, 3] = -torch.inf  # a query that sees nothing
    found = px.attention.statistics(
        q,
        k,
        noise,
        is_causal=True,
        enable_gqa=True,
        alpha=alpha,
        causal_align="bottom-right",
        window=window,
        key_lengths=torch.tensor(lengths),
        block_size=block,
    )
    _, weights = loops.attention(
        q,
        k,
        torch.zeros(B, H, LK, 1),
        lambda b, h, i: float(alpha[h]),
        mask=noise,
        causal=True,
        align="bottom-right",
        window=window,
        lengths=lengths,
    )
    rules = {"causal": True, "align": "bottom-right", "window": window}
    seen = torch.tensor(
        [[loops.sees(i, j, LQ, LK, **rules) for j in range(LK)] for i in range(LQ)]  # type: ignore[arg-type]
    )
    seen = seen & (torch.arange(LK) < torch.tensor(lengths).view(B, 1, 1, 1))
    seen = (seen & (noise > -torch.inf)).expand(B, HQ, LQ, LK)
    live = weights > 0
    assert torch.equal(found.support, live.sum(-1))
    assert torch.equal(found.visible, seen.sum(-1))
    rows, columns = -(-LQ // block), -(-LK // block)
    for there, counted in ((live, found.live_blocks), (seen, found.visible_blocks)):
        expected = torch.zeros(B, HQ, rows, dtype=torch.int64)
        for i, j in itertools.product(range(rows), range(columns)):
            part = there[..., i * block : (i + 1) * block, j * block : (j + 1) * block]
            expected[..., i] += part.flatten(2).any(-1)
        assert torch.equal(counted, expected)
    fraction = found.live_blocks.sum(-1) / found.visible_blocks.sum(-1)
    torch.testing.assert_close(found.live_fraction, fraction)
    # tau by its definition, and the threshold by what it says
    scores = torch.where(seen, dense_scores(q, k) + noise, -torch.inf)
    beta = (alpha - 1).view(HQ, 1, 1)
    assert found.tau is not None
    assert found.threshold is not None
    blind = ~seen.any(-1)
    assert blind.any()
    assert (found.tau[blind] == torch.inf).all()
    base = (beta * scores - found.tau.unsqueeze(-1)).clamp(min=0)
    again = torch.where(seen, base ** (1 / beta), 0.0)
    torch.testing.assert_close(again[:, 1:], weights[:, 1:], rtol=1e-7, atol=1e-9)
    assert torch.equal(scores > found.threshold.unsqueeze(-1), live)


CHOICES: dict[str, Any] = {
    "softmax": px.mappings.Softmax,
    "sparsemax": px.mappings.Sparsemax,
    "entmax": lambda: px.mappings.Entmax(1.25),
    "sparsegen": lambda: px.mappings.Sparsegen(-rand(5, HQ, 1, 1).exp()),
    "normmax": lambda: px.mappings.Normmax(1.5 + rand(5, LQ, 1).exp()),
    "budget": lambda: px.mappings.Budget(2.0),
    "budget of a tensor": lambda: px.mappings.Budget(1 + rand(5, B, 1, 1, 1).exp()),
}


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_a_key_has_weight_exactly_if_its_score_is_above_the_threshold(name: str) -> None:
    q, k = qk()
    mapping = CHOICES[name]()
    scores = dense_scores(q, k)
    weights = mapping(scores)
    found = px.attention.statistics(q, k, enable_gqa=True, mapping=mapping)
    assert torch.equal(found.support, (weights > 0).sum(-1))
    assert found.threshold is not None
    assert found.tau is not None
    clear = (scores - found.threshold.unsqueeze(-1)).abs() > 1e-12
    assert torch.equal((scores > found.threshold.unsqueeze(-1)) & clear, (weights > 0) & clear)
    if name == "sparsegen":
        rest = 1 - mapping.lam
        torch.testing.assert_close((scores / rest - found.tau.unsqueeze(-1)).clamp(min=0), weights)
    if name.startswith("budget"):
        torch.testing.assert_close((scores - found.tau.unsqueeze(-1)).clamp(0, 1), weights)
    if name == "normmax":
        power = (scores - found.tau.unsqueeze(-1)).clamp(min=0) ** (1 / (mapping.alpha - 1))
        torch.testing.assert_close(power / power.sum(-1, keepdim=True), weights)


@pytest.mark.parametrize("name", ["fusedmax", "oscarmax", "constrained_softmax"])
def test_other_mappings_have_supports_but_no_threshold(name: str) -> None:
    q, k = qk()
    mapping = px.mappings.registry()[name]()
    found = px.attention.statistics(q, k, enable_gqa=True, mapping=mapping)
    assert found.tau is None
    assert found.threshold is None
    assert torch.equal(found.support, (mapping(dense_scores(q, k)) > 0).sum(-1))
    torch.testing.assert_close(found.density, found.support / LK)


@pytest.mark.parametrize("mapping", [None, "sparsegen(lam=0.3)", "fusedmax"])
def test_compiled_without_a_break(mapping: Any) -> None:
    torch._dynamo.reset()
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.5], dtype=torch.float64)
    choice = {"alpha": alpha} if mapping is None else {"mapping": mapping}

    def function(q: Tensor, k: Tensor, noise: Tensor, lengths: Tensor) -> tuple[Any, ...]:
        found = px.attention.statistics(
            q,
            k,
            noise,
            is_causal=True,
            enable_gqa=True,
            causal_align="bottom-right",
            window=(4, -1),
            key_lengths=lengths,
            block_size=3,
            **choice,
        )
        fields = (getattr(found, field.name) for field in dataclasses.fields(found))
        return *fields, found.live_fraction, found.density

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for lq in (LQ, LQ + 2):
        q, k = 3 * rand(0, B, HQ, lq, E), rand(1, B, H, LK, E)
        args = (q, k, rand(2, lq, LK), torch.tensor([14, 9]))
        for mine, theirs in zip(compiled(*args), function(*args), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_it_is_frozen_has_no_gradient_and_says_what_is_wrong() -> None:
    q, k = qk()
    found = px.attention.statistics(q.requires_grad_(), k, enable_gqa=True)
    assert found.tau is not None
    assert not found.tau.requires_grad
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.support = found.visible  # type: ignore[misc]
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        px.attention.statistics(q, k, enable_gqa=True, block_size=0)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        px.attention.statistics(q, k)
    mapping = px.mappings.Sparsegen(torch.zeros(5, 1))
    with pytest.raises(ValueError, match=r"tensors broadcast to the scores \(2, 4, 11, 14\)"):
        px.attention.statistics(q, k, enable_gqa=True, mapping=mapping)


@pytest.mark.parametrize(
    ("kind", "message", "k"),
    [
        (TypeError, "^q and k must have the same dtype", torch.zeros(2, 4, 5, 8).double()),
        (ValueError, "leading dimensions of q and k must broadcast", torch.zeros(3, 4, 5, 8)),
    ],
)
def test_errors_speak_of_no_values(kind: type[Exception], message: str, k: Tensor) -> None:
    with pytest.raises(kind, match=message):
        px.attention.statistics(torch.zeros(2, 4, 3, 8), k)


def test_vmap_and_beside_a_gradient_of_torch_func() -> None:
    q, k = qk()

    def support(q: Tensor, k: Tensor) -> Tensor:
        return px.attention.statistics(q, k, is_causal=True, enable_gqa=True).support

    assert torch.vmap(support)(q, k).equal(support(q, k))

    def loss(q: Tensor) -> tuple[Tensor, Tensor]:
        return px.attention(q, k, k, enable_gqa=True).sum(), support(q, k)

    assert torch.func.grad(loss, has_aux=True)(q)[1].equal(support(q, k))
