"""What a run writes down while it trains: metrics.jsonl and TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parsimax._runs import metrics_file

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
        metrics_file.keep_until(metrics, step)
        self._writer = _open_writer(tensorboard, step)

    def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line; numbers and tables of numbers go to TensorBoard, too."""
        metrics_file.append(self.metrics, event, step, values)
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
