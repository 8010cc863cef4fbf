"""Several models that speak as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .stepper import Stepper


class Ensemble:
    """A stepper whose probabilities are the mean of its members'.

    Probabilities are averaged, not their logarithms: a symbol is in the support if any member has
    it there, and a zero of one member does not silence the others.

    Args:
        steppers: members of one target vocabulary, and of one source vocabulary.
        weights: of each member, by default equal; they are normalised.
    """

    def __init__(
        self, steppers: Sequence[Stepper[Any]], weights: Sequence[float] | None = None
    ) -> None:
        if not steppers:
            raise ValueError("steppers must hold at least one model, got none")
        for name in ("vocabulary_size", "source_size"):
            sizes = {getattr(s, name) for s in steppers if hasattr(s, name)}
            if len(sizes) > 1:
                raise ValueError(
                    f"steppers must have one {name}, got {sorted(sizes)}: an ensemble needs models "
                    f"that were trained with the same vocabularies"
                )
        given = [1.0] * len(steppers) if weights is None else [float(w) for w in weights]
        if len(given) != len(steppers) or not all(0 < w < math.inf for w in given):
            raise ValueError(
                f"weights must be {len(steppers)} positive numbers, one a stepper, got {weights}"
            )
        self.steppers = tuple(steppers)
        self.vocabulary_size = steppers[0].vocabulary_size
        self.weights = tuple(given)

    def start(self, source: Tensor, source_lengths: Tensor) -> tuple[Any, ...]:
        """The members' states before the first symbol."""
        return tuple(s.start(source, source_lengths) for s in self.steppers)

    def step(self, state: tuple[Any, ...], previous: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        """The mean of the members' probabilities, and their next states."""
        tables, states = zip(
            *(s.step(one, previous) for s, one in zip(self.steppers, state, strict=True)),
            strict=True,
        )
        # Summed before it is divided: three times 1 is 1 again, three times a third is not.
        whole = tables[0] * self.weights[0]
        for weight, table in zip(self.weights[1:], tables[1:], strict=True):
            whole = whole + weight * table
        return whole / math.fsum(self.weights), states

    def select(self, state: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """The members' states of these rows."""
        return tuple(s.select(one, rows) for s, one in zip(self.steppers, state, strict=True))
