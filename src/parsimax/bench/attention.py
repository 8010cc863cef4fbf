"""Attention over many keys: time and memory of forward and backward beside dense softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from parsimax.bench import attention_contenders as contenders
from parsimax.bench import attention_gate as gate
from parsimax.bench import memory, profile, session, timing
from parsimax.bench.ahead import Ahead
from parsimax.bench.attention_contenders import CUDNN, DENSE, LEARNED, OURS, Problem, Shape

_TOGETHER = 65536  # tokens of a batch, whatever the length of one item
_HEADS = 16
_MINE = frozenset({OURS, LEARNED})


@dataclass(frozen=True)
class Row:
    """One contender on one problem; ratios are to dense softmax, memory is beyond the inputs."""

    tokens: int
    batch: int
    size: int
    causal: bool
    empty: float
    dtype: str
    contender: str
    refused: str | None = None
    measured_empty: float | None = None
    forward_ms: float | None = None
    ms: float | None = None
    graph: bool | None = None
    ratio: float | None = None
    peak_mib: float | None = None
    kernels_ms: dict[str, float] | None = None  # where the time goes, on a GPU

    def complaint(self) -> str | None:
        """Why a result of ours was refused, and on which input."""
        if self.contender not in _MINE or not self.refused:
            return None
        return f"{self.contender}, {_shape(self).name}: {self.refused}"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    device: str
    dtype: str
    shapes: Sequence[Shape]
    only: Sequence[str]
    repeats: int


def plan(
    *,
    device: str = "auto",
    dtype: str | None = None,
    tokens: Sequence[int] = (),
    sizes: Sequence[int] = (),
    empty: Sequence[float] = (),
    causal: bool | None = None,
    only: Sequence[str] = (),
    repeats: int | None = None,
) -> Plan:
    """What was asked for; the rest is what suits the device."""
    device = session.choose(device)
    on_gpu = device == "cuda"
    together, heads = (_TOGETHER, _HEADS) if on_gpu else (1024, 8)
    shapes = [
        Shape(max(1, together // length), heads, length, size, band, share)
        for size in sizes or ((64, 128) if on_gpu else (64,))
        for length in tokens or ((4096, 16384, 65536) if on_gpu else (512, 1024))
        for band in ((False, True) if causal is None else (causal,))
        for share in empty or ((0.0, 0.5, 0.75, 0.9) if on_gpu else (0.0, 0.75))
    ]
    if any(shape.empty > 0 and shape.size < contenders.CODES for shape in shapes):
        raise ValueError(
            f"sizes: blocks are made empty by {contenders.CODES} numbers of a head, got "
            f"{min(shape.size for shape in shapes)}; with --empty 0 it may be smaller"
        )
    session.check_only(only, (name for x in shapes for name in contenders.contenders(x, device)))
    return Plan(device, dtype or ("bfloat16" if on_gpu else "float32"), shapes, only, repeats or 5)


def main(todo: Plan, out: Path | None = None, resume: bool = False) -> int:
    """Check, time, print and store; 1 if a result of ours was refused."""
    checked: Checked = {}
    cases = {shape.name: _case(shape, todo, checked) for shape in todo.shapes}
    about = {
        "device": todo.device, "dtype": todo.dtype, "repeats": todo.repeats,
        "heads": todo.shapes[0].heads, "only": list(todo.only),
    }  # fmt: skip
    again = session.Resume(Row, lambda row: _shape(row).name) if resume else None
    ahead = (lambda names: _ahead(todo, names)) if todo.device == "cuda" else None
    return session.run("attention", todo.device, cases, table, about, out, again, ahead)


def _ahead(todo: Plan, names: Sequence[str]) -> Ahead:
    """Each contender that has kernels to compile, on each kind of problem; the longest first.

    What is the same for all lengths is found in the cache by those that come later.
    """
    kinds = {replace(shape, empty=0.0) for shape in todo.shapes if shape.name in names}
    items = [
        (todo, shape, name)
        for shape in sorted(kinds, key=lambda shape: (shape.tokens, shape.size), reverse=True)
        for name in _chosen(shape, todo)
        if name not in contenders.SOFTMAX
    ]
    return Ahead(compile_kernels, items)


def compile_kernels(todo: Plan, shape: Shape, name: str) -> None:
    """All that :func:`measure` lets this contender compile."""
    attend = _chosen(shape, todo)[name]
    gate.refuse(name, attend, shape, todo.dtype, todo.device)
    dtype = getattr(torch, todo.dtype)
    if name == contenders.SPLASH_2:
        contenders.choose_tiles(attend, shape, dtype, todo.device)
    for run in _steps(name, attend, contenders.problem(shape, dtype, todo.device)):
        run()


# What the gate said of a contender on fewer tokens: these are the same for several lengths
Checked = dict[tuple[str, Shape], gate.Refusal | None]


def _case(shape: Shape, todo: Plan, checked: Checked) -> Callable[[session.Note], list[Row]]:
    return lambda note: measure(shape, todo, note, checked)


def measure(
    shape: Shape,
    todo: Plan,
    note: session.Note = lambda _: None,
    checked: Checked | None = None,
) -> list[Row]:
    """All contenders on one problem."""
    checked = {} if checked is None else checked
    chosen = _chosen(shape, todo)
    p = contenders.problem(shape, getattr(torch, todo.dtype), todo.device)
    share = gate.empty_share(p)
    rows: dict[str, Row] = {}
    runs: dict[str, tuple[Any, Any]] = {}
    for name, attend in chosen.items():
        note(f"{name}: checking")
        like = name, replace(shape, batch=1, tokens=min(shape.tokens, gate.MOST))
        if like not in checked:
            checked[like] = gate.refuse(name, attend, shape, todo.dtype, todo.device)
        if name == contenders.SPLASH_2 and checked[like] is None:
            note(f"{name}: choosing its tiles")
            contenders.choose_tiles(attend, shape, p.q.dtype, todo.device)
        found = checked[like] or gate.refuse_rows(name, attend, p, todo.dtype)
        rows[name] = Row(
            shape.tokens, shape.batch, shape.size, shape.causal, shape.empty, todo.dtype, name,
            None if found is None else found.why,
            share if name not in contenders.SOFTMAX else None,
        )  # fmt: skip
        # one that is wrong is timed all the same if it is not ours: so fast is what it does
        if found is None or (found.ran and name not in _MINE):
            runs[name] = _steps(name, attend, p)
    for name, (forward, both) in runs.items():
        note(f"{name}: timing")
        on_gpu = todo.device == "cuda"
        times = timing.times({"forward": forward, "both": both}, 1, todo.repeats, todo.device)
        rows[name] = replace(
            rows[name], forward_ms=times["forward"].ms, ms=times["both"].ms,
            graph=times["both"].graph,
            peak_mib=memory.gpu_peak(both, contenders.wanted(name, p)) if on_gpu else None,
            kernels_ms=profile.kernels(both) if on_gpu and name in _MINE else None,
        )  # fmt: skip
    dense = rows[_base(todo)].ms
    return [
        replace(row, ratio=None if row.ms is None or not dense else row.ms / dense)
        for row in rows.values()
    ]


def _base(todo: Plan) -> str:
    return CUDNN if todo.device == "cuda" else DENSE


def _chosen(shape: Shape, todo: Plan) -> dict[str, contenders.Attend]:
    return {
        name: attend
        for name, attend in contenders.contenders(shape, todo.device).items()
        if name == _base(todo) or not todo.only or any(word in name for word in todo.only)
    }


def _steps(name: str, attend: contenders.Attend, p: Problem) -> tuple[Any, Any]:
    """(forward alone, forward and backward)."""

    def forward() -> Any:
        with torch.no_grad():
            return attend(p)

    def both() -> Any:
        return torch.autograd.grad(attend(p), contenders.wanted(name, p), p.g)

    return forward, both


def _shape(row: Row) -> Shape:
    return Shape(row.batch, 0, row.tokens, row.size, row.causal, row.empty)


def table(rows: list[Row]) -> Table:
    """Times, and their ratios to dense softmax; lower is better."""
    result = Table(
        title="attention, forward and backward; ratios to dense softmax", title_justify="left"
    )
    for name in ("problem", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("empty", "forward", "both", "ratio", "memory"):
        result.add_column(name, justify="right")
    for row in rows:
        wrong = f" ({row.refused})" if row.refused and row.ms is not None else ""
        cells = [_shape(row).name, row.contender + wrong]
        cells.append("" if row.measured_empty is None else f"{row.measured_empty:.0%}")
        if row.ms is None:
            result.add_row(*cells, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            *cells,
            f"{row.forward_ms:.2f} ms",
            f"{row.ms:.2f} ms{'' if row.graph is not False else ' *'}",
            "" if row.ratio is None else f"{row.ratio:.2f} x",
            "" if row.peak_mib is None else f"{row.peak_mib:.0f} MiB",
            style="bold" if row.contender in _MINE else None,
        )
        if row.kernels_ms:
            parts = ", ".join(f"{name} {ms:.2f}" for name, ms in row.kernels_ms.items())
            result.add_row("", f"  {parts}", style="dim")
    return result
