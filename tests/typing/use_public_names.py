"""What a user writes, read by mypy --strict: every public name has a useful type.

Pytest imports this file too, so it also has to run.
"""

from typing import assert_type

import torch
from torch import Tensor

import parsimax as px
from parsimax import entmax
from parsimax.attention import MultiheadAttention


def mappings(z: Tensor, alpha: Tensor) -> Tensor:
    assert_type(px.softmax(z), Tensor)
    assert_type(px.sparsemax(z, dim=0), Tensor)
    assert_type(px.entmax(z, alpha=1.5), Tensor)
    assert_type(px.entmax(z, alpha=alpha), Tensor)
    assert_type(px.sparsegen(z, lam=0.5), Tensor)
    assert_type(px.normmax(z, alpha=2.0), Tensor)
    assert_type(px.budget(z, k=2), Tensor)
    assert_type(px.fusedmax(z, lam=0.1), Tensor)
    assert_type(px.oscarmax(z, lam=z[:1]), Tensor)
    assert_type(px.constrained_softmax(z, z + 1.0), Tensor)
    assert_type(px.constrained_sparsemax(z, upper=0.5, lower=z), Tensor)
    return entmax(z, mask=z > 0)


def losses(z: Tensor, target: Tensor) -> Tensor:
    assert_type(px.sparsemax_loss(z, target), Tensor)
    return px.entmax_loss(z, target, alpha=1.5)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    assert_type(px.attention.packed(q, k, v, torch.tensor([0, 1])), Tensor)
    assert_type(px.attention.decode(q, k, v, is_causal=False), Tensor)
    assert_type(px.attention.statistics(q, k).support, Tensor)
    return px.attention(q, k, v, alpha=1.5)


def modules() -> tuple[object, type[MultiheadAttention]]:
    return px.nn, MultiheadAttention


def huggingface(model: torch.nn.Linear) -> dict[str, Tensor]:
    assert_type(px.huggingface.enable(model, alpha=1.5, learn_alpha=True), torch.nn.Linear)
    return px.huggingface.alphas(model)


def misspelt(z: Tensor) -> object:
    return px.entmux(z)  # type: ignore[attr-defined]


mappings(torch.zeros(2), torch.full((1,), 1.5))
