"""Rows of scores to rows of probabilities, timed against torch.softmax and other packages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from parsimax.bench import contenders, floor, gate, session, timing
from parsimax.bench.contenders import Alpha, Contender, Inputs
from parsimax.bench.timing import Time

PASSES = tuple(floor.MATRICES)


@dataclass(frozen=True)
class Measured:
    """One pass; the ratio is to torch.softmax, the fraction is that of the memory floor."""

    ms: float
    ratio: float
    eager_ms: float | None = None
    graph: bool | None = None
    floor_ms: float | None = None
    floor_fraction: float | None = None


@dataclass(frozen=True)
class Row:
    """One contender on one input; "backward" is forward and backward together."""

    dtype: str
    shape: tuple[int, int]
    std: float
    alpha: Alpha
    contender: str
    sets: int = 1  # inputs that take turns, so that none is found in the cache
    refused: str | None = None
    backward_refused: str | None = None
    forward: Measured | None = None
    backward: Measured | None = None

    def complaint(self) -> str | None:
        """Why a result of ours was refused, and on which input."""
        reason = self.refused or self.backward_refused
        if self.contender != contenders.OURS or not reason:
            return None
        rows, columns = self.shape
        return f"{self.dtype} {rows}x{columns} std {self.std:g} alpha {self.alpha}: {reason}"


@dataclass(frozen=True)
class Plan:
    """What is measured, and who takes part.

    ``only`` are parts of names, and contenders with none of them stay at home; torch.softmax never
    does. After so many ``minutes`` the peers are left out, so that a run comes to an end.
    """

    device: str = "cpu"
    dtypes: Sequence[str] = ("float32",)
    shapes: Sequence[tuple[int, int]] = ((4096, 1024), (512, 32000))
    alphas: Sequence[Alpha] = (1.3, 1.5, 2.0)
    std: Sequence[float] = (1.0, 4.0)
    repeats: int = 9
    only: Sequence[str] = ()
    minutes: float | None = None
    bandwidth: float | None = None
    begin: float = field(default_factory=time.monotonic)

    def peers_are_late(self) -> bool:
        """Whether only ours and torch.softmax are measured from now on."""
        return self.minutes is not None and time.monotonic() - self.begin > 60 * self.minutes


_ON_GPU = Plan(
    device="cuda",
    dtypes=("bfloat16", "float32"),
    shapes=((16384, 512), (16384, 4096), (4096, 32000), (2048, 128256)),
    alphas=(1.5, 2.0, 1.1, 1.3, 1.7, "tensor"),
    std=(1.0, 2.0, 8.0),
    repeats=15,
    minutes=4.0,
)


def plan(
    *,
    device: str = "auto",
    dtypes: Sequence[str] = (),
    shapes: Sequence[tuple[int, int]] = (),
    alphas: Sequence[Alpha] = (),
    std: Sequence[float] = (),
    repeats: int | None = None,
    only: Sequence[str] = (),
    minutes: float | None = None,
) -> Plan:
    """What was asked for; the rest is what suits the device."""
    device = session.choose(device)
    usual = _ON_GPU if device == "cuda" else Plan()
    bandwidth = None
    if device == "cuda":
        from parsimax.bench.gpu_timing import copy_bandwidth

        bandwidth = copy_bandwidth()
    todo = Plan(
        device,
        dtypes or usual.dtypes,
        shapes or usual.shapes,
        alphas or usual.alphas,
        std or usual.std,
        repeats or usual.repeats,
        only,
        usual.minutes if minutes is None else minutes,
        bandwidth,
    )
    session.check_only(only, _names(todo))
    return todo


def _names(todo: Plan) -> Iterator[str]:
    """Of all who could take part."""
    yield contenders.softmax().name
    for dtype in todo.dtypes:
        for alpha in todo.alphas:
            for contender in contenders.take_part(alpha, getattr(torch, dtype), todo.device):
                yield contender.name


def main(todo: Plan, out: Path | None = None) -> int:
    """Check, time, print, and store; 1 if a result of ours was refused."""
    # Scores of another deviation come last: they need no new kernels.
    cases = {
        f"{dtype} {shape[0]}x{shape[1]} std {std:g}": _case(dtype, shape, std, todo)
        for dtype in todo.dtypes
        for shape in todo.shapes
        for std in todo.std
    }
    about: dict[str, object] = {"device": todo.device, "repeats": todo.repeats}
    if todo.bandwidth is not None:
        about["copy_bytes_per_second"] = todo.bandwidth
    return session.run("rows", todo.device, cases, lambda rows: table(rows, todo), about, out)


def _case(
    dtype: str, shape: tuple[int, int], std: float, todo: Plan
) -> Callable[[session.Note], list[Row]]:
    return lambda note: measure(dtype, shape, std, todo, note)


def measure(
    dtype: str,
    shape: tuple[int, int],
    std: float,
    todo: Plan,
    note: session.Note = lambda _: None,
) -> list[Row]:
    """All contenders on one input; each is checked against float64 before it is timed."""
    kind: torch.dtype = getattr(torch, dtype)
    sets = contenders.draw(shape, std, kind, todo.device)
    base = contenders.softmax()
    entrants: list[tuple[Contender, tuple[str | None, str | None]]] = [(base, (None, None))]
    for alpha in todo.alphas:
        note(f"checking alpha {alpha}")
        expected = gate.expect(
            sets[0].z.detach(), sets[0].g, sets[0].alpha.detach() if alpha == "tensor" else alpha
        )
        for contender in contenders.take_part(alpha, kind, todo.device):
            ours = contender.name == contenders.OURS
            if todo.only and not any(part in contender.name for part in todo.only):
                continue
            late = not ours and todo.peers_are_late()
            verdict = (contenders.LATE,) * 2 if late else check(contender, sets[0], expected)
            entrants.append((contender, verdict))
        del expected
    note("timing")
    measured = {
        which: _timed(which, [c for c, v in entrants if v[index] is None], sets, todo)
        for index, which in enumerate(PASSES)
    }
    limits = {
        which: None
        if todo.bandwidth is None
        else floor.floor_ms(shape, kind.itemsize, which, todo.bandwidth)
        for which in PASSES
    }

    def of(contender: Contender, which: str) -> Measured | None:
        took = measured[which].get(_label(contender))
        if took is None:
            return None
        ratio = took.ms / measured[which][_label(base)].ms
        limit = limits[which]
        fraction = None if limit is None else limit / took.ms
        return Measured(took.ms, ratio, took.eager_ms, took.graph, limit, fraction)

    return [
        Row(
            dtype,
            shape,
            std,
            contender.alpha,
            contender.name,
            len(sets),
            *verdict,
            of(contender, "forward"),
            of(contender, "backward"),
        )
        for contender, verdict in entrants
    ]


def check(
    contender: Contender, inputs: Inputs, expected: gate.Expected
) -> tuple[str | None, str | None]:
    """Why its forward and its backward may not be timed; None where they may.

    What a contender raises is a result, too: the others are measured all the same.
    """
    try:
        gate.poison(inputs.z)
        p = contender.forward(inputs)
        refused = expected.refuse(p.detach())
    except Exception as error:  # noqa: BLE001
        refused = gate.told(error)
    if refused:
        return refused, refused
    try:
        gate.poison(inputs.z)
        grads = torch.autograd.grad(p, contender.leaves(inputs), inputs.g)
        return None, expected.refuse_gradient(*grads)
    except Exception as error:  # noqa: BLE001
        return None, gate.told(error)


def _timed(
    which: str, taking_part: Sequence[Contender], sets: Sequence[Inputs], todo: Plan
) -> dict[str, Time]:
    step = _forward if which == "forward" else _forward_and_backward
    runs = {_label(contender): step(contender, sets) for contender in taking_part}
    return timing.times(runs, len(sets), todo.repeats, todo.device)


def _label(contender: Contender) -> str:
    return f"{contender.name} {contender.alpha}"


def _forward(contender: Contender, sets: Sequence[Inputs]) -> timing.Run:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [contender.forward(inputs) for inputs in sets]

    return run


def _forward_and_backward(contender: Contender, sets: Sequence[Inputs]) -> timing.Run:
    """All forwards come first, as in training: no backward finds its probabilities in the cache."""

    def run() -> object:
        ps = [contender.forward(inputs) for inputs in sets]
        return ps, [
            torch.autograd.grad(p, contender.leaves(inputs), inputs.g)
            for p, inputs in zip(ps, sets, strict=True)
        ]

    return run


# --- table ----------------------------------------------------------------------------------------


def table(rows: list[Row], todo: Plan) -> Table:
    """Ratios to torch.softmax, lower is faster; on a GPU the share of the memory floor, too.

    Scores of several standard deviations share a line; what was refused for one of them has a dash.
    """
    where = "one GPU" if todo.device == "cuda" else "one thread"
    deviations = _joined(f"{std:g}" for std in todo.std)
    title = f"time / torch.softmax, {where}, scores of standard deviation {deviations}"
    result = Table(title=title, title_justify="left")
    for name in ("dtype", "shape", "alpha", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("forward", "and backward"):
        result.add_column(name, justify="right")
        if todo.device == "cuda":
            result.add_column("% of floor", justify="right", no_wrap=True)
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        shape = f"{row.shape[0]}x{row.shape[1]}"
        lines.setdefault((row.dtype, shape, str(row.alpha), row.contender), []).append(row)
    for key, group in lines.items():
        if key[-1] == contenders.BASE and todo.device != "cuda":
            continue
        forward = _cells([(row.forward, row.refused) for row in group], todo)
        backward = _cells([(row.backward, row.backward_refused) for row in group], todo)
        refused = all(row.refused for row in group)
        style = "dim" if refused else "bold" if key[-1] == contenders.OURS else None
        result.add_row(*key, *forward, *backward, style=style)
    return result


def _cells(found: Sequence[tuple[Measured | None, str | None]], todo: Plan) -> list[str]:
    if all(measured is None for measured, _ in found):
        ratio, share = f"not timed: {found[0][1]}", ""
    else:
        ratio = _joined("-" if x is None else f"{x.ratio:.2f}" for x, _ in found)
        ratio += "" if all(x is None or x.graph is not False for x, _ in found) else " *"
        share = _joined(f"{x.floor_fraction or 0:.0%}"[:-1] if x else "-" for x, _ in found)
    return [ratio, share] if todo.device == "cuda" else [ratio]


def _joined(parts: Iterable[str]) -> str:
    return " / ".join(parts)
