"""What a run writes down while it trains: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class Recorder:
    """One JSON object a line, in the order of steps, and the same for TensorBoard.

    Args:
        metrics: The file, which is added to.
        tensorboard: The folder of its events.
        step: Where the run goes on. Lines of later steps are of a run that was killed, which will
            write them once more; they are removed.
    """

    def __init__(self, metrics: Path, tensorboard: Path, step: int) -> None:
        self.metrics = metrics
        keep_until(metrics, step)
        self._writer = _open_writer(tensorboard, step)

    def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line; numbers and tables of numbers go to TensorBoard, too."""
        line = json.dumps({"event": event, "step": step, **_finite(values)}, allow_nan=False)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        for name, value in values.items():
            self._draw(f"{event}/{name}", value, step)

    def _draw(self, name: str, value: object, step: int) -> None:
        if isinstance(value, bool | str) or value is None:
            return
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self._draw(f"{name}/{key}", inner, step)
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                self._draw(f"{name}.{number}", inner, step)
        elif isinstance(value, int | float):
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Have everything in the files."""
        self._writer.flush()

    def close(self) -> None:
        """No more lines."""
        self._writer.close()


def _open_writer(folder: Path, step: int) -> SummaryWriter:
    import logging

    # tensorboard looks for tensorflow and remarks on not finding it
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


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
