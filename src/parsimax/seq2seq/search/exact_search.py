"""The provably most probable sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from .beam_search import beam
from .frontier import Frontier
from .inputs import check_count, check_source, evaluating, length_limits
from .results import Hypothesis
from .stepper import Stepper

State = TypeVar("State")


@dataclass(frozen=True)
class Exact:
    """How an exact search of one source ended.

    Args:
        hypothesis: the most probable finished sequence that was found, None if none was.
        proved: no sequence is more probable; without a hypothesis, none has positive probability.
        upper_bound: no sequence has a larger log-probability than this.
        expansions: prefixes whose next symbols were computed, after the beam that went before.
    """

    hypothesis: Hypothesis | None
    proved: bool
    upper_bound: float
    expansions: int

    @property
    def gap(self) -> float:
        """How far in log-probability the hypothesis may be from the best; 0 if proved."""
        if self.proved:
            return 0.0
        return self.upper_bound - (
            self.hypothesis.log_probability if self.hypothesis else -math.inf
        )


def exact(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    *,
    max_length: int | Sequence[int] | Tensor | None = None,
    max_expansions: int = 10_000,
    queue: int = 100_000,
    width: int = 32,
    beam_size: int = 5,
) -> list[Exact]:
    """The most probable sequence of each source, with a proof, or how far it got.

    A beam comes first, and its certificate may be the proof. Otherwise its best hypothesis prunes a
    best-first search: a prefix that is not more probable than a finished sequence has no extension
    that is. The proof is there when no prefix is left. Of equally probable sequences any may come.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        max_length: symbols before ``EOS``, as in :func:`beam`. A longer prefix that is more
            probable than the result leaves it unproved: the claim is about any length.
        max_expansions: prefixes to expand for each source, to within ``width``.
        queue: prefixes of a source that may wait; of more, the less probable half is given up.
        width: prefixes of a source to expand at a time. The result does not depend on it, unless a
            limit is met.
        beam_size: of the beam that comes first.
    """
    count = check_source(source, source_lengths)
    limits = length_limits(max_length, 0, source_lengths)
    for value, name in (
        (max_expansions, "max_expansions"),
        (queue, "queue"),
        (width, "width"),
        (beam_size, "beam_size"),
    ):
        check_count(value, name, 1)
    if not count:
        return []
    with evaluating(stepper):
        first = beam(stepper, source, source_lengths, beam_size, max_length=limits, early_stop=True)
        best = [d.best if d.finished else None for d in first]
        open_ = [i for i, d in enumerate(first) if not d.optimal]
        results = [Exact(h, True, _log(h), 0) for h in best]
        if not open_:
            return results
        frontier = Frontier(
            stepper,
            source[open_],
            source_lengths[open_],
            [limits[i] for i in open_],
            np.array([_log(best[i]) for i in open_]),
            width,
            queue,
        )
        while going := [
            j
            for j in range(len(open_))
            if frontier.bound(j) > -math.inf and frontier.expansions[j] < max_expansions
        ]:
            for found in frontier.expand(going):
                j, total = found.sentence, found.log_probability
                if total > frontier.floor[j]:
                    frontier.floor[j] = total
                    best[open_[j]] = Hypothesis(found.symbols, total, total)
    for j, i in enumerate(open_):
        reached = _log(best[i])
        upper = max(reached, frontier.bound(j), float(frontier.given_up[j]))
        results[i] = Exact(best[i], upper <= reached, upper, int(frontier.expansions[j]))
    return results


def _log(hypothesis: Hypothesis | None) -> float:
    return hypothesis.log_probability if hypothesis else -math.inf
