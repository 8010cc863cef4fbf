"""Checkpoints that are whole or absent, and the random states that belong to them.

Lightning's own checkpoints are not used: they hold the number of batches *fetched*, which runs
ahead of those used, and no random states, so that a run killed in an epoch goes on with other
batches and other dropout. Ours are written under a temporary name, flushed to the disk and then
renamed, which a file system does at once or not at all: a name never stands for half a file.
"""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import TrainingError

FORMAT = 1
LAST, BEST, AVERAGE = "last", "best", "average"
_PART = ".part"

State = dict[str, Any]


def write(path: Path, state: State) -> None:
    """Write a checkpoint; whoever reads ``path`` sees the old one or the new one, whole."""
    part = path.with_name(path.name + _PART)
    with part.open("wb") as file:
        torch.save({"format": FORMAT, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk hold the names in a folder, where the system allows to ask for it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # no folders as files on this system
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> State:
    """Read a checkpoint onto the CPU; nothing in it is executed."""
    if not path.exists():
        names = sorted(p.stem for p in path.parent.glob("*.ckpt"))
        have = f"there are {', '.join(names)}" if names else "there are none in that folder"
        raise TrainingError(f"there is no checkpoint {path}; {have}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        raise TrainingError(
            f"{path} is damaged, cut off or no checkpoint ({_first_line(error)}); take another "
            "one of its folder"
        ) from error
    if not isinstance(state, dict) or "format" not in state or "model" not in state:
        raise TrainingError(f"{path} is no checkpoint of parsimax")
    if state["format"] != FORMAT:
        raise TrainingError(
            f"{path} has checkpoint format {state['format']}, and this version of parsimax reads "
            f"{FORMAT}"
        )
    found: State = state
    return found


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def remove_parts(folder: Path) -> None:
    """Remove what a killed writer left behind."""
    for part in folder.glob(f"*.ckpt{_PART}"):
        part.unlink(missing_ok=True)


def point(path: Path, target: Path) -> None:
    """Make ``path`` the same file as ``target``, at once; a copy where links do not exist."""
    part = path.with_name(path.name + _PART)
    part.unlink(missing_ok=True)
    if path.exists() and path.samefile(target):  # renaming one of two links would do nothing
        return
    try:
        os.link(target, part)
    except OSError:
        part.write_bytes(target.read_bytes())
    part.replace(path)
    sync_folder(path.parent)


def load_weights(model: torch.nn.Module, weights: State, path: Path, config: Path) -> None:
    """Put the weights of a checkpoint into the model that a config describes."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise TrainingError(
            f"{path} does not fit the model in {config}: {' '.join(str(error).split())[:300]}; "
            "take a checkpoint of this run, or the parsimax that wrote it (see versions.json)"
        ) from error


# --- random states -------------------------------------------------------------------------------


def random_state(device: torch.device) -> State:
    """All random states that this process uses, as plain values and tensors."""
    _, words, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.asarray(words, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: State, device: torch.device) -> None:
    """Go on with random numbers from where a state was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    words, position, has_gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        ("MT19937", words.numpy().astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_everything(seed: int, rank: int) -> None:
    """Begin all random numbers anew; processes have different ones."""
    mixed = int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002
    torch.manual_seed(mixed)
