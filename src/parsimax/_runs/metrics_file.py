"""metrics.jsonl: one JSON object a line for each log and validation, in the order of steps."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(path: Path, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Write one line."""
    line = json.dumps({"event": event, "step": step, **_finite(values)}, allow_nan=False)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def keep_until(path: Path, step: int) -> None:
    """Remove the lines of later steps, and a last line that was cut off."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) < len(lines):
        part = path.with_name(path.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file; one that was cut off by a killed run is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if _step_of(line) < math.inf]


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _finite(value: Any) -> Any:
    """JSON has no infinity: what is not a number becomes text that says so."""
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
