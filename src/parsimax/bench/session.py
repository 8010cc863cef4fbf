"""One benchmark from beginning to end: prepare, measure case after case, print, and store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from parsimax.bench import results, timing
from parsimax.bench.ahead import Ahead

Note = Callable[[str], None]

_WIDTH = 160  # of a table that goes to a file


class Result(Protocol):
    """What a benchmark measured of one contender."""

    def complaint(self) -> str | None:
        """What is wrong with a result of ours, and on which input; None for all others."""
        ...


@dataclass(frozen=True)
class Resume:
    """How to go on with the file of a run that was cut short: its results, and their cases."""

    row: Callable[..., Result]
    case: Callable[[Any], str]


def choose(device: str) -> str:
    """The device to run on: ``auto`` takes a GPU where there is one.

    >>> choose("cpu")
    'cpu'
    """
    available = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if available else "cpu"
    if device == "cuda" and not available:
        raise ValueError(f"device: cuda was asked for, and torch {torch.__version__} sees no GPU")
    return device


def check_only(only: Sequence[str], names: Iterable[str]) -> None:
    """Refuse parts of names of which nobody has any: there would be nothing to time."""
    if not only:
        return
    there = list(dict.fromkeys(names))
    if not any(part in name for part in only for name in there):
        raise ValueError(
            f"only: nobody has {' or '.join(only)} in the name; there are {', '.join(there)}"
        )


def run(
    kind: str,
    device: str,
    cases: Mapping[str, Callable[[Note], Sequence[Result]]],
    table: Callable[[list[Any]], Table],
    about: Mapping[str, Any],
    out: Path | None,
    resume: Resume | None = None,
    ahead: Callable[[Sequence[str]], Ahead] | None = None,
) -> int:
    """Measure every case, with its name in the progress bar; 1 if a result of ours was refused.

    ``ahead`` says what to compile for the cases of these names, which happens first.

    The file is written after each case, so that a run that is cut short leaves what it has, and one
    that is to ``resume`` leaves out what it finds there.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    path = None if out is None else results.destination(out, kind, device)
    header = {**results.machine(device), **about}
    rows: list[Result] = []
    if resume is not None:
        if path is None:
            raise ValueError("resume: there is nothing to go on with where --out names no file")
        rows += [resume.row(**row) for row in results.earlier(path, header)]
        found = {resume.case(row) for row in rows}
        cases = {name: measure for name, measure in cases.items() if name not in found}
    with prepared(device) as steady, Progress(console=console, transient=True) as progress:
        if ahead is not None:
            _compile(ahead(list(cases)), progress)
        task = progress.add_task(kind, total=len(cases))
        for name, measure in cases.items():
            progress.update(task, description=name)
            rows += measure(_noting(progress, task, name))
            progress.advance(task)
            if path is not None:
                results.store(path, header, rows)
    console.print(table(rows))
    for note in notes(device, steady, header):
        console.print(note)
    if path is not None:
        console.print(f"written to {path}")
    complaints = [text for text in (row.complaint() for row in rows) if text]
    for text in complaints:
        console.print(f"ours is wrong: {text}")
    return int(bool(complaints))


def _compile(ahead: Ahead, progress: Progress) -> None:
    task = progress.add_task("compiling", total=len(ahead.items))
    wrong = []
    for error in ahead.results():
        progress.advance(task)
        wrong += [] if error is None else [error]
    progress.remove_task(task)
    if wrong:  # it will be compiled, or fail, where it is measured
        progress.console.print(
            f"{len(wrong)} of {len(ahead.items)} were not compiled ahead: {wrong[0]}"
        )


@contextlib.contextmanager
def prepared(device: str) -> Iterator[bool]:
    """One thread and memory that is kept on a CPU; yields whether memory could be kept."""
    if device == "cuda":
        yield True
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield timing.reuse_memory()
    finally:
        torch.set_num_threads(threads)


def notes(device: str, steady: bool, header: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the table has to know."""
    if not steady:
        yield "memory could not be kept between calls here: times include page faults"
    for name in ("entmax", "adasplash"):
        if header.get(name) == results.ABSENT:
            yield f"{name} is not installed and takes no part"
    if device == "cuda":
        yield "times are of CUDA graphs up to 100 ms; those with an asterisk could not be captured"


def _noting(progress: Progress, task: Any, name: str) -> Note:
    return lambda text: progress.update(task, description=f"{name} {text}")
