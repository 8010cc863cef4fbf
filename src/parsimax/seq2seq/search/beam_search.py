"""Beam search that knows what it dropped.

A sentence's beam holds up to ``size`` prefixes. Each step keeps the ``size`` most probable of all
extensions; those that end leave the beam and free their places. Rows are packed: a sentence has as
many rows as live prefixes, which under a sparse output are often one or two, and a sentence that is
done has none.

The largest log-probability of everything ever dropped is kept for each sentence. That is all a
certificate needs: nothing dropped means the finished sequences are all there are (``exhaustive``),
and a finished sequence that is at least as probable as every dropped prefix cannot be beaten by
what those would have become (``optimal``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from parsimax._core.validation import check_number
from parsimax.seq2seq.data.symbols import BOS, EOS

from .history import Histories, to_host
from .inputs import check_count, check_shape, check_source, evaluating, length_limits
from .ranking import log, most_probable
from .results import Decoded, Hypothesis
from .stepper import Stepper

State = TypeVar("State")


def beam(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    size: int = 5,
    n_best: int = 1,
    *,
    max_length: int | Sequence[int] | Tensor | None = None,
    min_length: int = 0,
    length_penalty: float = 0.0,
    early_stop: bool = False,
) -> list[Decoded]:
    """The most probable sequences that a beam finds for each source, with certificates.

    A sentence is done when no prefix is left. It is done before that if what is left could not
    change the ``n_best`` and something was dropped already, so that nothing more could be proved.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        size: the prefixes a sentence may have at a time. 1 is greedy search.
        n_best: the hypotheses to return a sentence, if that many have positive probability.
        max_length: symbols before ``EOS``, for all or for each source; by default twice the
            source's length and 50 more. A prefix that would go on is dropped.
        min_length: sequences with fewer symbols are dropped.
        length_penalty: a in score = log p / ((5 + n) / 6)^a (Wu et al., 2016), n counting symbols
            and ``EOS``. Unless 0, no certificate is claimed.
        early_stop: be done as soon as the ``n_best`` cannot change. What is left counts as
            dropped, so fewer results are ``exhaustive``; the same are ``optimal``.

    Raises:
        ValueError: an argument is out of range, or the stepper returns no probabilities.
    """
    count = check_source(source, source_lengths)
    limits = length_limits(max_length, min_length, source_lengths)
    check_count(size, "size", 1)
    check_count(n_best, "n_best", 1)
    check_number(length_penalty, "length_penalty", math.isfinite, "a finite number")
    if not count:
        return []
    with evaluating(stepper):
        search = _Beam(size, n_best, limits, min_length, length_penalty, early_stop)
        search.run(stepper, source, source_lengths)
        return search.results()


def greedy(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    *,
    max_length: int | Sequence[int] | Tensor | None = None,
    min_length: int = 0,
) -> list[Decoded]:
    """The most probable symbol at each step: a :func:`beam` of one, with its certificates."""
    return beam(stepper, source, source_lengths, 1, max_length=max_length, min_length=min_length)


@dataclass
class _Beam:
    """One search; tensors (B, ...) are of all sentences, others of those still active."""

    size: int
    n_best: int
    limits: list[int]
    min_length: int
    length_penalty: float
    early_stop: bool
    history: Histories = field(default_factory=Histories)
    # of each step: candidates' sentences, log-probabilities, whether they ended
    sentences: list[Tensor] = field(default_factory=list)
    logs: list[Tensor] = field(default_factory=list)
    ended: list[Tensor] = field(default_factory=list)
    # of some steps: rows that the length limit cut, and their sentences and log-probabilities
    cut: list[tuple[int, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def penalty(self, length: int) -> float:
        """Of a sequence of this many symbols, ``EOS`` included."""
        return math.pow((5 + length) / 6, self.length_penalty)

    def run(self, stepper: Stepper[State], source: Tensor, source_lengths: Tensor) -> None:
        """All steps of all sentences."""
        state = stepper.start(source, source_lengths)
        count = len(self.limits)
        device = source.device
        limits = torch.tensor(self.limits, device=device)
        self.longest = ((6 + limits.double()) / 6) ** self.length_penalty
        self.dropped = torch.full((count,), -math.inf, dtype=torch.float64, device=device)
        self.pool = self.dropped[:, None].repeat(1, self.n_best)  # the best finished scores
        active = torch.arange(count, device=device)
        home = active  # of each row: its sentence, among the active
        slot = torch.zeros_like(active)  # ... and its place in that sentence's beam
        prefix = torch.zeros(count, dtype=torch.float64, device=device)  # ... and log-probability
        previous = torch.full((count,), BOS, device=device)
        for step in range(max(self.limits) + 1):
            probabilities, state = stepper.step(state, previous)
            check_shape(probabilities, len(previous), stepper.vocabulary_size)
            scores, symbols = self._extensions(step, probabilities, prefix, active[home], limits)
            best, parents, symbols = self._merge(scores, symbols, active, home, slot)
            live = self._finish(step, best, parents, symbols, active)
            chosen = live.flatten().nonzero().squeeze(1)
            self.history.add(parents.flatten(), symbols.flatten(), chosen)
            if not len(chosen):
                break
            rows = parents.flatten()[chosen]
            if len(rows) != len(previous) or not torch.equal(rows, _arange(rows)):
                state = stepper.select(state, rows)
            previous = symbols.flatten()[chosen]
            prefix = best.flatten()[chosen]
            slot = (live.cumsum(1) - 1).flatten()[chosen]
            going = live.any(1)
            home = (going.cumsum(0) - 1)[chosen // self.size]
            active = active[going]

    def _extensions(
        self, step: int, probabilities: Tensor, prefix: Tensor, sentence: Tensor, limits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N, C) of each row's best extensions, -inf for none, and symbols."""
        ending = prefix + log(probabilities[:, EOS])
        if step < self.min_length:
            self._drop(sentence, ending)
            probabilities = probabilities.clone()
            probabilities[:, EOS] *= 0  # but NaN, which must be seen, stays
        values, symbols = most_probable(probabilities, self.size, step)
        scores = prefix[:, None] + log(values)
        if step >= min(self.limits):
            full = limits[sentence] <= step
            going_on = scores.masked_fill(symbols == EOS, -math.inf).amax(1)
            going_on = going_on.masked_fill(~full, -math.inf)
            self._drop(sentence, going_on)
            rows = (going_on > -math.inf).nonzero().squeeze(1)
            self.cut.append((step, rows, sentence[rows], prefix[rows]))
            scores = scores.masked_fill(full[:, None], -math.inf)
            scores[:, 0] = torch.where(full, ending, scores[:, 0])
            symbols[:, 0] = torch.where(full, EOS, symbols[:, 0])
        return scores, symbols

    def _merge(
        self, scores: Tensor, symbols: Tensor, active: Tensor, home: Tensor, slot: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The beam's best extensions (A, size), the rows they extend, and their last symbols."""
        columns = scores.shape[1]
        grid = scores.new_full((len(active), self.size, columns), -math.inf)
        grid[home, slot] = scores
        row = home.new_zeros((len(active), self.size))
        row[home, slot] = _arange(home)
        # Equals keep the order of their prefixes, then of their symbols.
        ordered, order = grid.flatten(1).sort(dim=1, descending=True, stable=True)
        if ordered.shape[1] > self.size:
            self._drop(active, ordered[:, self.size])
        order = order[:, : self.size]
        parents = row.gather(1, order // columns)
        return ordered[:, : self.size], parents, symbols[parents, order % columns]

    def _finish(
        self, step: int, best: Tensor, parents: Tensor, symbols: Tensor, active: Tensor
    ) -> Tensor:
        """Which extensions (A, size) go on; the others ended, or need not go on."""
        possible = best > -math.inf
        ended = possible & (symbols == EOS)
        live = possible & ~ended
        self.sentences.append(active[:, None].expand_as(best).flatten())
        self.logs.append(best.flatten())
        self.ended.append(ended.flatten())
        scores = best.masked_fill(~ended, -math.inf) / self.penalty(step + 1)
        pool = torch.cat([self.pool[active], scores], 1).topk(self.n_best, dim=1).values
        self.pool[active] = pool
        # The best score that a live prefix could still reach: its log-probability over the
        # penalty that favours it most, of those its length may have.
        reach = best.masked_fill(~live, -math.inf).amax(1)
        largest = self.longest[active].clamp(min=self.penalty(step + 2))
        settled = pool[:, -1] >= reach / largest
        if not self.early_stop and not self.length_penalty:
            settled &= self.dropped[active] > -math.inf
        self._drop(active, reach.masked_fill(~settled, -math.inf))
        return live & ~settled[:, None]

    def _drop(self, sentence: Tensor, logs: Tensor) -> None:
        """Prefixes of these log-probabilities were dropped, -inf for none."""
        self.dropped.scatter_reduce_(0, sentence, logs, "amax")

    def results(self) -> list[Decoded]:
        """One result a sentence, on the host."""
        count = len(self.limits)
        sizes = [len(x) for x in self.sentences]
        steps = np.repeat(np.arange(len(sizes)), sizes)
        sentences, logs, ended, parents = (
            np.concatenate(to_host(x))
            for x in (self.sentences, self.logs, self.ended, self.history.parents)
        )
        found = np.flatnonzero(ended)
        scores = (
            logs[found] / np.array([self.penalty(t + 1) for t in range(len(sizes))])[steps[found]]
        )
        finished = np.bincount(sentences[found], minlength=count)
        covered = np.bincount(sentences[found], np.exp(logs[found]), minlength=count)
        # by sentence, then by score; equals in the order they were found
        order = np.lexsort((-scores, sentences[found]))
        first = np.concatenate([[0], np.cumsum(finished)[:-1]])
        rank = np.arange(len(order)) - first[sentences[found][order]]
        order = order[rank < self.n_best]
        kept = found[order]
        said = self.history.read(steps[kept], parents[kept])
        hypotheses: list[list[Hypothesis]] = [[] for _ in range(count)]
        for i, symbols, value, score in zip(
            sentences[kept].tolist(), said, logs[kept].tolist(), scores[order].tolist(), strict=True
        ):
            hypotheses[i].append(Hypothesis(symbols, value, score))
        self._add_cut(hypotheses)
        claimed = not self.length_penalty
        dropped = self.dropped.tolist()
        return [
            Decoded(
                hypotheses=tuple(best),
                exhaustive=dropped[i] == -math.inf if claimed else None,
                optimal=bool(finished[i]) and best[0].log_probability >= dropped[i]
                if claimed
                else None,
                finished=int(finished[i]),
                covered=float(covered[i]),
                dropped=dropped[i],
            )
            for i, best in enumerate(hypotheses)
        ]

    def _add_cut(self, hypotheses: list[list[Hypothesis]]) -> None:
        """The best prefix at the length limit, for sentences with nothing better to show."""
        best: dict[int, tuple[int, int, float]] = {}
        for step, rows, sentences, logs in self.cut:
            for row, i, value in zip(rows.tolist(), sentences.tolist(), logs.tolist(), strict=True):
                if not hypotheses[i]:
                    best.setdefault(i, (step, row, value))  # rows come with the best first
        steps, rows_ = (np.array([b[j] for b in best.values()], dtype=np.int64) for j in (0, 1))
        said = self.history.read(steps, rows_)
        for (i, (step, _, value)), symbols in zip(best.items(), said, strict=True):
            score = value / self.penalty(step)
            hypotheses[i].append(Hypothesis(symbols, value, score, finished=False))


def _arange(like: Tensor) -> Tensor:
    return torch.arange(len(like), device=like.device)
