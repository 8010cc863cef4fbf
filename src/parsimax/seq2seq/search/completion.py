"""What may follow a prefix: the few next symbols, and the run that has no choice (Figure 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from parsimax.seq2seq.data.symbols import BOS, EOS

from .inputs import check_count, check_shape, check_source, evaluating, faults, raise_faults
from .stepper import Stepper

State = TypeVar("State")


@dataclass(frozen=True)
class NextSymbol:
    """A symbol that may follow, and its probability there."""

    symbol: int
    probability: float


@dataclass(frozen=True)
class Completion:
    """How a prefix may go on.

    Args:
        next: the symbols of positive probability after the prefix, the most probable first; ``EOS``
            among them if it may end there.
        forced: the symbols that follow one by one while there is exactly one to choose from,
            without ``EOS``.
        ended: the forced run goes to the end of the sequence.
        after: the symbols of positive probability after prefix and forced run: the next real
            choice. Empty if the run ended; one symbol if ``max_forced`` cut it.
        possible: the prefix has positive probability. If not, ``next`` and the rest are what the
            model says after it all the same.
        first_zero: the position of the prefix's first symbol of probability 0, None if possible.
        log_probability: of the prefix.
    """

    next: tuple[NextSymbol, ...]
    forced: tuple[int, ...]
    ended: bool
    after: tuple[NextSymbol, ...]
    possible: bool
    first_zero: int | None
    log_probability: float


def complete(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    prefixes: Sequence[Sequence[int]],
    *,
    top: int | None = None,
    max_forced: int = 200,
) -> list[Completion]:
    """The next symbols after each source's prefix, and the forced run.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        prefixes: for each source, the symbols so far, without ``BOS``; may be empty.
        top: the next symbols to list at most; by default all. Under softmax that is the whole
            vocabulary.
        max_forced: symbols that the forced run may have.
    """
    count = check_source(source, source_lengths)
    check_count(max_forced, "max_forced", 0)
    if top is not None:
        check_count(top, "top", 1)
    if len(prefixes) != count:
        raise ValueError(f"prefixes must be one a source ({count}), got {len(prefixes)}")
    for prefix in prefixes:
        for position, symbol in enumerate(prefix):
            if not EOS < symbol < stepper.vocabulary_size:
                raise ValueError(
                    f"prefixes must hold symbols above EOS ({EOS}) and below "
                    f"{stepper.vocabulary_size}, got {symbol} at position {position}"
                )
    if not count:
        return []
    runs = [_Run(list(prefix), len(prefix)) for prefix in prefixes]
    going = list(range(count))
    device = source.device
    step = 0
    with evaluating(stepper):
        state = stepper.start(source, source_lengths)
        while going:
            previous = [runs[i].said[step - 1] if step else BOS for i in going]
            table, state = stepper.step(state, torch.tensor(previous, device=device))
            check_shape(table, len(going), stepper.vocabulary_size)
            raise_faults(faults(table, table.amax(1)).tolist(), step)
            here = [runs[i].said[step] if step < runs[i].length else EOS for i in going]
            chosen = table.gather(1, torch.tensor(here, device=device)[:, None]).squeeze(1)
            asked = [k for k, i in enumerate(going) if step >= runs[i].length]
            choices = dict(zip(asked, _positive(table[asked], top), strict=True))
            for k, (i, p) in enumerate(zip(going, chosen.double().tolist(), strict=True)):
                runs[i].read(step, p, choices.get(k), max_forced)
            keep = [k for k, i in enumerate(going) if not runs[i].done]
            if len(keep) < len(going):
                state = stepper.select(state, torch.tensor(keep, dtype=torch.long, device=device))
            going = [going[k] for k in keep]
            step += 1
    return [run.result() for run in runs]


def next_symbols(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    prefixes: Sequence[Sequence[int]],
    *,
    top: int | None = None,
) -> list[tuple[NextSymbol, ...]]:
    """The symbols of positive probability after each source's prefix, the most probable first."""
    found = complete(stepper, source, source_lengths, prefixes, top=top, max_forced=0)
    return [completion.next for completion in found]


@dataclass(frozen=True)
class _Choices:
    """The symbols of positive probability of one row: how many, and those to list."""

    count: int
    listed: tuple[NextSymbol, ...]


def _positive(table: Tensor, top: int | None) -> list[_Choices]:
    """Of each row; equals in the order of their symbols."""
    counts = (table > 0).sum(1).tolist()
    if not counts:
        return []
    most = max(counts) if top is None else min(top, max(counts))
    values, symbols = table.sort(dim=1, descending=True, stable=True)
    rows = zip(
        counts,
        symbols[:, :most].tolist(),
        values[:, :most].double().clamp(max=1).tolist(),
        strict=True,
    )
    return [
        _Choices(count, tuple(map(NextSymbol, said[:count], p[:count]))) for count, said, p in rows
    ]


@dataclass
class _Run:
    """A prefix, and what was read after it so far."""

    said: list[int]
    length: int  # of the prefix
    log_probability: float = 0.0
    first_zero: int | None = None
    next: tuple[NextSymbol, ...] = ()
    after: tuple[NextSymbol, ...] = ()
    ended: bool = False
    done: bool = False

    def read(self, step: int, p: float, choices: _Choices | None, max_forced: int) -> None:
        """The row after ``said[:step]``: within the prefix the probability of its next symbol."""
        if choices is None:
            if p <= 0 and self.first_zero is None:
                self.first_zero = step
            self.log_probability += math.log(min(p, 1.0)) if p > 0 else -math.inf
            return
        if step == self.length:
            self.next = choices.listed
        only = choices.listed[0].symbol if choices.count == 1 else None
        self.ended = only == EOS
        if only is None or (not self.ended and step - self.length >= max_forced):
            self.after, self.done = choices.listed, True
        elif self.ended:
            self.done = True
        else:
            self.said.append(only)

    def result(self) -> Completion:
        return Completion(
            next=self.next,
            forced=tuple(self.said[self.length :]),
            ended=self.ended,
            after=self.after,
            possible=self.first_zero is None,
            first_zero=self.first_zero,
            log_probability=self.log_probability,
        )
