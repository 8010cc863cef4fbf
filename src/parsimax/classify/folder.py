"""The folder of a classifier's run.

::

    RUN/config.yaml       all options, resolved
        versions.json     of Python and of the packages that matter
        vocabulary.json   labels and words
        metrics.jsonl     a line for each epoch, and one for the test data
        checkpoints/      best.ckpt and last.ckpt
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parsimax._runs import checkpoint
from parsimax._runs.errors import TrainingError
from parsimax._runs.folder import RunPaths, check_free, write_facts

from . import config as configs
from .config import Config

# What says nothing about the weights of a run that has ended.
NO_MATTER = {"training.device"}
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


def begin(folder: RunFolder, config: Config) -> None:
    """Take the folder for a new run.

    A folder in which no epoch was trained yet is nobody's, and a run begins in it again.
    """
    check_free(folder)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    folder.metrics.unlink(missing_ok=True)
    checkpoint.remove_parts(folder.checkpoints)
    write_facts(folder, config.to_yaml())


def go_on(folder: RunFolder, config: Config) -> None:
    """Take the folder for a run that is resumed, after all that may refuse it was checked."""
    checkpoint.remove_parts(folder.checkpoints)
    write_facts(folder, config.to_yaml())


def changes(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, str]:
    """Options that differ, each with "name (old, now new)"."""
    return {
        key: f"{key} ({before.get(key)!r}, now {now.get(key)!r})"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }


def changed(folder: RunFolder, config: Config) -> dict[str, str]:
    """Options of a run's own config that differ from those of another config."""
    return changes(configs.load(folder.config).flat(), config.flat())


def check_resumed(folder: RunFolder, config: Config) -> dict[str, str]:
    """Refuse to resume a run with options that it may not be told anew; gives the others."""
    if not folder.checkpoint(checkpoint.LAST).exists():
        why = "no epoch ended there yet" if folder.path.exists() else "there is no such folder"
        raise TrainingError(
            f"{folder.path} has no checkpoint to resume from: {why}; run the same command without "
            "--resume"
        )
    differ = changed(folder, config)
    refused = [words for key, words in differ.items() if key not in _MAY_CHANGE]
    if refused:
        raise TrainingError(
            f"{folder.path} cannot be resumed with other values of {', '.join(refused)}; begin a "
            "new run"
        )
    return differ
