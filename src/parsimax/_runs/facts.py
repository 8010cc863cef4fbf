"""What a run folder says of itself: versions, and small files that are whole or absent."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("parsimax", "torch", "numpy", "numba", "triton", "pytorch-lightning", "tokenizers")


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter."""
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def replace(path: Path, text: str) -> None:
    """Write a file under another name and rename it: nobody reads half of it."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
