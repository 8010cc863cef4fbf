"""The learning rate as a function of steps and of how validation went."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from parsimax.seq2seq.config import OptimizerSettings


@dataclass
class Schedule:
    """The learning rate of each step.

    A state is two numbers: how far the rate has been lowered, and the validation loss before. The
    settings are not part of it, so that a resumed run may change them.

    >>> from parsimax.seq2seq.config import ScheduleSettings
    >>> schedule = Schedule(OptimizerSettings(schedule=ScheduleSettings("halve_on_worse")))
    >>> for loss in (2.0, 1.0, 1.5, 1.2, 1.3):
    ...     schedule.validated(loss)
    >>> schedule.scale
    0.25
    """

    settings: OptimizerSettings
    scale: float = 1.0
    previous: float | None = None

    def rate(self, step: int) -> float:
        """The learning rate of the step that follows ``step`` others."""
        schedule, count = self.settings.schedule, step + 1
        rate = self.settings.lr * self.scale
        if count < schedule.warmup:
            return rate * count / schedule.warmup
        if schedule.kind == "linear":
            assert schedule.steps is not None
            left = (schedule.steps - count) / max(schedule.steps - schedule.warmup, 1)
            return max(rate * min(left, 1.0), schedule.floor, 0.0)
        if schedule.kind == "inverse_sqrt":
            return max(rate * sqrt(max(schedule.warmup, 1) / count), schedule.floor)
        return rate

    def validated(self, loss: float) -> None:
        """Lower the rate if this loss is worse than the one before, which need not be the best."""
        schedule = self.settings.schedule
        worse = self.previous is not None and loss > self.previous
        if schedule.kind == "halve_on_worse" and worse:
            lower = max(self.scale * schedule.factor, schedule.floor / self.settings.lr)
            self.scale = min(self.scale, lower)  # a floor that was raised since lifts nothing
        self.previous = loss

    def state(self) -> dict[str, float | None]:
        """What a checkpoint holds."""
        return {"scale": self.scale, "previous": self.previous}

    def restore(self, state: dict[str, float | None]) -> None:
        """Go on from a state."""
        scale = state["scale"]
        assert scale is not None
        self.scale, self.previous = scale, state["previous"]
