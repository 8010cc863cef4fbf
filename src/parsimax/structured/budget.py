"""Subsets of a given size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Structure


@dataclass(frozen=True, eq=False)
class Budget(Structure):
    """Exactly ``k`` of d items. Scores are (B, d); the marginals equal ``px.budget(scores, k)``.

    >>> import torch, parsimax as px
    >>> r = px.sparsemap(torch.tensor([[2.0, 0.3, 0.1, -1.0]]), px.structured.Budget(2))
    >>> r.marginals
    tensor([[1.0000, 0.6000, 0.4000, 0.0000]])
    >>> r.structures
    tensor([[[1., 1., 0., 0.],
             [1., 0., 1., 0.]]])
    """

    k: int

    kind: ClassVar[str] = "BUDGET"
    score_dims: ClassVar[int] = 1
    cut: ClassVar[str] = "columns"
    target_rule: ClassVar[str] = "all parts together sum to k"

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int):
            raise TypeError(f"k of Budget must be an int, got {self.k!r}")
        if self.k < 0:
            raise ValueError(f"k of Budget must be at least 0, got {self.k}")

    @property
    def options(self) -> tuple[int, ...]:
        """The size of the subsets."""
        return (self.k,)

    def check_instance(self, rows: int, columns: int) -> str | None:
        """There must be k items."""
        if self.k > columns:
            return f"{columns} items; k = {self.k} needs at least as many"
        return None

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """Of the total."""
        return (y.flatten(1).sum(1) - self.k).abs() * inside.flatten(1).any(1)
