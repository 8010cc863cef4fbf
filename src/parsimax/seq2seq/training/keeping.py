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
    loss: float  # which decides between equals

    @property
    def name(self) -> str:
        """Its file, without the ending."""
        return f"step-{self.step:08d}"


@dataclass
class Keeper:
    """The best so far, which files stay, and how long nothing was better.

    Args:
        metric: More accuracy is better, and of equally accurate ones the one with less loss; or
            less loss is better.
        best: How many of the best stay.
        latest: How many of the latest stay.
    """

    metric: Literal["accuracy", "loss"]
    best: int
    latest: int
    ranked: list[Kept] = field(default_factory=list)  # the best first
    recent: list[Kept] = field(default_factory=list)  # the latest first
    since_best: int = 0  # validations

    def add(self, step: int, value: float, loss: float) -> bool:
        """Enter a validation; whether it is the best so far. Of equals in both, the first is.

        A value that is no number is never kept: it has no place in an order.
        """
        if not (math.isfinite(value) and math.isfinite(loss)):
            self.since_best += 1
            return False
        entry = Kept(step, value, loss)
        improved = not self.ranked or self._order(entry) < self._order(self.ranked[0])
        self.ranked = sorted([*self.ranked, entry], key=lambda k: (*self._order(k), k.step))
        self.ranked = self.ranked[: self.best]
        self.recent = [entry, *self.recent][: self.latest]
        self.since_best = 0 if improved else self.since_best + 1
        return improved

    def _order(self, kept: Kept) -> tuple[float, float]:
        return (-kept.value if self.metric == "accuracy" else kept.value, kept.loss)

    def stays(self, step: int) -> bool:
        """Whether the checkpoint of this step is among those that stay."""
        return any(k.step == step for k in (*self.ranked, *self.recent))

    def names(self) -> set[str]:
        """The files that stay."""
        return {k.name for k in (*self.ranked, *self.recent)}

    def forget(self, names: set[str]) -> None:
        """Leave out checkpoints whose files are gone."""
        self.ranked = [k for k in self.ranked if k.name not in names]
        self.recent = [k for k in self.recent if k.name not in names]

    def state(self) -> dict[str, object]:
        """What a checkpoint holds."""
        return {
            "metric": self.metric,
            "ranked": [[k.step, k.value, k.loss] for k in self.ranked],
            "recent": [[k.step, k.value, k.loss] for k in self.recent],
            "since_best": self.since_best,
        }

    def restore(self, state: dict[str, object]) -> None:
        """Go on from a state; fewer may be kept than before."""
        ranked, recent, since = state["ranked"], state["recent"], state["since_best"]
        assert isinstance(ranked, list)
        assert isinstance(recent, list)
        assert isinstance(since, int)
        self.ranked = [_kept(*entry) for entry in ranked][: self.best]
        self.recent = [_kept(*entry) for entry in recent][: self.latest]
        self.since_best = since


def _kept(step: int, value: float, loss: float = math.inf) -> Kept:
    """An entry of a checkpoint; those of older ones have no loss."""
    return Kept(step, value, loss)
