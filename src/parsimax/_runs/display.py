"""What a person sees while a run trains: a bar on a terminal, a line a validation anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN = 0.2


class Display:
    """A progress bar with tokens a second, loss and learning rate, and lines above it.

    Args:
        quiet: Show nothing, as all processes but one do.
        stream: Where to; a bar is drawn if that is a terminal.
    """

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._drawn = 0.0

    def start(self, total: int | None, done: int) -> None:
        """Begin to count steps."""
        if self.quiet or not self.stream.isatty():
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=Console(file=self.stream),
            refresh_per_second=4,
        )
        self._task = self._bar.add_task("", total=total, completed=done)
        self._bar.start()

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int], object]]:
        """Show how many there are so far; gives the function that is told."""
        if self.quiet or not self.stream.isatty():
            yield lambda count: None
            return
        from rich.console import Console

        with Console(file=self.stream).status(what) as status:
            yield lambda count: status.update(f"{what}: {count:,}")

    def step(self, step: int, text: str | None = None) -> None:
        """Steps so far; called at every one, it draws a few times a second."""
        if self._bar is None or self._task is None:
            return
        now = time.monotonic()
        if text is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif now - self._drawn > _SECONDS_BETWEEN:
            self._bar.update(self._task, completed=step)
        else:
            return
        self._drawn = now

    def line(self, text: str) -> None:
        """Say something that stays."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self.stream.write(text + "\n")
            self.stream.flush()

    def stop(self) -> None:
        """No more steps."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
