"""What sparsemap returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .base import Structure
from .sequence import Sequence, edge_marginals


class ConvergenceWarning(RuntimeWarning):
    """A solution whose gap is above the tolerance."""


@dataclass(frozen=True, eq=False)
class SparseMAPResult:
    """A distribution over few structures, for each instance of a batch.

    Leading dimensions are those of the scores; B stands for them. K is the largest number of
    structures in the batch.
    """

    marginals: Tensor  #: shape of the scores: how likely each part is; differentiable
    probabilities: Tensor  #: (B, K), descending, then zeros; differentiable
    gap: Tensor  #: (B,) float64: how much a better structure could gain at most; 0 at the optimum
    converged: Tensor  #: (B,) bool: whether the gap is at most the tolerance
    iterations: Tensor  #: (B,) int64: how often the oracle was asked
    members: Tensor  #: (B, K, parts) int32: parts of each structure, as indices into one
    #: instance's flattened scores; -1 where there is none
    structure: Structure  #: what was asked for

    @cached_property
    def structures(self) -> Tensor:
        """(B, K, ...): each structure as zeros and ones in the shape of the scores."""
        lead = self.probabilities.shape[:-1]
        shape = self.marginals.shape[len(lead) :]
        count = self.probabilities.shape[-1]
        flat = self.marginals.new_zeros(*lead, count, shape.numel() + 1, requires_grad=False)
        at = self.members.long()
        # what is missing goes to one place more, which is then cut off
        at = torch.where(at >= 0, at, shape.numel())
        flat.scatter_(-1, at, 1.0)
        return flat[..., :-1].reshape(*lead, count, *shape)

    @property
    def edge_marginals(self) -> Tensor | None:
        """(B, n - 1, k, k) of a sequence, [position, label, next label]; None for the others."""
        if not isinstance(self.structure, Sequence):
            return None
        lead = self.probabilities.shape[:-1]
        n, k = self.marginals.shape[-2:]
        batch, count = lead.numel(), self.probabilities.shape[-1]
        flat = edge_marginals(
            self.members.reshape(batch, *self.members.shape[-2:]),
            self.probabilities.reshape(batch, count),
            n,
            k,
        )
        return flat.reshape(*lead, *flat.shape[1:])
