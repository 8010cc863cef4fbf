"""The folder of a classifier's run.

::

    RUN/config.yaml       all options, resolved
        versions.json     of Python and of the packages that matter
        vocabulary.json   labels and words
        metrics.jsonl     a line for each epoch, and one for the test data
        checkpoints/      best.ckpt and last.ckpt
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError
from parsimax._runs.facts import replace, versions

from . import config as configs
from .config import Config

_OURS = {"config.yaml", "versions.json", "metrics.jsonl", "vocabulary.json", "checkpoints"}
# What a resumed run may be told anew: nothing that has shaped the weights or the data so far.
_MAY_CHANGE = {
    "training.max_epochs",
    "training.max_minutes",
    "training.patience",
    "training.device",
    "data.test",
    "optimizer.lr",
    "optimizer.clip",
}


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """All options."""
        return self.path / "config.yaml"

    @property
    def vocabulary(self) -> Path:
        """Labels and words."""
        return self.path / "vocabulary.json"

    @property
    def metrics(self) -> Path:
        """A line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """All checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a name such as ``best``."""
        return self.checkpoints / f"{name}.ckpt"


def begin(folder: RunFolder, config: Config, resume: bool) -> None:
    """Take the folder for a run, new or resumed.

    A folder in which no epoch was trained yet is nobody's, and a run begins in it again.
    """
    last = folder.checkpoint(checkpoint.LAST)
    if resume:
        _check_resumed(folder, config, last)
        checkpoint.remove_parts(folder.checkpoints)
    else:
        if last.exists():
            raise TrainingError(
                f"{folder.path} holds a run already; go on with it by --resume, or give another "
                "folder by --out"
            )
        present = {p.name for p in folder.path.iterdir()} if folder.path.is_dir() else set()
        foreign = sorted(present - _OURS)
        if (foreign and "config.yaml" not in present) or folder.path.is_file():
            what = ", ".join(foreign[:3]) or "a file"
            raise TrainingError(
                f"{folder.path} is not the folder of a run (it holds {what}); give another by --out"
            )
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.metrics.unlink(missing_ok=True)
        for old in folder.checkpoints.glob("*"):
            old.unlink()
    replace(folder.config, config.to_yaml())
    replace(folder.path / "versions.json", json.dumps(versions(), indent=1) + "\n")


def _check_resumed(folder: RunFolder, config: Config, last: Path) -> None:
    if not last.exists():
        why = "no epoch ended there yet" if folder.path.exists() else "there is no such folder"
        raise TrainingError(
            f"{folder.path} has no checkpoint to resume from: {why}; run the same command without "
            "--resume"
        )
    before, now = configs.load(folder.config).flat(), config.flat()
    changed = sorted(
        key
        for key in before.keys() | now.keys()
        if before.get(key) != now.get(key) and key not in _MAY_CHANGE
    )
    if changed:
        listed = ", ".join(f"{key} ({before.get(key)!r}, now {now.get(key)!r})" for key in changed)
        raise TrainingError(
            f"{folder.path} cannot be resumed with other values of {listed}; begin a new run"
        )
