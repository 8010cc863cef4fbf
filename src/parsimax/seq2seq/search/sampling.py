"""Sequences drawn from the model's own distribution, or from one that is narrowed.

The uniform number behind a symbol is a hash of (seed, sentence, sample, step): it does not depend
on the batch a sentence is in, on the device, or on what was drawn before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parsimax._core.validation import check_number
from parsimax.seq2seq.data.symbols import BOS, EOS

from .inputs import (
    check_count,
    check_shape,
    check_source,
    evaluating,
    faults,
    length_limits,
    raise_faults,
)
from .ranking import log
from .results import Hypothesis
from .stepper import Stepper

State = TypeVar("State")


def sample(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    n: int = 1,
    *,
    seed: int = 0,
    index: Sequence[int] | Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    max_length: int | Sequence[int] | Tensor | None = None,
    min_length: int = 0,
) -> list[tuple[Hypothesis, ...]]:
    """``n`` sequences for each source, drawn independently, symbol by symbol.

    Log-probabilities and scores are the model's, whatever the distribution was narrowed to.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        n: samples a source.
        seed: the same seed gives the same samples.
        index: (B,) a number for each source, by default its place in the batch. Give each its place
            in the corpus, and it has the same samples in batches of any size.
        temperature: probabilities are raised to 1 / temperature and normalised; the support stays.
        top_k: draw from the k most probable symbols.
        top_p: draw from the most probable symbols that have this probability together.
        max_length: symbols before ``EOS``, as in :func:`beam`; a sample that is cut is unfinished.
        min_length: ``EOS`` is not drawn before. A sample that could only end there is not finished.
    """
    count = check_source(source, source_lengths)
    limits = length_limits(max_length, min_length, source_lengths)
    check_count(n, "n", 1)
    check_number(temperature, "temperature", lambda x: 0 < x < math.inf, "positive and finite")
    check_number(top_p, "top_p", lambda x: 0 < x <= 1, "above 0 and at most 1")
    if top_k is not None:
        check_count(top_k, "top_k", 1)
    numbers = list(range(count)) if index is None else [int(i) for i in index]
    if len(numbers) != count:
        raise ValueError(f"index must have one entry a source ({count}), got {len(numbers)}")
    if not count:
        return []
    keys = _keys(seed, np.repeat(numbers, n), np.tile(np.arange(n), count))
    device = source.device
    limit = torch.tensor(limits, device=device).repeat_interleave(n)
    said = torch.zeros((count * n, max(limits) + 1), dtype=torch.long, device=device)
    total = torch.zeros(count * n, dtype=torch.float64, device=device)
    ended = torch.zeros(count * n, dtype=torch.bool, device=device)
    lengths = torch.zeros(count * n, dtype=torch.long, device=device)
    alive = torch.arange(count * n, device=device)
    previous = torch.full((count * n,), BOS, device=device)
    with evaluating(stepper):
        state = stepper.select(stepper.start(source, source_lengths), alive // n)
        for step in range(max(limits) + 1):
            table, state = stepper.step(state, previous)
            check_shape(table, len(previous), stepper.vocabulary_size)
            raise_faults(faults(table, table.amax(1)).tolist(), step)
            weights = _narrow(
                table.double().clamp(0, 1), step < min_length, temperature, top_k, top_p
            )
            uniform = torch.from_numpy(_uniform(keys, step)).to(device)[alive]
            symbols, possible = _draw(weights, uniform)
            chosen = log(table.gather(1, symbols[:, None]).squeeze(1))
            end = possible & (symbols == EOS)
            cut = limit[alive] <= step
            going = possible & ~end & ~cut
            taken = end | going
            total[alive] += torch.where(taken, chosen, 0.0)
            ended[alive] = end
            said[alive, step] = torch.where(going, symbols, 0)
            lengths[alive] += going
            rows = going.nonzero().squeeze(1)
            if not len(rows):
                break
            if len(rows) < len(alive):
                state = stepper.select(state, rows)
            alive, previous = alive[rows], symbols[rows]
    samples = [
        Hypothesis(tuple(row[:length]), value, value, finished)
        for row, length, value, finished in zip(
            said.tolist(), lengths.tolist(), total.tolist(), ended.tolist(), strict=True
        )
    ]
    return [tuple(samples[i : i + n]) for i in range(0, count * n, n)]


def _narrow(p: Tensor, no_end: bool, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """What to draw from, in proportion."""
    if no_end:
        p = p.clone()
        p[:, EOS] = 0
    if temperature != 1:
        # Relative to the largest, which stays 1: no power makes a whole row vanish.
        p = (p / p.amax(1, keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)) ** (1 / temperature)
    if top_k is not None or top_p < 1:
        ordered, order = p.sort(dim=1, descending=True, stable=True)
        before = ordered.cumsum(1) - ordered
        keep = before < top_p * ordered.sum(1, keepdim=True)
        if top_k is not None:
            keep[:, top_k:] = False
        p = torch.zeros_like(p).scatter(1, order, ordered * keep)
    return p


def _draw(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A symbol of positive weight for each row, and whether the row has any."""
    sums = weights.cumsum(1)
    # Sums that a GPU takes in parallel may round so as to rise where a weight is zero: asked for is
    # a symbol that has weight. If rounding leaves none above the mark, it is the most probable.
    above = (sums > uniform[:, None] * sums[:, -1:]) & (weights > 0)
    symbols = torch.where(above.any(1), above.byte().argmax(1), weights.argmax(1))
    possible = (weights > 0).any(1)
    return torch.where(possible, symbols, EOS), possible


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al., 2014): a bijection that scatters neighbours."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _keys(seed: int, index: NDArray[np.int64], draw: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One number for each (seed, sentence, sample)."""
    key = np.full(len(index), seed & (2**64 - 1), dtype=np.uint64)
    for part in (index, draw):
        key = _mix(key * _GOLDEN + part.astype(np.uint64) + _GOLDEN)
    return key


def _uniform(keys: NDArray[np.uint64], step: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each key, of 53 random bits."""
    bits = _mix(keys + np.full_like(keys, step + 1) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
