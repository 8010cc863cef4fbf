"""The folder of a run: where its files are, and whether it may be taken for one."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from . import checkpoint
from .errors import TrainingError
from .facts import replace, versions

_WRITER = "parsimax train"


@dataclass(frozen=True)
class RunPaths:
    """Paths that every run has."""

    path: Path

    @property
    def config(self) -> Path:
        """All options."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A line for each event of the training."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """All checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a name such as ``best``."""
        return self.checkpoints / f"{name}.ckpt"


class Hold:
    """A folder that one process trains in, so that no other does: a lock of the operating system.

    It ends with :meth:`release`, or with the process, however that ends: those that it forks, which
    may outlive it for a while, let go of it at once. There is none where folders cannot be locked.
    """

    def __init__(self, path: Path) -> None:
        """Take the folder.

        Raises:
            TrainingError: another process trains there.
        """
        self._handle: int | None = None
        _HELD.add(self)
        try:
            import fcntl

            self._handle = os.open(path, os.O_RDONLY)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise TrainingError(
                f"another process is training in {path}; wait for its end, or give another folder "
                "by --out"
            ) from None
        except (ImportError, OSError):  # not on this system, or not on this file system
            self.release()

    def release(self) -> None:
        """Let others train there."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


_HELD: weakref.WeakSet[Hold] = weakref.WeakSet()


def _let_go() -> None:
    for hold in _HELD:
        hold.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def check_free(folder: RunPaths, beside: Collection[str] = ()) -> None:
    """Refuse a folder in which a new run would touch what is somebody's.

    ``beside`` are names of files that may be there before the run.
    """
    path = folder.path
    if path.exists() and not path.is_dir():
        raise TrainingError(f"{path} is a file, and a run needs a folder; give one by --out")
    present = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if not set(present) - set(beside):
        return
    mark = mark_of(folder)
    if mark is None:
        what = ", ".join(present[:3]) + (", ..." if len(present) > 3 else "")
        raise TrainingError(
            f"{path} is not the folder of a run (it holds {what}), and nothing in it is touched; "
            f"give another by --out, such as {path / 'run'}"
        )
    trained = sorted(p.name for p in folder.checkpoints.glob("*.ckpt"))
    if folder.checkpoint(checkpoint.LAST).exists():
        raise TrainingError(
            f"{path} holds a run already; go on with it by --resume, or give another folder by "
            "--out"
        )
    if trained:
        raise TrainingError(
            f"{path} holds checkpoints of a run already ({', '.join(trained[:3])}), without the "
            "last.ckpt that --resume needs; give another folder by --out"
        )
    if folder.config.exists() and mark != _digest(folder.config.read_bytes()):
        raise TrainingError(
            f"{folder.config} is not as the run wrote it, and it would be replaced; move it out "
            "of the folder, or give another folder by --out"
        )


def mark_of(folder: RunPaths) -> str | None:
    """The digest of the config that a run wrote into its folder; None where no run did."""
    try:
        found = json.loads((folder.path / "versions.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("written_by") != _WRITER:
        return None
    return str(found.get("config_sha256"))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def write_facts(folder: RunPaths, options: str) -> None:
    """The options, with versions and the mark of a run, which makes the folder known as ours."""
    mark = {"written_by": _WRITER, "config_sha256": _digest(options.encode())}
    replace(folder.path / "versions.json", json.dumps({**mark, **versions()}, indent=1) + "\n")
    replace(folder.config, options)
