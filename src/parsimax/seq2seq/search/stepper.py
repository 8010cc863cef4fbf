"""What a search asks of a model: the next symbol's probabilities, one step at a time."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

State = TypeVar("State")


class Stepper(Protocol[State]):
    """A distribution over sequences, one symbol at a time.

    Rows are independent: a row's probabilities depend on its own source and prefix alone. A state
    is never changed in place, so that it can be kept and continued in more than one way.
    """

    vocabulary_size: int

    def start(self, source: Tensor, source_lengths: Tensor) -> State:
        """The state before the first symbol of each source (B, S)."""

    def step(self, state: State, previous: Tensor) -> tuple[Tensor, State]:
        """Probabilities (N, vocabulary_size) of what follows ``previous`` (N,), and the next state.

        The first ``previous`` is ``BOS``. Probabilities of ``PAD`` and ``BOS`` are zero, and
        exactly zero wherever the model's mapping gives zero.
        """

    def select(self, state: State, rows: Tensor) -> State:
        """The state of these rows, in this order; a row may be taken more than once."""
