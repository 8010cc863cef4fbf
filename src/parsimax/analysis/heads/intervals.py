"""Confidence intervals of a mean over queries, when it is sentences that were sampled."""

from __future__ import annotations

import torch
from torch import Tensor


def resampled(sums: Tensor, counts: Tensor, *, resamples: int = 1000, seed: int = 0) -> Tensor:
    """Means Σ sums / Σ counts (resamples, ...) of sentences drawn with replacement.

    Queries of one sentence are not independent, so whole sentences are drawn.

    Args:
        sums: (sentences, ...), over the queries of each sentence.
        counts: the same shape, how many queries that is.
        resamples: how many times all sentences are drawn.
        seed: of the draws, so that the same records give the same means.
    """
    number = len(counts)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(number, (resamples, number), generator=generator, device="cpu")
    times = torch.zeros(resamples, number, dtype=torch.float64, device="cpu")
    times.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    totals = times @ sums.double().reshape(number, -1)
    means = totals / (times @ counts.double().reshape(number, -1))
    return means.reshape(resamples, *sums.shape[1:])


def interval(means: Tensor, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    """Percentile interval of resampled means, which lie along the first dimension."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence:g}")
    tail = (1 - confidence) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=torch.float64, device="cpu")
    low, high = means.nanquantile(ends, dim=0)
    return low, high
