"""What a model makes of the references: how probable, how sparse (under teacher forcing).

Perplexity is infinite as soon as one gold symbol has probability zero, which sparse models do by
design. Martins, Marinho and Martins (2020) report instead ε-perplexity, where ε is added to every
probability before they are normalised again, and the sparsemax score, which needs no logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import BOS, FIRST_SAID, PAD
from parsimax.seq2seq.models.base import Measures
from parsimax.seq2seq.search.stepper import Stepper

State = TypeVar("State")


@dataclass(frozen=True)
class Forced:
    """Means over the symbols of the references.

    Args:
        tokens: symbols of the references, with their ends.
        loss: the model's own loss; None for an ensemble, which has none.
        accuracy: share of symbols that are the most probable.
        zero_gold: share of symbols with probability exactly 0.
        epsilon: what ``epsilon_perplexity`` adds to the probability of each symbol that can be
            said.
        epsilon_perplexity: exp of the mean −log of the smoothed probability.
        sparsemax_score: mean of p_gold + (1 − Σp²)/2; 1 at best.
        support: output symbols of positive probability (Table 3 of Peters et al., 2019).
        vocabulary: output symbols there are.
        attended: source positions of positive weight; None for an ensemble.
        attendable: source positions there are.
    """

    tokens: int
    loss: float | None
    accuracy: float
    zero_gold: float
    epsilon: float
    epsilon_perplexity: float
    sparsemax_score: float
    support: float
    vocabulary: int
    attended: float | None
    attendable: float | None


def summarise(sums: Measures, *, epsilon: float, vocabulary: int, one_model: bool = True) -> Forced:
    """Turn sums into means.

    Args:
        sums: over all batches.
        epsilon: what the sums were computed with.
        vocabulary: size of the output vocabulary.
        one_model: whether ``loss`` and ``attended`` were measured.
    """
    tokens = round(float(sums.tokens))
    if tokens < 1:
        raise ValueError("sums: expected at least one target symbol, got none")

    def mean(total: Tensor | float) -> float:
        return float(total) / tokens

    return Forced(
        tokens=tokens,
        loss=mean(sums.loss) if one_model else None,
        accuracy=mean(sums.correct),
        zero_gold=mean(sums.zero_gold),
        epsilon=epsilon,
        epsilon_perplexity=math.exp(-mean(sums.log_smoothed)),
        sparsemax_score=mean(sums.sparsemax_score),
        support=mean(sums.support),
        vocabulary=vocabulary - FIRST_SAID,
        attended=mean(sums.attended) if one_model else None,
        attendable=mean(sums.attendable) if one_model else None,
    )


@torch.no_grad()
def measure_steps(stepper: Stepper[State], batch: Batch, epsilon: float = 1e-6) -> Measures:
    """The sums that need nothing but probabilities, so that an ensemble has them, too."""
    assert batch.target is not None
    state = stepper.start(batch.source, batch.source_lengths)
    previous = torch.full_like(batch.source_lengths, BOS)
    sums = Measures(sentences=float((batch.target[:, 0] != PAD).sum()))
    said = stepper.vocabulary_size - FIRST_SAID  # epsilon goes to what can be said alone
    for gold in batch.target.T:
        p, state = stepper.step(state, previous)
        p, real = p.double(), gold != PAD
        p_gold = p.gather(1, gold[:, None])[:, 0]
        smoothed = ((p_gold + epsilon) / (1 + epsilon * said)).log()
        score = p_gold + (1 - p.square().sum(1)) / 2
        sums += Measures(
            tokens=float(real.sum()),
            # of equals the first alone is right, as in a model's own measures
            correct=float((real & (p.argmax(1) == gold)).sum()),
            zero_gold=float((real & (p_gold == 0)).sum()),
            log_smoothed=float(smoothed[real].sum()),
            sparsemax_score=float(score[real].sum()),
            support=float((p[real] > 0).sum()),
        )
        previous = gold
    return sums
