"""Steppers that read probabilities from a table, and sequences listed by a plain recursion.

A table maps (source symbol, prefix) to a row of probabilities; a prefix that is not in it takes the
row of its last symbols, so tables of a few rows define distributions over endless sequences too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

EOS = 2
FIRST = 3  # symbols 3, 4, ... are letters

Row = dict[int, float]


@dataclass
class TableStepper:
    """``rule(source symbols, prefix)`` gives a row as {symbol: probability}.

    A state is a list of (source, prefix): checks that nobody changes it, and counts rows.
    """

    rule: object
    vocabulary_size: int = 6
    dtype: torch.dtype = torch.float64
    rows: int = 0  # rows computed so far
    steps: list[int] = field(default_factory=list)  # rows of each step

    def start(self, source: Tensor, source_lengths: Tensor):
        pairs = zip(source.tolist(), source_lengths.tolist(), strict=True)
        return tuple((tuple(row[:n]), None) for row, n in pairs)

    def step(self, state, previous: Tensor):
        self.rows += len(previous)
        self.steps.append(len(previous))
        table = torch.zeros(len(previous), self.vocabulary_size, dtype=self.dtype)
        after = []
        assert len(state) == len(previous)
        for i, ((source, prefix), last) in enumerate(zip(state, previous.tolist(), strict=True)):
            assert (prefix is None) == (last == 1), "BOS comes first, and only first"
            assert last not in (0, EOS), "nothing follows the end"
            prefix = () if prefix is None else (*prefix, last)
            for symbol, p in self.rule(source, prefix).items():
                table[i, symbol] = p
            after.append((source, prefix))
        return table, tuple(after)

    def select(self, state, rows: Tensor):
        return tuple(state[i] for i in rows.tolist())


def sources(*symbols: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Padded sources of these symbols, and their lengths."""
    longest = max(len(s) for s in symbols)
    padded = [[*s, *[0] * (longest - len(s))] for s in symbols]
    return torch.tensor(padded), torch.tensor([len(s) for s in symbols])


def random_rule(seed: int, letters: int = 3, depth: int = 4, density: float = 0.4):
    """Sparse rows that depend on source and whole prefix; from ``depth`` on, only EOS."""

    def rule(source: tuple[int, ...], prefix: tuple[int, ...]) -> Row:
        rng = random.Random(repr((seed, source, prefix)))
        if len(prefix) >= depth:
            return {EOS: 1.0}
        symbols = [s for s in (EOS, *range(FIRST, FIRST + letters)) if rng.random() < density]
        symbols = symbols or [rng.choice([EOS, *range(FIRST, FIRST + letters)])]
        # Few distinct weights, so that ties are common; powers of two, so that they are exact.
        weights = [2.0 ** -rng.randrange(3) for _ in symbols]
        total = 2.0 ** math.ceil(math.log2(sum(weights)))
        return {s: w / total for s, w in zip(symbols, weights, strict=True)}

    return rule


def all_sequences(rule, source: tuple[int, ...], depth: int, prefix=(), p: float = 1.0):
    """{symbols: probability} of everything up to ``depth`` symbols, by recursion on numbers."""
    found = {}
    for symbol, q in rule(source, prefix).items():
        if q > 0 and symbol == EOS:
            found[prefix] = p * q
        elif q > 0 and len(prefix) < depth:
            found |= all_sequences(rule, source, depth, (*prefix, symbol), p * q)
    return found
