"""A run that was trained: its model, codec and config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parsimax._runs import checkpoint as files
from parsimax._runs.errors import TrainingError

from . import config as configs
from .config import Config
from .data.textcodec import TextCodec
from .models import Seq2Seq, build
from .training.folder import RunFolder


@dataclass(frozen=True)
class Run:
    """What decoding, completion and evaluation need.

    Args:
        model: In evaluation mode.
        codec: Text to symbols and back.
        config: All options of the run.
        folder: Where it is.
        checkpoint: Which file the weights are from.
        step: Of the optimiser.
        validated: Its validation; empty if there was none.
    """

    model: Seq2Seq[Any]
    codec: TextCodec
    config: Config
    folder: Path
    checkpoint: Path
    step: int
    validated: dict[str, Any]


def load(run: str | Path, checkpoint: str = "best", device: str | torch.device = "cpu") -> Run:
    """Load the model of a run.

    Args:
        run: The run folder.
        checkpoint: ``best``, ``last``, ``average``, a name such as ``step-00001000``, or the
            path of a checkpoint file.
        device: Where the model goes.
    """
    folder = RunFolder(Path(run))
    if not folder.config.exists():
        what = "there is no such folder" if not folder.path.is_dir() else "it has no config.yaml"
        raise TrainingError(
            f"{folder.path} is not the folder of a run: {what}; parsimax train writes one"
        )
    config = configs.load(folder.config)
    path = folder.checkpoint(checkpoint)
    if checkpoint.endswith(".ckpt"):
        path = Path(checkpoint)
    elif checkpoint == "best" and not path.exists() and folder.checkpoint("last").exists():
        raise TrainingError(
            f"{folder.path} has no best checkpoint: it was not validated yet, or the file is gone; "
            "take the last one with --checkpoint last"
        )
    state = files.read(path)
    codec = TextCodec.load(folder.codec)
    if state["codec"] != codec.fingerprint:
        raise TrainingError(
            f"{path} was trained with another vocabulary than the one in {folder.codec}; take a "
            "checkpoint of this run, or the codec folder of the run that the checkpoint is from"
        )
    model = build(config.model, len(codec.source_vocabulary), len(codec.target_vocabulary))
    files.load_weights(model, state["model"], path, folder.config)
    return Run(
        model=model.to(device).eval(),
        codec=codec,
        config=config,
        folder=folder.path,
        checkpoint=path,
        step=state["progress"]["step"],
        validated=state["validated"],
    )
