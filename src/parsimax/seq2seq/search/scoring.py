"""How probable the model finds given targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from parsimax.seq2seq.data.symbols import BOS, EOS, PAD

from .inputs import check_shape, check_source, evaluating, faults, raise_faults
from .ranking import log
from .stepper import Stepper

State = TypeVar("State")


@dataclass(frozen=True)
class Scored:
    """A target's probability.

    Args:
        symbols: what was scored, ``EOS`` included.
        probabilities: of each symbol, given those before it.
        log_probability: of them all; -inf if one has probability 0.
        first_zero: the position of the first symbol of probability 0, None if there is none.
    """

    symbols: tuple[int, ...]
    probabilities: tuple[float, ...]
    log_probability: float
    first_zero: int | None

    @property
    def probability(self) -> float:
        """``exp(log_probability)``."""
        return math.exp(self.log_probability)


def score(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    targets: Sequence[Sequence[int]] | Tensor,
    *,
    of: Sequence[int] | Tensor | None = None,
    finished: bool = True,
) -> list[Scored]:
    """The log-probability of each target.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        targets: symbols without ``BOS``; (N, T) if a tensor. Padding after the end is left away.
        of: (N,) the source of each target; by default targets and sources go together.
        finished: add ``EOS`` where it is missing. False: score prefixes as they are.
    """
    count = check_source(source, source_lengths)
    said = [
        _target(list(row), i, stepper.vocabulary_size, finished)
        for i, row in enumerate(targets.tolist() if isinstance(targets, Tensor) else targets)
    ]
    owner = list(range(count)) if of is None else [int(i) for i in of]
    if len(owner) != len(said):
        raise ValueError(
            f"targets must be as many as {'sources' if of is None else 'entries of `of`'} "
            f"({len(owner)}), got {len(said)}"
        )
    if any(not 0 <= i < count for i in owner):
        raise ValueError(f"of must hold numbers of sources, 0 to {count - 1}, got {owner}")
    if not said:
        return []
    # The longest first: what is left at a step are the first rows.
    order = sorted(range(len(said)), key=lambda i: -len(said[i]))
    lengths = [len(said[i]) for i in order]
    longest = lengths[0]
    device = source.device
    grid = torch.tensor(
        [[*said[i], *[PAD] * (longest - len(said[i]))] for i in order], device=device
    ).reshape(len(said), longest)
    chosen = torch.ones((len(said), longest), dtype=torch.float64, device=device)
    totals = torch.zeros(len(said), dtype=torch.float64, device=device)
    flags = torch.zeros(3, dtype=torch.bool, device=device)
    with evaluating(stepper):
        rows = torch.tensor([owner[i] for i in order], device=device)
        state = stepper.select(stepper.start(source, source_lengths), rows)
        previous = torch.full((len(said),), BOS, device=device)
        for step in range(longest):
            left = sum(length > step for length in lengths)
            if left < len(previous):
                state = stepper.select(state, torch.arange(left, device=device))
                previous = previous[:left]
            table, state = stepper.step(state, previous)
            check_shape(table, left, stepper.vocabulary_size)
            flags |= faults(table, table.amax(1))
            previous = grid[:left, step]
            p = table.gather(1, previous[:, None]).squeeze(1)
            chosen[:left, step] = p.double().clamp(0, 1)
            totals[:left] += log(p)  # from left to right, as every search adds them up
    raise_faults(flags.tolist(), None)
    results: list[Scored | None] = [None] * len(said)
    for i, row, total in zip(order, chosen.tolist(), totals.tolist(), strict=True):
        values = tuple(row[: len(said[i])])
        zero = next((k for k, p in enumerate(values) if p == 0), None)
        results[i] = Scored(tuple(said[i]), values, total, zero)
    return [r for r in results if r is not None]


def _target(symbols: list[int], number: int, vocabulary_size: int, finished: bool) -> list[int]:
    """One target without padding, and with ``EOS`` if it is to be finished."""
    while symbols and symbols[-1] == PAD:
        symbols.pop()
    for position, symbol in enumerate(symbols):
        last = position == len(symbols) - 1
        if not EOS <= symbol < vocabulary_size or (symbol == EOS and not last):
            raise ValueError(
                f"targets must hold symbols below {vocabulary_size}, without PAD and BOS and with "
                f"EOS at the end alone; target {number} has {symbol} at position {position}"
            )
    return [*symbols, EOS] if finished and (not symbols or symbols[-1] != EOS) else symbols
