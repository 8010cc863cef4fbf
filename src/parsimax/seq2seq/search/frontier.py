"""Best-first expansion of prefixes, in batches.

Each step multiplies by at most 1, so a prefix bounds every sequence that begins with it: what is
not yet expanded is no more probable than the best prefix that waits.

A stepper continues rows of one state together. A :class:`_Block` is what one step computed: a
state, and for each sentence the extensions of its rows that wait, the most probable first. Each
round every sentence takes its best waiting prefix and the next best of the same block, up to
``width``; sentences that take from the same block share a step. What a sentence expands depends on
that sentence alone, whatever else is in the batch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parsimax.seq2seq.data.symbols import BOS, EOS

from .inputs import check_shape, faults, raise_faults
from .ranking import log
from .stepper import Stepper

State = TypeVar("State")
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Rows of a step times vocabulary: what a step's table of probabilities may hold at most.
TABLE = 2**24


@dataclass
class _Block(Generic[State]):
    """Prefixes that were expanded together; ``state`` is gone once nothing of it waits."""

    before: _Block[State] | None
    rows: Ints  # the prefix in ``before`` that each extends
    symbols: Ints  # ... by this
    values: Floats  # ... with this conditional probability
    logs: Floats
    depth: int  # how many symbols the prefixes have, without BOS
    state: State | None
    waiting: int = 0  # sentences that still have something here


@dataclass
class _Waiting(Generic[State]):
    """Extensions of one sentence in one block, the most probable first."""

    block: _Block[State]
    rows: Ints
    symbols: Ints
    values: Floats
    logs: Floats

    def split(self, count: int) -> tuple[_Waiting[State], _Waiting[State]]:
        """The first ``count`` and the rest."""
        return self._part(slice(count)), self._part(slice(count, None))

    def _part(self, part: slice) -> _Waiting[State]:
        return _Waiting(
            self.block, self.rows[part], self.symbols[part], self.values[part], self.logs[part]
        )


@dataclass(frozen=True)
class Found(Generic[State]):
    """A finished sequence of one sentence."""

    sentence: int
    block: _Block[State]
    row: int
    value: float  # the conditional probability of EOS
    log_probability: float

    def path(self) -> tuple[tuple[int, float, float], ...]:
        """(symbol, conditional probability, log-probability of the prefix), without ``EOS``."""
        steps = []
        block, row = self.block, self.row
        while block.depth > 0 and block.before is not None:  # at depth 0 stands BOS
            steps.append(
                (int(block.symbols[row]), float(block.values[row]), float(block.logs[row]))
            )
            block, row = block.before, int(block.rows[row])
        return tuple(reversed(steps))

    @property
    def symbols(self) -> tuple[int, ...]:
        """Without ``EOS``."""
        return tuple(symbol for symbol, _, _ in self.path())


class Frontier(Generic[State]):
    """The prefixes of some sentences that wait to be expanded.

    Args:
        floor: (B,) log-probabilities; what is not above its sentence's is pruned. May be raised.
        width: prefixes a sentence expands at a time.
        queue: prefixes a sentence may have waiting; of more, the less probable half is given up.
    """

    def __init__(
        self,
        stepper: Stepper[State],
        source: Tensor,
        source_lengths: Tensor,
        limits: Sequence[int],
        floor: Floats,
        width: int,
        queue: int,
    ) -> None:
        self.stepper, self.limits, self.floor = stepper, limits, floor
        self.width, self.queue = width, queue
        self.device = source.device
        count = len(limits)
        self.expansions = np.zeros(count, dtype=np.int64)
        self.given_up = np.full(count, -math.inf)  # the best that was, at the limits
        self.given_up_mass = np.zeros(count)
        self._heaps: list[list[tuple[float, int, _Waiting[State]]]] = [[] for _ in range(count)]
        self._lengths = [0] * count  # prefixes that wait
        self._order = 0  # of equals, the older first; and heaps never compare what they hold
        nothing = np.zeros(0, dtype=np.int64)
        start: _Block[State] = _Block(
            None,
            nothing,
            nothing,
            np.zeros(0),
            np.zeros(0),
            -1,
            stepper.start(source, source_lengths),
        )
        for i in range(count):
            one, zero = np.ones(1), np.zeros(1)
            self._push(i, _Waiting(start, np.array([i]), np.array([BOS]), one, zero))

    def bound(self, sentence: int) -> float:
        """The largest log-probability of a prefix that waits and is not pruned; -inf if none."""
        heap = self._heaps[sentence]
        while heap and -heap[0][0] <= self.floor[sentence]:
            self._release(self._pop(sentence))
        return -heap[0][0] if heap else -math.inf

    def waiting_mass(self, sentence: int) -> float:
        """The probability of the prefixes that wait: what the sequences not met may have."""
        return math.fsum(x for _, _, w in self._heaps[sentence] for x in np.exp(w.logs).tolist())

    def expand(self, sentences: Iterable[int]) -> list[Found[State]]:
        """One round of these sentences, each of which must have a bound; what they finished."""
        groups: dict[int, list[tuple[int, _Waiting[State]]]] = {}
        for i in sentences:
            taken = self._pop(i)
            useful = int(np.searchsorted(-taken.logs, -self.floor[i]))  # those above the floor
            now, later = taken.split(min(self.width, useful))
            taken.block.waiting += 1  # for ``now``, until it is expanded
            if len(later.logs):
                self._push(i, later)
            self._release(taken)
            groups.setdefault(id(now.block), []).append((i, now))
        share = max(1, TABLE // (self.width * self.stepper.vocabulary_size))
        found: list[Found[State]] = []
        for group in groups.values():
            for k in range(0, len(group), share):
                found += self._step(group[k : k + share])
        return found

    def _step(self, group: list[tuple[int, _Waiting[State]]]) -> list[Found[State]]:
        """Expands prefixes of one block."""
        parent = group[0][1].block
        rows, symbols, values, logs = (
            np.concatenate([getattr(now, name) for _, now in group])
            for name in ("rows", "symbols", "values", "logs")
        )
        owner = np.repeat([i for i, _ in group], [len(now.rows) for _, now in group])
        for i, now in group:
            self.expansions[i] += len(now.rows)
        assert parent.state is not None
        state = self.stepper.select(parent.state, self._tensor(rows))
        table, state = self.stepper.step(state, self._tensor(symbols))
        check_shape(table, len(rows), self.stepper.vocabulary_size)
        block = _Block(parent, rows, symbols, values, logs, parent.depth + 1, state)
        for _, now in group:
            self._release(now)
        child_rows, child_symbols, child_values, child_logs = self._children(table, block, owner)
        ended = child_symbols == EOS
        found = [
            Found(int(owner[row]), block, row, value, total)
            for row, value, total in zip(
                child_rows[ended].tolist(),
                child_values[ended].tolist(),
                child_logs[ended].tolist(),
                strict=True,
            )
        ]
        # The rest by sentence, the most probable first, of equals the one that came first.
        child_owner = owner[child_rows]
        order = np.lexsort((-child_logs, child_owner))
        order = order[~ended[order]]
        ends = np.flatnonzero(np.diff(child_owner[order])) + 1
        for part in np.split(order, ends) if len(order) else []:
            i = int(child_owner[part[0]])
            waiting = _Waiting(
                block, child_rows[part], child_symbols[part], child_values[part], child_logs[part]
            )
            if block.depth >= self.limits[i]:
                self._give_up(i, waiting)
            else:
                self._push(i, waiting)
                self._trim(i)
        if not block.waiting:
            block.state = None
        return found

    def _children(
        self, table: Tensor, block: _Block[State], owner: Ints
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """Rows, symbols, probabilities and log-probabilities of all extensions above the floor."""
        flags = faults(table, table.amax(1))
        raise_faults(flags.tolist(), block.depth)
        prefix = self._tensor(block.logs)
        floor = self._tensor(self.floor[owner])
        # A first sieve in the table's own precision, a little too wide; then the exact one.
        sieve = ((floor - prefix).exp() * (1 - 1e-2)).to(table.dtype)
        rows, symbols = ((table > sieve[:, None]) & (table > 0)).nonzero(as_tuple=True)
        values = table[rows, symbols]
        logs = prefix[rows] + log(values)
        above = logs > floor[rows]
        rows, symbols, values, logs = (x[above].cpu() for x in (rows, symbols, values, logs))
        return rows.numpy(), symbols.numpy(), values.double().clamp(0, 1).numpy(), logs.numpy()

    def _push(self, sentence: int, waiting: _Waiting[State]) -> None:
        waiting.block.waiting += 1
        self._order += 1
        self._lengths[sentence] += len(waiting.logs)
        heapq.heappush(self._heaps[sentence], (-float(waiting.logs[0]), self._order, waiting))

    def _pop(self, sentence: int) -> _Waiting[State]:
        waiting = heapq.heappop(self._heaps[sentence])[2]
        self._lengths[sentence] -= len(waiting.logs)
        return waiting

    def _release(self, waiting: _Waiting[State]) -> None:
        waiting.block.waiting -= 1
        if not waiting.block.waiting:
            waiting.block.state = None

    def _give_up(self, sentence: int, waiting: _Waiting[State]) -> None:
        self.given_up[sentence] = max(self.given_up[sentence], waiting.logs[0])
        self.given_up_mass[sentence] += np.exp(waiting.logs).sum()

    def _trim(self, sentence: int) -> None:
        heap = self._heaps[sentence]
        if self._lengths[sentence] <= self.queue:
            return
        sizes = [len(w.logs) for _, _, w in heap]
        every = np.concatenate([w.logs for _, _, w in heap])
        kept = np.zeros(len(every), dtype=np.int64)
        kept[np.argsort(-every, kind="stable")[: self.queue // 2 + 1]] = 1
        # Each list is in order, so what it keeps comes first in it.
        counts = np.add.reduceat(kept, np.cumsum([0, *sizes[:-1]]))
        self._heaps[sentence], self._lengths[sentence] = [], 0
        for (_, _, waiting), count in zip(heap, counts.tolist(), strict=True):
            keep, rest = waiting.split(count)
            if count:
                self._push(sentence, keep)
            if len(rest.logs):
                self._give_up(sentence, rest)
            self._release(waiting)

    def _tensor(self, array: Ints | Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
