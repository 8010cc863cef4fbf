"""How many of the tokens that it may see does a head give weight to?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .intervals import interval, resampled
from .measuring import by_module


@dataclass(frozen=True)
class Density:
    """Density of the heads of one module.

    The density of a query is the share of visible keys whose weight is above zero, exactly: 1 for
    softmax whatever the mask. Queries that see nothing, or have no weight at all, are left out
    and counted. What weights sum to does not matter: 1, or k with a budget of k.

    Args:
        module: which kind of attention.
        density: (layer, head), the mean over all queries.
        attended: (layer, head), how many keys a query gives weight to, on average.
        nonzeros: (layer, head), all weights above zero.
        visible: how many weights there were that could have been above zero.
        per_sentence: (sentences, layer, head), the mean density of each sentence; NaN for a
            sentence of which no query counts.
        per_sentence_queries: the same shape, how many of its queries counted.
        queries: (layer, head), how many counted.
        excluded: (layer, head), how many did not.
    """

    module: str
    density: Tensor
    attended: Tensor
    nonzeros: Tensor
    visible: int
    per_sentence: Tensor = field(repr=False)
    per_sentence_queries: Tensor = field(repr=False)
    queries: Tensor = field(repr=False)
    excluded: Tensor = field(repr=False)

    def layers(self) -> Tensor:
        """(layer,), mean density of the heads of each layer."""
        return self.density.nanmean(1)

    def overall(self) -> float:
        """Mean density over all heads of the module."""
        return float(self.density.nanmean())

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Interval of the module's mean density, over sentences."""
        sums = (self.per_sentence * self.per_sentence_queries).nan_to_num(0.0)
        heads = resampled(sums, self.per_sentence_queries).flatten(1)
        low, high = interval(heads.nanmean(1), confidence)
        return float(low), float(high)

    def histogram(self, bins: int = 20) -> Tensor:
        """(bins,), how many pairs of a head and a sentence have which density, from 0 to 1."""
        known = self.per_sentence[~self.per_sentence.isnan()]
        places = (known * bins).long().clamp(max=bins - 1)
        return torch.bincount(places, minlength=bins)


class DensityMeasure:
    """Counts of nonzeros."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._density: list[Tensor] = []
        self._attended: list[Tensor] = []
        self._queries: list[Tensor] = []
        self._nonzeros: list[Tensor] = []
        self._rows = self._visible = 0

    def add(self, sentence: Sentence) -> None:
        """Count one sentence."""
        visible = sentence.allowed.sum(-1)
        nonzeros = sentence.nonzero.sum(-1)
        shares = nonzeros.double() / visible.clamp(min=1)
        self._density.append((shares * sentence.live).sum(-1))
        self._attended.append((nonzeros * sentence.live).sum(-1))
        self._queries.append(sentence.live.sum(-1))
        self._nonzeros.append(nonzeros.sum(-1))
        self._rows += len(visible)
        self._visible += int(visible.sum())

    def result(self) -> Density:
        """The density so far."""
        shares, counts = torch.stack(self._density), torch.stack(self._queries)
        queries = counts.sum(0)
        return Density(
            module=self.module,
            density=shares.sum(0) / queries,
            attended=torch.stack(self._attended).sum(0).double() / queries,
            nonzeros=torch.stack(self._nonzeros).sum(0),
            visible=self._visible,
            per_sentence=shares / counts,
            per_sentence_queries=counts,
            queries=queries,
            excluded=self._rows - queries,
        )


def density(records: Iterable[AttentionRecord]) -> dict[str, Density]:
    """Density of every head, by module.

    >>> import torch
    >>> weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    >>> density([AttentionRecord(("a", "b"), weights, "encoder")])["encoder"].density
    tensor([[0.7500]], dtype=torch.float64)
    """
    return by_module(records, DensityMeasure)
