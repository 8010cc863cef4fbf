"""Distributions over sequences as rules on Python numbers, and what follows from them by recursion.

A rule maps (source, prefix), two tuples, to a row {symbol: probability}. Nothing here knows how a
search works: sequences are listed by plain recursion, a beam is run on lists.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

EOS = 2
FIRST = 3  # symbols 3, 4, ... are letters

Symbols = tuple[int, ...]
Row = dict[int, float]
Rule = Callable[[Symbols, Symbols], Row]


@dataclass
class TableStepper:
    """A stepper whose state is (source, prefix) of each row; it counts the rows of its steps."""

    rule: Rule
    vocabulary_size: int = 7
    dtype: torch.dtype = torch.float64
    steps: list[int] = field(default_factory=list)

    def start(self, source: Tensor, source_lengths: Tensor) -> Any:
        pairs = zip(source.tolist(), source_lengths.tolist(), strict=True)
        return tuple((tuple(row[:n]), None) for row, n in pairs)

    def step(self, state: Any, previous: Tensor) -> tuple[Tensor, Any]:
        assert len(state) == len(previous)
        self.steps.append(len(previous))
        table = torch.zeros(len(previous), self.vocabulary_size, dtype=self.dtype)
        after = []
        for i, ((source, prefix), last) in enumerate(zip(state, previous.tolist(), strict=True)):
            assert (prefix is None) == (last == 1), "BOS comes first, and only first"
            assert last not in (0, EOS), "nothing follows the end"
            prefix = () if prefix is None else (*prefix, last)
            for symbol, p in self.rule(source, prefix).items():
                table[i, symbol] = p
            after.append((source, prefix))
        return table, tuple(after)

    def select(self, state: Any, rows: Tensor) -> Any:
        return tuple(state[i] for i in rows.tolist())


def sources(*symbols: Sequence[int], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Sources padded to the longest and ``extra`` more, and their lengths."""
    longest = max(len(s) for s in symbols) + extra
    padded = [[*s, *[0] * (longest - len(s))] for s in symbols]
    return torch.tensor(padded), torch.tensor([len(s) for s in symbols])


SOURCES = [(3,), (4, 3), (5, 5, 3), (6,), (3, 4)]


def random_rule(
    seed: int, *, letters: int = 3, depth: int = 4, ties: bool = False, leaks: bool = False
) -> Rule:
    """Sparse rows, each for its source and prefix; from ``depth`` symbols on, only the end.

    With ``ties``, probabilities are powers of two, so that equals are common. With ``leaks``, a row
    may be empty.
    """

    def rule(source: Symbols, prefix: Symbols) -> Row:
        rng = random.Random(repr((seed, source, prefix)))
        if leaks and rng.random() < 0.15:
            return {}
        if len(prefix) >= depth:
            return {EOS: 1.0}
        every = [EOS, *range(FIRST, FIRST + letters)]
        symbols = [s for s in every if rng.random() < 0.45] or [rng.choice(every)]
        if ties:
            return dict.fromkeys(symbols, 2.0 ** -math.ceil(math.log2(len(symbols))))
        weights = [rng.uniform(0.05, 1) for _ in symbols]
        return {s: w / sum(weights) for s, w in zip(symbols, weights, strict=True)}

    return rule


def all_sequences(
    rule: Rule, source: Symbols, depth: int = 10, prefix: Symbols = (), p: float = 1.0
) -> dict[Symbols, float]:
    """Probabilities of all sequences up to ``depth`` symbols."""
    found = {}
    for symbol, q in rule(source, prefix).items():
        if q > 0 and symbol == EOS:
            found[prefix] = p * q
        elif q > 0 and len(prefix) < depth:
            found |= all_sequences(rule, source, depth, (*prefix, symbol), p * q)
    return found


def longest_prefix(rule: Rule, source: Symbols, depth: int, prefix: Symbols = ()) -> int:
    """The length of the longest prefix of positive probability, looked for up to ``depth``."""
    if len(prefix) == depth:
        return depth
    going = [s for s, q in rule(source, prefix).items() if q > 0 and s != EOS]
    return max([len(prefix), *(longest_prefix(rule, source, depth, (*prefix, s)) for s in going)])


def plain_beam(rule: Rule, source: Symbols, size: int) -> tuple[dict[Symbols, float], float]:
    """(finished sequences, the largest probability that was dropped) of a beam on lists."""
    live, finished, dropped = [((), 1.0)], {}, 0.0
    while live:
        extended = [
            (prefix, symbol, p * q)
            for prefix, p in live
            for symbol, q in rule(source, prefix).items()
            if q > 0
        ]
        extended.sort(key=lambda item: -item[2])
        dropped = max([dropped, *(p for _, _, p in extended[size:])])
        finished |= {prefix: p for prefix, symbol, p in extended[:size] if symbol == EOS}
        live = [((*prefix, s), p) for prefix, s, p in extended[:size] if s != EOS]
    return finished, dropped
