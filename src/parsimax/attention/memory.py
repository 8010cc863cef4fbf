"""What attention over a memory shares: shapes, masks, and the weighted sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from parsimax._core.masks import same_shape
from parsimax._core.records import AttentionOutput
from parsimax.mappings import Mapping


def check_memory(memory: Tensor, memory_dim: int, name: str = "memory", length: str = "Lk") -> None:
    """(B, Lk, memory_dim)."""
    if not isinstance(memory, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(memory).__name__}")
    if memory.ndim != 3 or memory.shape[-1] != memory_dim:
        raise ValueError(
            f"{name} must have shape (B, {length}, {memory_dim}), got shape {tuple(memory.shape)}"
        )


def check_query(query: Tensor, memory: Tensor, query_dim: int) -> None:
    """(B, query_dim) or (B, Lq, query_dim), with the memory's B."""
    if not isinstance(query, Tensor):
        raise TypeError(f"query must be a torch.Tensor, got {type(query).__name__}")
    if query.ndim not in (2, 3) or query.shape[-1] != query_dim:
        raise ValueError(
            f"query must have shape (B, {query_dim}) or (B, Lq, {query_dim}), got shape "
            f"{tuple(query.shape)}"
        )
    if query.shape[0] != memory.shape[0]:
        raise ValueError(
            f"query and memory must have the same batch, got {query.shape[0]} in query "
            f"{tuple(query.shape)} and {memory.shape[0]} in memory {tuple(memory.shape)}"
        )


def read_memory(
    scores: Tensor, memory: Tensor, mask: Tensor | None, mapping: Mapping | nn.Module
) -> AttentionOutput:
    """Weights from scores (B, Lq, Lk), or (B, Lk) for one query, and what they select."""
    mask = check_mask(mask, scores)
    weights: Tensor = mapping(scores, mask=mask)
    if weights.ndim == 2:
        return AttentionOutput((weights.unsqueeze(1) @ memory).squeeze(1), weights)
    return AttentionOutput(weights @ memory, weights)


def check_mask(mask: Tensor | None, scores: Tensor) -> Tensor | None:
    """True = allowed; (B, Lk) for all queries, or (B, Lq, Lk)."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a bool tensor (True = allowed) or None, got {got}")
    of_keys = (scores.shape[0], scores.shape[-1])
    if same_shape(mask.shape, of_keys):
        return mask.unsqueeze(1) if scores.ndim == 3 else mask
    if not same_shape(mask.shape, scores.shape):
        or_each = f" or {tuple(scores.shape)}" if scores.ndim == 3 else ""
        raise ValueError(f"mask must have shape {of_keys}{or_each}, got {tuple(mask.shape)}")
    return mask
