"""What a search returns: sequences, and what it can prove about them.

A log-probability is a float64 sum of the logarithms of the model's conditional probabilities, from
left to right. No term is above zero, and rounding a sum keeps order: an extension is never above
its prefix, in floating point as on paper. So a prefix bounds all that it begins, two sums may be
compared as they are, without a tolerance, and a certificate is a fact of the model's own numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """A sequence of positive probability.

    Args:
        symbols: without ``EOS``.
        log_probability: of the symbols and, if finished, of ``EOS``.
        score: what hypotheses were ranked by: the log-probability, or that over the length penalty.
        finished: False for a prefix that the length limit cut.
    """

    symbols: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool = True

    @property
    def probability(self) -> float:
        """``exp(log_probability)``; a very small one may be rounded to 0."""
        return math.exp(self.log_probability)


@dataclass(frozen=True)
class Decoded:
    """The result of a beam for one source.

    Args:
        hypotheses: the best first, at most ``n_best``; fewer if the model has, or the beam met,
            fewer. If none was finished within the length limit, the best prefix that was cut there.
        exhaustive: no prefix of positive probability was dropped, for any reason: beam, length
            limits, early stop. Every sequence of positive probability was then met. None if this
            is not claimed, under a length penalty.
        optimal: the first hypothesis is finished and at least as probable as every dropped prefix,
            so no sequence at all is more probable. None under a length penalty.
        finished: how many sequences were finished; those beyond ``n_best`` are counted, not kept.
        covered: their probability, summed. It proves nothing: sums of probabilities round.
        dropped: the largest log-probability of any dropped prefix, -inf if there was none.
    """

    hypotheses: tuple[Hypothesis, ...]
    exhaustive: bool | None
    optimal: bool | None
    finished: int
    covered: float
    dropped: float

    @property
    def best(self) -> Hypothesis | None:
        """The first hypothesis; None if the model lets no sequence end."""
        return self.hypotheses[0] if self.hypotheses else None

    @property
    def single(self) -> bool | None:
        """The model has exactly one sequence of positive probability, and this is it."""
        return None if self.exhaustive is None else self.exhaustive and self.finished == 1

    @property
    def certified(self) -> int | None:
        """How many of the hypotheses, from the first, are proved to be the most probable ones."""
        if self.optimal is None:
            return None
        return sum(h.finished and h.log_probability >= self.dropped for h in self.hypotheses)
