"""A model written by hand: each source has a list of sequences with their probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parsimax.seq2seq.data.symbols import BOS, EOS, PAD


class Prefixes(NamedTuple):
    sources: tuple[tuple[int, ...], ...]
    prefixes: tuple[tuple[int, ...], ...]


@dataclass
class Scripted:
    """Says of each source what ``script`` has, without ``EOS``: {sequence: probability}."""

    script: dict[tuple[int, ...], dict[tuple[int, ...], float]]
    vocabulary_size: int

    def start(self, source: Tensor, source_lengths: Tensor) -> Prefixes:
        rows = zip(source.tolist(), source_lengths.tolist(), strict=True)
        sources = tuple(tuple(row[:length]) for row, length in rows)
        return Prefixes(sources, ((),) * len(sources))

    def step(self, state: Prefixes, previous: Tensor) -> tuple[Tensor, Prefixes]:
        grown = tuple(
            prefix if symbol == BOS else (*prefix, symbol)
            for prefix, symbol in zip(state.prefixes, previous.tolist(), strict=True)
        )
        rows = [self._next(s, p) for s, p in zip(state.sources, grown, strict=True)]
        return torch.tensor(rows), Prefixes(state.sources, grown)

    def select(self, state: Prefixes, rows: Tensor) -> Prefixes:
        index = rows.tolist()
        return Prefixes(
            tuple(state.sources[i] for i in index), tuple(state.prefixes[i] for i in index)
        )

    def _next(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        mass = [0.0] * self.vocabulary_size
        for sequence, p in self.script[source].items():
            if sequence[: len(prefix)] == prefix:
                mass[(*sequence, EOS)[len(prefix)]] += p
        total = sum(mass)
        if total == 0:  # a prefix that cannot be: any distribution will do
            mass[EOS] = total = 1.0
        mass[PAD] = 0.0
        return [m / total for m in mass]
