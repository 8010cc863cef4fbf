"""What every model offers: a loss to train, sums to report, attention to read, steps to search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from torch import Tensor, nn

from parsimax.seq2seq.data.batch import Batch

State = TypeVar("State")


@dataclass(frozen=True)
class Measures:
    """Sums over the target symbols of some batches; those of two sets of batches add up.

    Every field is a number or a tensor of one, so that a sum over processes needs no host.
    """

    loss: Tensor | float = 0.0
    sentences: Tensor | float = 0.0
    tokens: Tensor | float = 0.0
    correct: Tensor | float = 0.0  # the gold symbol is the most probable
    zero_gold: Tensor | float = 0.0  # the gold symbol has probability 0
    log_smoothed: Tensor | float = 0.0  # log((p + eps) / (1 + eps |V|)) of gold; V can be said
    sparsemax_score: Tensor | float = 0.0  # p_gold + (1 - sum p^2) / 2
    support: Tensor | float = 0.0  # symbols of positive probability
    attended: Tensor | float = 0.0  # positive weights, a mean over layers and heads
    attendable: Tensor | float = 0.0  # source positions there were

    def __add__(self, other: Measures) -> Measures:
        return Measures(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Seq2Seq(nn.Module, ABC, Generic[State]):
    """A model of targets given sources; also a :class:`parsimax.seq2seq.search.stepper.Stepper`."""

    source_size: int
    vocabulary_size: int  # of the target

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """The loss, summed over all target symbols that are not padding."""

    @abstractmethod
    def measure(self, batch: Batch, epsilon: float = 1e-6) -> Measures:
        """Sums over the batch, under teacher forcing; call it without gradients."""

    @abstractmethod
    def attention(self, batch: Batch) -> dict[str, Tensor]:
        """Weights (B, layer, head, Lq, Lk) of each kind of attention, under teacher forcing.

        The kinds are ``context`` (target on source) and, in a Transformer, ``encoder`` and
        ``decoder``. Query t of the target is the one that predicts symbol t.
        """

    @abstractmethod
    def alphas(self) -> dict[str, Tensor]:
        """The learned alphas (layer, head) of each kind of attention that learns them."""

    @abstractmethod
    def start(self, source: Tensor, source_lengths: Tensor) -> State:
        """The state before the first symbol of each source."""

    @abstractmethod
    def step(self, state: State, previous: Tensor) -> tuple[Tensor, State]:
        """Probabilities (N, vocabulary_size) of what follows ``previous``, and the next state."""

    @abstractmethod
    def select(self, state: State, rows: Tensor) -> State:
        """The state of these rows, in this order."""
