"""Small immutable results that pass from one layer to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class AttentionOutput(NamedTuple):
    """What an attention module returns: the context vectors, and the weights if asked for."""

    context: Tensor
    weights: Tensor | None


@dataclass(frozen=True)
class AttentionRecord:
    """Attention of one sentence as analysis reads it.

    Args:
        tokens: those that are attended to, one a key.
        weights: (layer, head, Lq, Lk), without padding. Those of a query sum to 1, or for
            attention with a budget of k, all to k, each at most 1; a query may have none at all.
        module: which kind of attention, such as ``encoder``, ``context`` or ``decoder``.
        queries: the tokens that attend, where they are others than ``tokens``; None in
            self-attention.
        allowed: bool (Lq, Lk), True where a query may see a key; None if it may see every key.
            Causal attention is given by a lower triangle.
    """

    tokens: tuple[str, ...]
    weights: Tensor
    module: str
    queries: tuple[str, ...] | None = None
    allowed: Tensor | None = None

    @property
    def self_attention(self) -> bool:
        """Whether tokens attend to their own sentence."""
        return self.queries is None

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """One token a query."""
        return self.tokens if self.queries is None else self.queries
