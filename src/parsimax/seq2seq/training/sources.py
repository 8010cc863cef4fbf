"""Which files a run was encoded from, so that a resumed run notices when they are others.

A run trains on what it encoded when it began. Files that changed since would be ignored in silence,
so a resumed run compares them; files that are no longer there are not needed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from parsimax._runs.errors import TrainingError
from parsimax.seq2seq.config import DataSettings
from parsimax.seq2seq.data import readers

Digests = dict[str, dict[str, str]]  # of each corpus: a file's path, and the hash of its content


def digests(data: DataSettings) -> Digests:
    """Of all files; one that is not there is an error."""
    return {name: _of(data, paths) for name, paths in _paths(data).items()}


def check_unchanged(file: Path, data: DataSettings, run: str) -> None:
    """Raise for source files that are not what ``file`` says was encoded."""
    if not file.exists():  # a run of an earlier version
        return
    before: Digests = json.loads(file.read_text("utf-8"))
    for name, paths in _paths(data).items():
        try:
            now = _of(data, paths)
        except FileNotFoundError:
            continue
        then = before.get(name, {})
        changed = [path for path in now if path in then and now[path] != then[path]]
        new = [path for path in now if path not in then]
        for found, what in ((changed, "is not what it was"), (new, "was not there")):
            if found:
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                raise TrainingError(
                    f"data.{name}: {found[0]}{more} {what} when {run} began, and a resumed run "
                    "goes on with the data that it began with; put the files back as they were to "
                    "resume it, or train anew with --out and another folder"
                )


def _paths(data: DataSettings) -> dict[str, tuple[str, ...]]:
    return {"train": data.train, "validation": data.validation}


def _of(data: DataSettings, paths: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for path in readers.read(data.format, paths).paths:
        with path.open("rb") as file:
            found[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
