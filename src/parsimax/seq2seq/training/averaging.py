"""The mean of the weights of several checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError

from .folder import RunFolder


def average(run: str | Path, n: int = 5, which: Literal["best", "last"] = "best") -> Path:
    """Average the weights of a run's best or latest checkpoints into ``average.ckpt``.

    How many there are to choose from is a matter of ``training.keep`` and ``training.keep_last``.
    Floating-point tensors are averaged in float64; of the others the first checkpoint's are taken.

    Args:
        run: The run folder.
        n: How many checkpoints.
        which: The best by the run's metric, or the latest.
    """
    folder = RunFolder(Path(run))
    if n < 1:
        raise TrainingError(f"n: expected at least 1, got {n}")
    if which not in ("best", "last"):
        raise TrainingError(f"which: expected best or last, got {which!r}")
    keeper = checkpoint.read(folder.checkpoint(checkpoint.LAST))["keeper"]
    entries = [int(step) for step, *_ in keeper["ranked" if which == "best" else "recent"]]
    there = [step for step in entries if folder.checkpoint(f"step-{step:08d}").exists()]
    if len(there) < n:
        option = "training.keep" if which == "best" else "training.keep_last"
        raise TrainingError(
            f"{folder.path} has {len(there)} of its {which} checkpoints, and {n} are to be "
            f"averaged; {option} says how many a run keeps"
        )
    steps = there[:n]
    states = [checkpoint.read(folder.checkpoint(f"step-{step:08d}")) for step in steps]
    models = [state["model"] for state in states]
    mean = {name: _mean([model[name] for model in models]) for name in models[0]}
    path = folder.checkpoint(checkpoint.AVERAGE)
    checkpoint.write(path, {**states[0], "model": mean, "averaged": steps})
    return path


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return first
    return torch.stack([t.double() for t in tensors]).mean(0).to(first.dtype)
