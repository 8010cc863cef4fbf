"""Tensors on the CPU stay there, whatever torch's default device is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import parsimax as px
from parsimax.attention import tiled

Z = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
Q = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(1))
SQUARES = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(2))
DIAGONALS = torch.eye(4).repeat(2, 1, 1)
TARGET, LENGTHS = torch.tensor([0, 1, 2]), torch.tensor([3, 5])
BOUNDS, HEADS, STEPS = torch.full((6,), 0.5), torch.tensor([1.3, 1.6]), torch.zeros(3, 4, 4)
WEIGHT, STARTS, TABLE = Z[:, :4].repeat(2, 1), torch.tensor([0, 2, 5]), torch.tensor([[0], [1]])
MAPPINGS = [
    *sorted(set(px.mappings.registry()) - {"constrained_softmax", "constrained_sparsemax"}),
    "entmax(alpha=1.3)",
    "entmax(alpha=3.0)",
]


def _with_gradient(x: Tensor, function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    out = function(leaf)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaf)]


def _structured(structure: px.structured.Structure, scores: Tensor = SQUARES) -> list[Tensor]:
    return _with_gradient(scores, lambda s: px.sparsemap(s, structure).marginals)


CASES: dict[str, Callable[[], list[Tensor]]] = {
    **{text: lambda text=text: _with_gradient(Z, px.mappings.parse(text)) for text in MAPPINGS},
    "budget": lambda: _with_gradient(Z, lambda z: px.budget(z, k=2)),
    "constrained_softmax": lambda: _with_gradient(Z, lambda z: px.constrained_softmax(z, BOUNDS)),
    "constrained_sparsemax": lambda: _with_gradient(
        Z, lambda z: px.constrained_sparsemax(z, BOUNDS)
    ),
    "entmax_loss": lambda: _with_gradient(Z, lambda z: px.entmax_loss(z, TARGET)),
    "entmax_loss of probabilities": lambda: _with_gradient(
        Z, lambda z: px.entmax_loss(z, px.softmax(Z), label_smoothing=0.1)
    ),
    "fenchel_young_loss": lambda: _with_gradient(
        Z, lambda z: px.fenchel_young_loss(z, TARGET, "sparsegen(lam=0.5)")
    ),
    "linear_entmax_loss": lambda: _with_gradient(
        Z[:, :4], lambda h: px.linear_entmax_loss(h, WEIGHT, TARGET, label_smoothing=0.1)
    ),
    "attention": lambda: _with_gradient(
        Q, lambda q: px.attention(q, Q, Q, window=2, key_lengths=LENGTHS, alpha=HEADS)
    ),
    "packed": lambda: _with_gradient(
        Q[0].transpose(0, 1), lambda q: px.attention.packed(q, q, q, STARTS)
    ),
    "decode": lambda: [px.attention.decode(Q[:, :, :1], Q, Q, LENGTHS)],
    "decode from pages": lambda: [px.attention.decode(Q[:, :, :1], Q, Q, LENGTHS, TABLE)],
    "statistics": lambda: [px.attention.statistics(Q, Q, is_causal=True).support],
    "matching": lambda: _structured(px.structured.Matching()),
    "sequence": lambda: _structured(px.structured.Sequence(STEPS)),
    "arborescence": lambda: _structured(px.structured.Arborescence()),
    "projective tree": lambda: _structured(px.structured.ProjectiveTree()),
    "monotone alignment": lambda: _structured(px.structured.MonotoneAlignment()),
    "structure of budget": lambda: _structured(px.structured.Budget(2), Z),
    "sparsemap_loss": lambda: _with_gradient(
        SQUARES,
        lambda s: px.sparsemap_loss(s, DIAGONALS, px.structured.Matching()),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_the_same(case: str) -> None:
    expected = CASES[case]()
    with torch.device("meta"):
        found = CASES[case]()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_dropout_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiled._LARGE, "cpu", -1)
    with torch.device("meta"):
        out = px.attention(Q, Q, Q, dropout_p=0.5)
    assert out.device.type == "cpu"
    assert out.isfinite().all()
