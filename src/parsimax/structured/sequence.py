"""Sequences of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Structure, sums_from_one


@dataclass(frozen=True, eq=False)
class Sequence(Structure):
    """One label for each position, with a score for each pair of neighbouring labels.

    Scores are (B, n, k). ``transitions`` are (B, n - 1, k, k), as [position, label, next label], or
    (n - 1, k, k) or (k, k), shared by the batch or also by all positions; None for no transitions,
    which makes every position a sparsemax of its own. They are differentiable, enter linearly, and
    may be -inf where a label must not follow another. The oracle is Viterbi's algorithm.

    >>> import torch, parsimax as px
    >>> scores = torch.tensor([[[1.0, 0.0], [0.2, 0.0], [0.0, 0.3]]])
    >>> stay = px.structured.Sequence(torch.tensor([[0.5, 0.0], [0.0, 0.5]]))
    >>> px.sparsemap(scores, stay).marginals
    tensor([[[0.7500, 0.2500],
             [0.6000, 0.4000],
             [0.6000, 0.4000]]])
    """

    transitions: Tensor | None = None

    kind: ClassVar[str] = "SEQUENCE"
    cut: ClassVar[str] = "rows"
    target_rule: ClassVar[str] = "every row sums to 1"

    def __post_init__(self) -> None:
        t = self.transitions
        if t is None:
            return
        if not isinstance(t, Tensor):
            raise TypeError(f"transitions must be a torch.Tensor or None, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeError(f"transitions must have a floating-point dtype, got {t.dtype}")
        if t.ndim not in (2, 3, 4) or t.shape[-1] != t.shape[-2]:
            raise ValueError(
                "transitions must have shape (k, k), (n - 1, k, k) or (B, n - 1, k, k), "
                f"got {tuple(t.shape)}"
            )

    @property
    def options(self) -> tuple[int, ...]:
        """How many matrices of transitions there are: one a step, one for all steps, or none."""
        t = self.transitions
        if t is None:
            return (0,)
        return (1 if t.ndim == 2 else t.shape[-3],)

    def extra_scores(self, rows: int, columns: int, batch: int) -> Tensor | None:
        """Transitions as (1 or batch, steps, k, k)."""
        t = self.transitions
        if t is None:
            return None
        full = t.reshape((1,) * (4 - t.ndim) + t.shape)
        steps = (1, max(rows - 1, 0)) if t.ndim != 3 else (max(rows - 1, 0),)
        if (
            full.shape[0] not in (1, batch)
            or full.shape[1] not in steps
            or full.shape[2] != columns
        ):
            raise ValueError(
                f"transitions must have shape ({columns}, {columns}), "
                f"({rows - 1}, {columns}, {columns}) or "
                f"({batch}, {rows - 1}, {columns}, {columns}) for "
                f"{batch} sequence(s) of {rows} positions and {columns} labels, "
                f"got {tuple(t.shape)}"
            )
        return full

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """Of rows."""
        return sums_from_one(y, inside, 2)


def edge_marginals(members: Tensor, probabilities: Tensor, n: int, k: int) -> Tensor:
    """(B, n - 1, k, k): how likely two neighbouring positions have two labels; differentiable."""
    batch, count, _ = members.shape
    steps = max(n - 1, 0)
    if count == 0:  # of an empty batch, where members do not know how long a structure is
        return probabilities.new_zeros(batch, steps, k, k) + probabilities.sum()
    labels = members.long()
    there = (labels[..., 1:] >= 0) if steps else labels[..., :0] >= 0
    a, b = labels[..., :-1].clamp(min=0) % k, labels[..., 1:].clamp(min=0) % k
    at = torch.arange(steps, device=members.device) * k * k + a * k + b
    weights = torch.where(there, probabilities.unsqueeze(-1), 0.0)
    flat = probabilities.new_zeros(batch, steps * k * k)
    flat = flat.scatter_add(
        1, at.reshape(batch, count * steps), weights.reshape(batch, count * steps)
    )
    return flat.reshape(batch, steps, k, k)
