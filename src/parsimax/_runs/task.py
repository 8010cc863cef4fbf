"""What a config or a run is for: ``task: classification``, or sequences if it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parsimax._core.validation import nearest

from . import config_reader
from .config_reader import ConfigError, Given

CLASSIFICATION = "classification"


def task_of(config: Path, overrides: Sequence[str] = ()) -> str | None:
    """The task that a config file names, or None for sequence-to-sequence.

    Raises:
        ConfigError: it names another.
    """
    tree = config_reader.read_yaml(config)
    config_reader.merge(tree, config_reader.read_overrides(overrides))
    given = tree.get("task")
    if given is None:
        return None
    if isinstance(given, Given) and given.value == CLASSIFICATION:
        return CLASSIFICATION
    what = given.value if isinstance(given, Given) else given
    where = given.where if isinstance(given, Given) else str(config)
    raise ConfigError(
        f"{where}: task: expected {CLASSIFICATION}, or no task for sequence-to-sequence, got "
        f"{what!r}{nearest(str(what), [CLASSIFICATION])}"
    )


def is_classifier(run: Path) -> bool:
    """Whether a folder is the run of a classifier."""
    config = run / "config.yaml"
    return config.is_file() and task_of(config) == CLASSIFICATION
