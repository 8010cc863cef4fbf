"""One step of decoding against a long cache: time beside the fastest of torch's own softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

import parsimax as px
from parsimax.bench import decoding_contenders as contenders
from parsimax.bench import session, timing
from parsimax.bench.attention_gate import TOLERANCE
from parsimax.bench.decoding_contenders import BLOCK, MINE, Problem, Shape

# (batch, heads, heads of keys and values), as models that are served have them
_GPU_SHAPES = ((8, 32, 8), (1, 32, 8), (4, 16, 16))
_CPU_SHAPES = ((2, 4, 2),)


@dataclass(frozen=True)
class Row:
    """One contender on one problem; ratios are to the fastest of torch's."""

    batch: int
    heads: int
    shared: int
    keys: int
    size: int
    empty: float
    dtype: str
    contender: str
    refused: str | None = None
    measured_empty: float | None = None
    ms: float | None = None
    eager_ms: float | None = None
    graph: bool | None = None
    ratio: float | None = None

    def complaint(self) -> str | None:
        """Why a result of ours was refused, and on which input."""
        if self.contender not in MINE or not self.refused:
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
    only: Sequence[str] = (),
    repeats: int | None = None,
) -> Plan:
    """What was asked for; the rest is what suits the device."""
    device = session.choose(device)
    on_gpu = device == "cuda"
    shapes = [
        Shape(batch, heads, shared, keys, size, share)
        for size in sizes or ((128,) if on_gpu else (64,))
        for keys in tokens or ((131072,) if on_gpu else (2048,))
        for batch, heads, shared in (_GPU_SHAPES if on_gpu else _CPU_SHAPES)
        for share in empty or (0.0, 0.9)
    ]
    session.check_only(only, (*contenders.BACKENDS, *sorted(MINE)))
    return Plan(device, dtype or ("bfloat16" if on_gpu else "float32"), shapes, only, repeats or 11)


def main(todo: Plan, out: Path | None = None, resume: bool = False) -> int:
    """Check, time, print and store; 1 if a result of ours was refused."""
    cases = {shape.name: _case(shape, todo) for shape in todo.shapes}
    about = {"device": todo.device, "dtype": todo.dtype, "repeats": todo.repeats}
    about["only"] = list(todo.only)
    again = session.Resume(Row, lambda row: _shape(row).name) if resume else None
    return session.run("decoding", todo.device, cases, table, about, out, again)


def _case(shape: Shape, todo: Plan) -> Callable[[session.Note], list[Row]]:
    return lambda note: measure(shape, todo, note)


@torch.no_grad()
def measure(shape: Shape, todo: Plan, note: session.Note = lambda _: None) -> list[Row]:
    """All contenders on one problem; all of torch's take part, as ratios are to the fastest."""
    p = contenders.problem(shape, getattr(torch, todo.dtype), todo.device)
    rows: dict[str, Row] = {}
    runs: dict[str, Callable[[], Tensor]] = {}
    for name, attend in contenders.contenders(shape, p, todo.device).items():
        if name in MINE and todo.only and not any(word in name for word in todo.only):
            continue
        note(f"{name}: checking")
        why = refuse(name, attend, p, todo.dtype)
        share = empty_share(p, contenders.alpha_of(name, p)) if name in MINE else None
        rows[name] = Row(
            shape.batch, shape.heads, shape.shared, shape.keys, shape.size, shape.empty,
            todo.dtype, name, why, share,
        )  # fmt: skip
        if why is None:
            runs[name] = _step(attend, p)
    note("timing")
    for name, time in timing.times(runs, 1, todo.repeats, todo.device).items():
        rows[name] = replace(rows[name], ms=time.ms, eager_ms=time.eager_ms, graph=time.graph)
    peers = [row.ms for row in rows.values() if row.ms and row.contender not in MINE]
    fastest = min(peers, default=None)
    return [
        replace(row, ratio=row.ms / fastest if row.ms and fastest else None)
        for row in rows.values()
    ]


def _step(attend: contenders.Attend, p: Problem) -> Callable[[], Tensor]:
    return lambda: attend(p)


# --- what is right --------------------------------------------------------------------------------


def weights(p: Problem, item: int, shared: int, alpha: float | Tensor) -> Tensor:
    """(query heads of one head of keys, keys), in float64."""
    group = p.q.shape[1] // p.k.shape[1]
    heads = slice(shared * group, (shared + 1) * group)
    scores = p.q[item, heads, 0].double() @ p.k[item, shared].double().mT * p.q.shape[-1] ** -0.5
    one = alpha[heads, None].double() if isinstance(alpha, Tensor) else alpha
    return px.entmax(scores, one)


def refuse(name: str, attend: contenders.Attend, p: Problem, dtype: str) -> str | None:
    """Why a contender may not be timed: the output of the first or last item is off."""
    try:
        out = attend(p)
    except Exception as error:  # noqa: BLE001 (a peer's, whatever it is)
        return f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    alpha, worst = contenders.alpha_of(name, p), 0.0
    group = p.q.shape[1] // p.k.shape[1]
    for item in {0, p.q.shape[0] - 1}:
        for shared in range(p.k.shape[1]):
            right = weights(p, item, shared, alpha) @ p.v[item, shared].double()
            mine = out[item, shared * group : (shared + 1) * group, 0].double()
            off = float((mine - right).norm() / right.norm())
            worst = max(worst, off) if off == off else float("inf")
    return None if worst <= TOLERANCE[dtype] else f"output is off by {worst:.0e}"


def empty_share(p: Problem, alpha: float | Tensor) -> float:
    """The share of blocks to which no query that shares the keys gives weight; first item."""
    keys = p.k.shape[2]
    blocks = -(-keys // BLOCK)
    live = 0
    for shared in range(p.k.shape[1]):
        found = torch.nn.functional.pad(weights(p, 0, shared, alpha), (0, blocks * BLOCK - keys))
        live += int((found.reshape(-1, blocks, BLOCK).amax((0, 2)) > 0).sum())
    return 1 - live / (blocks * p.k.shape[1])


# --- what is printed ------------------------------------------------------------------------------


def _shape(row: Row) -> Shape:
    return Shape(row.batch, row.heads, row.shared, row.keys, row.size, row.empty)


def table(rows: list[Row]) -> Table:
    """Times, and their ratios to the fastest of torch's; lower is better."""
    result = Table(
        title="one step of decoding; ratios to the fastest softmax of torch", title_justify="left"
    )
    for name in ("problem", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("empty", "time", "ratio"):
        result.add_column(name, justify="right")
    for row in rows:
        cells = [_shape(row).name, row.contender]
        cells.append("" if row.measured_empty is None else f"{row.measured_empty:.0%}")
        if row.ms is None:
            result.add_row(*cells, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            *cells,
            f"{row.ms:.3f} ms{'' if row.graph is not False else ' *'}",
            "" if row.ratio is None else f"{row.ratio:.2f} x",
            style="bold" if row.contender in MINE else None,
        )
    return result
