"""Sums that describe a batch under teacher forcing."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import FIRST_SAID, PAD

from .base import Measures
from .output import OutputLayer

_ROWS = 1 << 24  # probabilities in memory at once


@torch.no_grad()
def measures(
    batch: Batch, hidden: Tensor, weights: Tensor, output: OutputLayer, epsilon: float
) -> Measures:
    """From outputs (B, T, hidden) and attention weights on the source (B, heads, T, S)."""
    assert batch.target is not None
    kept = batch.target != PAD
    gold, rows = batch.target[kept], hidden[kept]
    attended = (weights > 0).sum(-1).double().mean(1)[kept]
    said = output.vocabulary_size - FIRST_SAID  # epsilon goes to what can be said alone
    at_once = max(1, _ROWS // output.vocabulary_size)
    correct = zero = smoothed = score = support = torch.zeros(
        (), dtype=torch.float64, device=hidden.device
    )
    for these, wanted in zip(torch.split(rows, at_once), torch.split(gold, at_once), strict=True):
        p = output.probabilities(these)
        p_gold = p.gather(1, wanted[:, None]).squeeze(1).double()
        correct = correct + (p.argmax(1) == wanted).sum()
        zero = zero + (p_gold == 0).sum()
        smooth = (p_gold + epsilon) / (1 + epsilon * said)
        smoothed = smoothed + smooth.log().sum()
        score = score + (p_gold + (1 - p.square().sum(1)) / 2).sum()
        support = support + (p > 0).sum()
    return Measures(
        loss=output.loss(hidden, batch.target).double(),
        sentences=kept.any(1).sum(),
        tokens=kept.sum(),
        correct=correct,
        zero_gold=zero,
        log_smoothed=smoothed,
        sparsemax_score=score,
        support=support,
        attended=attended.sum(),
        attendable=(batch.source_lengths[:, None] * kept).sum(),
    )
