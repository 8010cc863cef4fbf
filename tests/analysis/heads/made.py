"""Attention made by hand, so that what every measure must say is known."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord


def looks_at(offset: int, size: int) -> Tensor:
    """One head: all weight at an offset, and on the token itself where there is none."""
    weights = torch.zeros(size, size)
    for query in range(size):
        key = query + offset
        weights[query, key if 0 <= key < size else query] = 1.0
    return weights


def uniform(size: int, causal: bool = False) -> Tensor:
    """One head: all visible keys alike."""
    seen = torch.ones(size, size)
    seen = seen.tril() if causal else seen
    return seen / seen.sum(-1, keepdim=True)


def record(
    *heads: Tensor,
    tokens: tuple[str, ...] | None = None,
    module: str = "encoder",
    queries: tuple[str, ...] | None = None,
    causal: bool = False,
) -> AttentionRecord:
    """A record of one layer."""
    weights = torch.stack(heads)[None]
    size = weights.shape[-1]
    names = tuple(f"w{n}" for n in range(size)) if tokens is None else tokens
    allowed = torch.ones(weights.shape[-2:], dtype=torch.bool).tril() if causal else None
    return AttentionRecord(names, weights, module, queries, allowed)
