"""The folder of a classifier's run.

::

    RUN/config.yaml       all options, resolved
        versions.json     of Python and of the packages that matter
        vocabulary.json   labels and words
        metrics.jsonl     a line for each epoch, and one for the test data
        checkpoints/      best.ckpt and last.ckpt
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError
from parsimax._runs.folder import RunPaths, check_free, write_facts

from . import config as configs
from .config import Config

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
class RunFolder(RunPaths):
    """Paths of a run."""

    @property
    def vocabulary(self) -> Path:
        """Labels and words."""
        return self.path / "vocabulary.json"


def begin(folder: RunFolder, config: Config, resume: bool) -> None:
    """Take the folder for a run, new or resumed.

    A folder in which no epoch was trained yet is nobody's, and a run begins in it again.
    """
    last = folder.checkpoint(checkpoint.LAST)
    if resume:
        _check_resumed(folder, config, last)
        checkpoint.remove_parts(folder.checkpoints)
    else:
        check_free(folder)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.metrics.unlink(missing_ok=True)
        checkpoint.remove_parts(folder.checkpoints)
    write_facts(folder, config.to_yaml())


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
