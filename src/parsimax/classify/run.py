"""A classifier that was trained: its model, vocabulary and config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parsimax._runs import checkpoint as checkpoints
from parsimax._runs.errors import TrainingError

from . import config as configs
from . import examples
from .config import Config
from .examples import Examples
from .folder import RunFolder
from .model import Classifier
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Run:
    """What evaluation and audits need.

    Args:
        model: In evaluation mode.
        vocabulary: Words and labels.
        config: All options of the run.
        folder: Where it is; None for one that was never written.
        epoch: Of the checkpoint.
        validated: Its scores on the validation data.
        data: Fingerprint of what it was trained on; None for runs of earlier versions.
    """

    model: Classifier
    vocabulary: Vocabulary
    config: Config
    folder: Path | None = None
    epoch: int = 0
    validated: dict[str, Any] | None = None
    data: str | None = None

    def read(
        self, paths: Sequence[str | Path], *, labelled: bool = True, skip_bad: bool | None = None
    ) -> Examples:
        """Read texts as this run's own data were read."""
        return read(self.config, paths, labelled=labelled, skip_bad=skip_bad)


def read(
    config: Config,
    paths: Sequence[str | Path],
    *,
    labelled: bool = True,
    skip_bad: bool | None = None,
    **more: Any,
) -> Examples:
    """Read texts as a config says; ``skip_bad`` is the config's unless it is given."""
    data = config.data
    return examples.read(
        paths,
        examples.Tokenizer(data.tokens, data.lowercase),
        format=data.format,
        min_length=data.min_length,
        max_length=data.max_length,
        too_long=data.too_long,
        labelled=labelled,
        skip_bad=data.skip_bad if skip_bad is None else skip_bad,
        **more,
    )


def load(run: str | Path, checkpoint: str = "best", device: str | torch.device = "cpu") -> Run:
    """Load the model of a run.

    Args:
        run: The run folder.
        checkpoint: ``best``, ``last``, or the path of a checkpoint file.
        device: Where the model goes.
    """
    folder = RunFolder(Path(run))
    if not folder.config.exists():
        what = "there is no such folder" if not folder.path.is_dir() else "it has no config.yaml"
        raise TrainingError(
            f"{folder.path} is not the folder of a run: {what}; parsimax train writes one"
        )
    config = configs.load(folder.config)
    path = Path(checkpoint) if checkpoint.endswith(".ckpt") else folder.checkpoint(checkpoint)
    state = checkpoints.read(path)
    vocabulary = Vocabulary.load(folder.vocabulary)
    if state["vocabulary"] != vocabulary.fingerprint:
        raise TrainingError(
            f"{path} was trained with another vocabulary than {folder.vocabulary}; take a "
            "checkpoint of this run"
        )
    settings = config.model
    size = state["model"]["embedding.weight"].shape[1]
    model = Classifier(
        settings,
        len(vocabulary),
        len(vocabulary.labels),
        torch.zeros(len(vocabulary), size) if settings.embedding is None else None,
    )
    checkpoints.load_weights(model, state["model"], path, folder.config)
    return Run(
        model=model.to(device).eval(),
        vocabulary=vocabulary,
        config=config,
        folder=folder.path,
        epoch=state["epoch"],
        validated=state["validated"],
        data=state.get("data"),
    )
