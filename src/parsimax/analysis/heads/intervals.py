"""Confidence intervals of a mean over queries, when it is sentences that were sampled."""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrap(
    sums: Tensor,
    counts: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Percentile interval of Σ sums / Σ counts, sentences drawn with replacement.

    Queries of one sentence are not independent, so whole sentences are drawn.

    Args:
        sums: (sentences, ...), over the queries of each sentence.
        counts: (sentences,), how many queries that is.
        confidence: of the interval.
        resamples: how many times all sentences are drawn.
        seed: of the draws, so that the same records give the same interval.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence:g}")
    number = len(counts)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(number, (resamples, number), generator=generator)
    times = torch.zeros(resamples, number, dtype=torch.float64)
    times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    shape = sums.shape[1:]
    totals = times @ sums.double().reshape(number, -1)
    means = (totals / (times @ counts.double())[:, None]).reshape(resamples, *shape)
    tail = (1 - confidence) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64)
    low, high = means.quantile(ends, dim=0)
    return low, high
