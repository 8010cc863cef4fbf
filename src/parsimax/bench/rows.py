"""Rows of scores to rows of probabilities, timed against torch.softmax and the entmax package."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import parsimax.mappings as px
from parsimax.bench import gate, timing

Solver = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One contender on one input; times are in milliseconds, ratios are to torch.softmax."""

    shape: tuple[int, int]
    std: float
    alpha: float
    contender: str
    refused: str | None
    forward_ms: float | None = None
    backward_ms: float | None = None
    forward_ratio: float | None = None
    backward_ratio: float | None = None


def contenders(alpha: float) -> Iterator[tuple[str, Solver]]:
    """Ours, and what the entmax package offers for this alpha."""
    import entmax

    yield "parsimax", lambda z: px.entmax(z, alpha)
    if alpha == 1.5:
        yield "entmax.entmax15", lambda z: entmax.entmax15(z, dim=-1)
    elif alpha == 2.0:
        yield "entmax.sparsemax", lambda z: entmax.sparsemax(z, dim=-1)
    else:
        yield "entmax.entmax_bisect", lambda z: entmax.entmax_bisect(z, alpha=alpha, dim=-1)


def main(
    *,
    dtype: str,
    shapes: list[tuple[int, int]],
    alphas: list[float],
    std: list[float],
    repeats: int,
    out: Path | None,
) -> int:
    """Check, time, print, and store; 1 if a result of ours was refused."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    steady = timing.reuse_memory()
    console = Console()
    results: list[Row] = []
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("rows", total=len(shapes) * len(std) * len(alphas))
            for shape in shapes:
                for deviation in std:
                    for alpha in alphas:
                        note = f"{shape[0]}x{shape[1]} std {deviation:g} alpha {alpha:g}"
                        progress.update(task, description=note)
                        results += measure(shape, deviation, alpha, dtype, repeats)
                        progress.advance(task)
    finally:
        torch.set_num_threads(threads)
    console.print(table(results, dtype))
    if not steady:
        console.print("memory could not be kept between calls here: times include page faults")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        report = {**machine(), "dtype": dtype, "rows": [asdict(row) for row in results]}
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {out}")
    return int(any(row.refused and row.contender == "parsimax" for row in results))


def measure(
    shape: tuple[int, int], std: float, alpha: float, dtype: str, repeats: int
) -> list[Row]:
    """All contenders on one input; each is checked against float64 before it is timed."""
    generator = torch.Generator().manual_seed(0)
    kind: torch.dtype = getattr(torch, dtype)
    z = (torch.randn(shape, generator=generator) * std).to(kind).requires_grad_()
    g = torch.randn(shape, generator=generator).to(kind)

    def both(solver: Solver) -> Callable[[], object]:
        return lambda: torch.autograd.grad(solver(z), z, g)

    def alone(solver: Solver) -> Callable[[], object]:
        return lambda: _without_gradient(solver, z)

    refused: dict[str, str | None] = {}
    forward: dict[str, Callable[[], object]] = {}
    backward: dict[str, Callable[[], object]] = {}
    peers: list[tuple[str, Solver]] = [("torch.softmax", lambda x: torch.softmax(x, -1))]
    for name, solver in [*peers, *contenders(alpha)]:
        if name != "torch.softmax":
            p = solver(z)
            (gz,) = torch.autograd.grad(p, z, g)
            refused[name] = gate.refuse(z.detach(), g, p.detach(), gz, alpha)
            if refused[name]:
                continue
        forward[name], backward[name] = alone(solver), both(solver)
    forwards, backwards = timing.medians(forward, repeats), timing.medians(backward, repeats)
    rows = []
    for name, reason in refused.items():
        if reason:
            rows.append(Row(shape, std, alpha, name, reason))
            continue
        f, b = forwards[name], backwards[name]
        base_f, base_b = forwards["torch.softmax"], backwards["torch.softmax"]
        rows.append(Row(shape, std, alpha, name, None, f * 1e3, b * 1e3, f / base_f, b / base_b))
    return rows


def _without_gradient(solver: Solver, z: Tensor) -> Tensor:
    with torch.no_grad():
        return solver(z)


def table(rows: list[Row], dtype: str) -> Table:
    """Ratios to torch.softmax, lower is faster."""
    result = Table(title=f"time / torch.softmax, {dtype}, one thread", title_justify="left")
    for name in ("shape", "std", "alpha", "contender"):
        result.add_column(name, no_wrap=True)
    result.add_column("forward", justify="right")
    result.add_column("and backward", justify="right")
    for row in rows:
        cells = [f"{row.shape[0]}x{row.shape[1]}", f"{row.std:g}", f"{row.alpha:g}", row.contender]
        if row.refused:
            result.add_row(*cells, f"wrong: {row.refused}", "not timed", style="dim")
        else:
            result.add_row(
                *cells,
                f"{row.forward_ratio:.2f} x",
                f"{row.backward_ratio:.2f} x",
                style="bold" if row.contender == "parsimax" else None,
            )
    return result


def machine() -> dict[str, str]:
    """Where and when, with versions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numba", "entmax", "parsimax")},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
