"""Which checkpoints stay: the best few, the latest few."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Kept:
    """A validated checkpoint."""

    step: int
    value: float  # of the metric

    @property
    def name(self) -> str:
        """Its file, without the ending."""
        return f"step-{self.step:08d}"


@dataclass
class Keeper:
    """The best so far, which files stay, and how long nothing was better.

    Args:
        metric: More accuracy is better, less loss is better.
        best: How many of the best stay.
        latest: How many of the latest stay.
    """

    metric: Literal["accuracy", "loss"]
    best: int
    latest: int
    ranked: list[Kept] = field(default_factory=list)  # the best first
    recent: list[Kept] = field(default_factory=list)  # the latest first
    since_best: int = 0  # validations

    def add(self, step: int, value: float) -> bool:
        """Enter a validation; whether it is the best so far. Of equals, the first is.

        A value that is no number is never kept: it has no place in an order.
        """
        if not math.isfinite(value):
            self.since_best += 1
            return False
        entry = Kept(step, value)
        sign = -1.0 if self.metric == "accuracy" else 1.0
        improved = not self.ranked or sign * value < sign * self.ranked[0].value
        self.ranked = sorted([*self.ranked, entry], key=lambda k: (sign * k.value, k.step))
        self.ranked = self.ranked[: self.best]
        self.recent = [entry, *self.recent][: self.latest]
        self.since_best = 0 if improved else self.since_best + 1
        return improved

    def stays(self, step: int) -> bool:
        """Whether the checkpoint of this step is among those that stay."""
        return any(k.step == step for k in (*self.ranked, *self.recent))

    def names(self) -> set[str]:
        """The files that stay."""
        return {k.name for k in (*self.ranked, *self.recent)}

    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {
            "metric": self.metric,
            "ranked": [[k.step, k.value] for k in self.ranked],
            "recent": [[k.step, k.value] for k in self.recent],
            "since_best": self.since_best,
        }

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a state; fewer may be kept than before."""
        ranked, recent, since = state["ranked"], state["recent"], state["since_best"]
        assert isinstance(ranked, list)
        assert isinstance(recent, list)
        assert isinstance(since, int)
        self.ranked = [Kept(step, value) for step, value in ranked][: self.best]
        self.recent = [Kept(step, value) for step, value in recent][: self.latest]
        self.since_best = since
