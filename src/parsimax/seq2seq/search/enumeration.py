"""All sequences of positive probability, as a list and as a tree (Peters et al. 2019, Figure 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from parsimax._core.validation import check_number
from parsimax.seq2seq.data.symbols import BOS, EOS

from .frontier import Found, Frontier
from .inputs import check_count, check_source, evaluating, length_limits
from .results import Hypothesis
from .stepper import Stepper

State = TypeVar("State")


@dataclass(frozen=True)
class SupportNode:
    """A prefix of some sequences.

    Args:
        symbol: the last of the prefix: ``BOS`` at the root, ``EOS`` where a sequence ends.
        probability: of the symbol, given what precedes it.
        mass: of the whole prefix.
        children: its extensions, the most probable first.
        finished: the symbol is ``EOS``, and ``mass`` the probability of a sequence.
    """

    symbol: int
    probability: float
    mass: float
    children: tuple[SupportNode, ...]
    finished: bool


@dataclass(frozen=True)
class Support:
    """The sequences of positive probability of one source.

    Args:
        sequences: the most probable first.
        tree: the same sequences; every leaf is the end of one.
        covered: their probabilities, summed.
        complete: these are all there are; otherwise a limit was met first.
        remaining: the probability of the prefixes that were not followed: what the sequences that
            are missing have at most. 0 if complete.
        bound: the largest log-probability that a missing sequence may have; -inf if complete.
    """

    sequences: tuple[Hypothesis, ...]
    tree: SupportNode
    covered: float
    complete: bool
    remaining: float
    bound: float


def support(
    stepper: Stepper[State],
    source: Tensor,
    source_lengths: Tensor,
    *,
    limit: int = 1000,
    mass: float = 1.0,
    max_length: int | Sequence[int] | Tensor | None = None,
    max_expansions: int = 10_000,
    queue: int = 100_000,
    width: int = 32,
) -> list[Support]:
    """All sequences of positive probability of each source, or the first that a limit lets through.

    Prefixes are followed in order of probability, so what a limit cuts off has little.

    Args:
        stepper: a model, or an :class:`~parsimax.seq2seq.search.Ensemble`.
        source: (B, S) symbols.
        source_lengths: (B,).
        limit: sequences a source may have.
        mass: below 1, be content with sequences that have this probability together.
        max_length: symbols before ``EOS``, as in :func:`beam`.
        max_expansions: prefixes to expand for each source, to within ``width``.
        queue: prefixes of a source that may wait; of more, the less probable half is given up.
        width: prefixes of a source to expand at a time.
    """
    count = check_source(source, source_lengths)
    limits = length_limits(max_length, 0, source_lengths)
    for value, name in (
        (limit, "limit"),
        (max_expansions, "max_expansions"),
        (queue, "queue"),
        (width, "width"),
    ):
        check_count(value, name, 1)
    check_number(mass, "mass", lambda x: 0 < x <= 1, "above 0 and at most 1")
    if not count:
        return []
    found: list[list[Found[State]]] = [[] for _ in range(count)]
    covered = [0.0] * count
    with evaluating(stepper):
        floor = np.full(count, -math.inf)
        frontier = Frontier(stepper, source, source_lengths, limits, floor, width, queue)
        while going := [
            i
            for i in range(count)
            if frontier.bound(i) > -math.inf
            and frontier.expansions[i] < max_expansions
            and len(found[i]) < limit
            # Sums round: a whole that is asked for is known by its structure, never by its sum.
            and (mass == 1 or covered[i] < mass)
        ]:
            for one in frontier.expand(going):
                found[one.sentence].append(one)
                covered[one.sentence] += math.exp(one.log_probability)
    return [_support(frontier, i, found[i], limit) for i in range(count)]


def _support(
    frontier: Frontier[State], sentence: int, found: list[Found[State]], limit: int
) -> Support:
    found.sort(key=lambda one: -one.log_probability)  # stable: equals as they were found
    found, over = found[:limit], found[limit:]
    missing = [math.exp(one.log_probability) for one in over]
    missing += [frontier.waiting_mass(sentence), float(frontier.given_up_mass[sentence])]
    bounds = [one.log_probability for one in over]
    bounds += [frontier.bound(sentence), float(frontier.given_up[sentence])]
    sequences = tuple(Hypothesis(f.symbols, f.log_probability, f.log_probability) for f in found)
    return Support(
        sequences=sequences,
        tree=_tree(found),
        covered=math.fsum(h.probability for h in sequences),
        complete=max(bounds) == -math.inf,
        remaining=math.fsum(missing),
        bound=max(bounds),
    )


def _tree(found: list[Found[State]]) -> SupportNode:
    """The prefixes of these sequences, each once."""
    prefixes: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 1.0)}
    for one in found:
        said: tuple[int, ...] = ()
        for symbol, value, total in one.path():
            said = (*said, symbol)
            prefixes[said] = (value, math.exp(total))
        prefixes[(*said, EOS)] = (one.value, math.exp(one.log_probability))
    # From the longest up, so that a node's children are there before it is.
    children: dict[tuple[int, ...], list[SupportNode]] = {said: [] for said in prefixes}
    root = SupportNode(BOS, 1.0, 1.0, (), finished=False)
    for said in sorted(prefixes, key=len, reverse=True):
        below = sorted(children[said], key=lambda node: (-node.mass, node.symbol))
        value, total = prefixes[said]
        symbol = said[-1] if said else BOS
        node = SupportNode(symbol, value, total, tuple(below), finished=symbol == EOS)
        if said:
            children[said[:-1]].append(node)
        else:
            root = node
    return root
