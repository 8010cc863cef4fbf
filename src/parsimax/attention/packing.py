"""Sequences with gaps, packed: what a mask allows comes first, in order, and lengths say how much.

Structures are cut by lengths. A mask that forbids a position in the middle removes it, and its
neighbours become adjacent: the positions are moved together, solved, and moved back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the positions of a sequence go."""

    lengths: Tensor  # (B,)
    order: Tensor | None  # (B, L): place i is taken by position order[:, i]; None: as they stand
    back: Tensor | None  # (B, L): position i went to place back[:, i]

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """From a bool mask (B, L), True = allowed."""
        lengths = mask.sum(-1)
        places = torch.arange(mask.shape[-1], device=mask.device)
        if torch.equal(mask, places < lengths.unsqueeze(-1)):
            return cls(lengths, None, None)
        order = torch.argsort(~mask, dim=-1, stable=True)
        return cls(lengths, order, torch.argsort(order, dim=-1))

    def pack(self, x: Tensor, dim: int) -> Tensor:
        """Move the positions along ``dim`` of (B, ...) together."""
        return x if self.order is None else _take(x, self.order, dim)

    def unpack(self, x: Tensor, dim: int) -> Tensor:
        """Move them back to where they were."""
        return x if self.back is None else _take(x, self.back, dim)


def _take(x: Tensor, index: Tensor, dim: int) -> Tensor:
    dim = dim % x.ndim
    shape = [1] * x.ndim
    shape[0], shape[dim] = index.shape
    return torch.take_along_dim(x, index.reshape(shape), dim)


def check_positions(mask: Tensor | None, name: str, like: Tensor) -> Tensor:
    """A bool mask (B, L) for ``like`` (B, L, size); None allows all of them."""
    if mask is None:
        return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    return _check(mask, name, like.shape[:2])


def check_cells(mask: Tensor, name: str, scores: Tensor) -> Tensor:
    """A bool mask in the shape of the scores."""
    return _check(mask, name, scores.shape)


def _check(mask: object, name: str, shape: torch.Size) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name} must be a bool tensor (True = allowed) or None, got {got}")
    if mask.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(mask.shape)}")
    return mask
