"""Where and when something was measured, with versions, and the file that keeps it."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import parsimax

ABSENT = "absent"
_PACKAGES = {"cpu": ("numba", "entmax"), "cuda": ("triton", "entmax", "adasplash")}
_DIGITS = 6
_DIGITS_OF_CODE = 12


def machine(device: str = "cpu") -> dict[str, str]:
    """Where and when, with versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **(_gpu() if device == "cuda" else {}),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: installed(name) for name in _PACKAGES[device]},
        "parsimax": parsimax.__version__,
        "code": code(),
    }


def code() -> str:
    """Digits that tell the code of parsimax from any other, whoever has committed what."""
    folder = Path(parsimax.__file__).parent
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        found.update(path.relative_to(folder).as_posix().encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:_DIGITS_OF_CODE]


def installed(name: str) -> str:
    """The version of a package, or that there is none.

    >>> installed("a-package-that-nobody-wrote")
    'absent'
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ABSENT


def destination(out: Path, kind: str, device: str) -> Path:
    """The file for the results; in a directory it is named for what ran and where.

    >>> destination(Path("a.json"), "rows", "cpu").as_posix()
    'a.json'
    >>> destination(Path("results"), "rows", "cpu").as_posix()
    'results/rows-cpu.json'
    """
    if out.suffix and not out.is_dir():
        return out
    place = slug(torch.cuda.get_device_name()) if device == "cuda" else device
    return out / f"{kind}-{place}.json"


def slug(name: str) -> str:
    """A name that may stand in a file name.

    >>> slug("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def store(path: Path, about: dict[str, Any], rows: Sequence[Any]) -> None:
    """Write a header and the results, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(_rounded(about), indent=1)[:-2]
    lines = ",\n".join(f"  {json.dumps(_rounded(asdict(row)))}" for row in rows)
    unfinished = path.with_name(f"{path.name}.part")  # who is killed leaves the last one whole
    unfinished.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    unfinished.replace(path)


def earlier(path: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of a file, [] if there is none; of another machine or code they are refused."""
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows: list[dict[str, Any]] = found.pop("rows")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"resume: {path} holds no results of a benchmark") from None
    now = json.loads(json.dumps(_rounded(about)))
    for name in sorted((now.keys() | found.keys()) - {"date"}):
        then, here = found.get(name, ABSENT), now.get(name, ABSENT)
        if then != here:
            raise ValueError(
                f"resume: {path} was measured with {name} {then}, and here it is {here}"
            )
    return rows


def _rounded(value: Any) -> Any:
    """Nobody measures more digits than these."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _gpu() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split("\n", 1)[0].strip() or "unknown"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
