"""Do the heads of a layer look at different tokens? Jensen-Shannon divergence between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .intervals import interval, resampled
from .measuring import by_module


@dataclass(frozen=True)
class Diversity:
    """Disagreement of the heads of each layer, between 0 (all alike) and 1 (all apart).

    For each query, JS = H(1/n Σ p_j) − 1/n Σ H(p_j) over the n heads of a layer (Correia et al.
    2019, Eq. 11), divided by log n, which is the most it can be; then the mean over queries. A
    layer of one head has nothing to disagree with: NaN. Queries for which any head of the layer has
    no weight are left out and counted.

    Args:
        module: which kind of attention.
        diversity: (layer,).
        low, high: (layer,), ends of the 95 % interval, over sentences.
        queries: (layer,), how many counted.
        excluded: (layer,), how many did not.
    """

    module: str
    diversity: Tensor
    low: Tensor
    high: Tensor
    queries: Tensor = field(repr=False)
    excluded: Tensor = field(repr=False)


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p along the last dimension, in nats; zeros count for nothing."""
    total: Tensor = torch.special.entr(p).sum(-1)
    return total


def jensen_shannon(p: Tensor, *, dim: int = 0, normalise: bool = True) -> Tensor:
    """Jensen-Shannon divergence of n distributions that lie along ``dim``.

    Args:
        p: distributions along the last dimension.
        dim: where the distributions are.
        normalise: divide by log n, so that the divergence is at most 1; NaN for n = 1.

    >>> jensen_shannon(torch.eye(3))
    tensor(1.)
    """
    number = p.shape[dim]
    divergence = entropy(p.mean(dim)) - entropy(p).mean(dim)
    divergence = divergence.clamp(min=0)  # rounding alone makes it negative
    if not normalise:
        return divergence
    return divergence / math.log(number) if number > 1 else torch.full_like(divergence, math.nan)


class DiversityMeasure:
    """Sums of divergences."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._sums: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._rows = 0

    def add(self, sentence: Sentence) -> None:
        """Take one sentence in."""
        divergence = jensen_shannon(sentence.weights, dim=1)
        live = sentence.live.all(1)
        self._sums.append((divergence * live).sum(-1))
        self._queries.append(live.sum(-1))
        self._rows += live.shape[-1]

    def result(self) -> Diversity:
        """The diversity so far."""
        sums, counts = torch.stack(self._sums), torch.stack(self._queries)
        queries = counts.sum(0)
        low, high = interval(resampled(sums, counts))
        return Diversity(
            module=self.module,
            diversity=sums.sum(0) / queries,
            low=low,
            high=high,
            queries=queries,
            excluded=self._rows - queries,
        )


def diversity(records: Iterable[AttentionRecord]) -> dict[str, Diversity]:
    """Normalised Jensen-Shannon divergence between the heads of every layer, by module."""
    return by_module(records, DiversityMeasure)
