"""How good a model is on the validation corpus, summed over all its examples and processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any

import torch

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.models import Measures, Seq2Seq

from .gathering import sum_over_processes


@torch.no_grad()
def measure(
    model: Seq2Seq[Any],
    batches: Iterable[Batch],
    device: torch.device,
    precision: AbstractContextManager[Any],
) -> Measures:
    """The sums over all batches of all processes; every example counts once."""
    training = model.training
    model.eval()
    total = Measures()
    with precision:
        for batch in batches:
            total = total + model.measure(batch.to(device, non_blocking=True))
    model.train(training)
    names = [f.name for f in fields(Measures)]
    values = torch.stack(
        [torch.as_tensor(getattr(total, n), device=device).double() for n in names]
    )
    sums = sum_over_processes(values).tolist()
    return Measures(**dict(zip(names, sums, strict=True)))


def summarise(total: Measures) -> dict[str, float]:
    """Means a symbol, from sums that are numbers."""
    tokens = max(float(total.tokens), 1.0)
    return {
        "loss": float(total.loss) / tokens,
        "loss_per_sentence": float(total.loss) / max(float(total.sentences), 1.0),
        "accuracy": float(total.correct) / tokens,
        "zero_gold": float(total.zero_gold) / tokens,
        "epsilon_perplexity": math.exp(-float(total.log_smoothed) / tokens),
        "sparsemax_score": float(total.sparsemax_score) / tokens,
        "output_support": float(total.support) / tokens,
        "attention_support": float(total.attended) / tokens,
        "attention_density": float(total.attended) / max(float(total.attendable), 1.0),
        "sentences": float(total.sentences),
        "tokens": float(total.tokens),
    }
