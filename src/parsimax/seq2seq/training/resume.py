"""Which options a resumed run may change.

What can apply from the next step on is taken and said. What cannot, because weights, data or their
order depend on it, is an error: an option that is ignored in silence is worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsimax._runs.errors import TrainingError
from parsimax.seq2seq.config import Config

# These options, and all under a name that ends with a dot.
CHANGEABLE = (
    "optimizer.lr",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.momentum",
    "optimizer.weight_decay",
    "optimizer.clip",
    "optimizer.schedule.warmup",
    "optimizer.schedule.factor",
    "optimizer.schedule.floor",
    "optimizer.schedule.steps",
    "training.max_epochs",
    "training.max_steps",
    "training.max_minutes",
    "training.accumulate",
    "training.normalize",
    "training.validation.every",
    "training.validation.unit",
    "training.validation.patience",
    "training.validation.batch",
    "training.keep",
    "training.keep_last",
    "training.save_every",
    "training.average",
    "training.log_every",
    "training.precision",
    "training.accelerator",
    "training.devices",
    "training.num_nodes",
    "training.strategy",
    "training.cuda_graphs",
    "training.workers",
    "search.",
)


@dataclass(frozen=True)
class Change:
    """An option that is not what it was."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {_show(self.old)} -> {_show(self.new)}"

    @property
    def applies(self) -> bool:
        """Whether a resumed run can take it."""
        return any(self.key.startswith(c) if c.endswith(".") else self.key == c for c in CHANGEABLE)


def compare(old: Config, new: Config) -> list[Change]:
    """The options that differ."""
    before, after = old.flat(), new.flat()
    return [
        Change(key, before.get(key), after.get(key))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def check(old: Config, new: Config, run: str) -> list[Change]:
    """The changes that apply; those that cannot are an error that names them all."""
    changes = compare(old, new)
    refused = [change for change in changes if not change.applies]
    if refused:
        raise TrainingError(
            f"{run} cannot be resumed with other values of: "
            + "; ".join(map(str, refused))
            + ". Set them back to resume it, or train anew with --out and another folder"
        )
    return changes


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value is None else str(value)
