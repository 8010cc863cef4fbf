"""fusedmax, oscarmax and the constrained mappings: process time of one thread, beside records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

import parsimax as px
from parsimax.bench import gate, session, simplex_gate, timing

# What other packages took for 64 rows of so many scores, in milliseconds of process time of one
# thread on a machine of this kind: forward, and backward where it was measured. Those packages need
# compilers and old versions of torch, so their figures are kept instead of measured again.
RECORDED: dict[str, dict[int, tuple[float, float | None]]] = {
    "fusedmax": {50: (3.4, 3.5), 200: (4.1, 3.6), 1000: (7.9, 4.6)},
    "oscarmax": {50: (5.5, 5.5), 200: (5.4, 5.7), 1000: (7.6, 7.0)},
    "constrained_sparsemax": {50: (4.2, None), 200: (11.0, None), 1000: (52.0, None)},
    "constrained_softmax": {50: (13.0, None), 200: (44.0, None), 1000: (233.0, None)},
}
RECORDED_ROWS = 64
MAPPINGS = tuple(RECORDED)
_GRADIENT = 1e-4  # how far a float32 gradient may be from float64's, of scores near 1


@dataclass(frozen=True)
class Row:
    """One mapping on one shape; "backward" is forward and backward together.

    Ratios are to the recorded times, where there are any.
    """

    mapping: str
    shape: tuple[int, int]
    refused: str | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    recorded_forward_ms: float | None = None
    recorded_backward_ms: float | None = None
    forward_ratio: float | None = None
    backward_ratio: float | None = None

    def complaint(self) -> str | None:
        """Why the result was refused, and on which input."""
        rows, columns = self.shape
        return f"{self.mapping} {rows}x{columns}: {self.refused}" if self.refused else None


@dataclass(frozen=True)
class Plan:
    """What is measured: matrices of so many rows of scores N(0, 1), in float32."""

    mappings: Sequence[str] = MAPPINGS
    rows: int = RECORDED_ROWS
    columns: Sequence[int] = (50, 200, 1000)
    repeats: int = 21


@dataclass(frozen=True)
class Inputs:
    """Scores, the gradient of the probabilities, and upper bounds that sum to 2."""

    z: Tensor
    g: Tensor
    upper: Tensor


def draw(rows: int, columns: int) -> Inputs:
    """The same at every run."""
    generator = torch.Generator().manual_seed(columns)
    z = torch.randn(rows, columns, generator=generator).requires_grad_()
    g = torch.randn(rows, columns, generator=generator)
    upper = torch.rand(rows, columns, generator=generator)
    upper = (2 * upper / upper.sum(-1, keepdim=True)).requires_grad_()
    return Inputs(z, g, upper)


def call(mapping: str, inputs: Inputs) -> Tensor:
    """The mapping with its default strength, or with the bounds."""
    function: Callable[..., Tensor] = getattr(px, mapping)
    if mapping.startswith("constrained"):
        return function(inputs.z, inputs.upper)
    return function(inputs.z)


def leaves(mapping: str, inputs: Inputs) -> tuple[Tensor, ...]:
    """What the backward is in: scores, and bounds where there are any."""
    return (inputs.z, inputs.upper) if mapping.startswith("constrained") else (inputs.z,)


def main(todo: Plan, out: Path | None = None) -> int:
    """Check, time, print, and store; 1 if a result was refused."""
    cases = {
        f"{mapping} {todo.rows}x{columns}": _case(mapping, columns, todo)
        for mapping in todo.mappings
        for columns in todo.columns
    }
    about = {"device": "cpu", "repeats": todo.repeats, "clock": "process", "threads": 1}
    return session.run("simplex", "cpu", cases, table, about, out)


def _case(mapping: str, columns: int, todo: Plan) -> Callable[[session.Note], list[Row]]:
    return lambda note: [measure(mapping, columns, todo, note)]


def measure(mapping: str, columns: int, todo: Plan, note: session.Note = lambda _: None) -> Row:
    """Checked against float64 first, then timed."""
    inputs = draw(todo.rows, columns)
    shape = (todo.rows, columns)
    note("checking")
    refused = check(mapping, inputs)
    if refused:
        return Row(mapping, shape, refused)
    note("timing")

    def forward() -> object:
        with torch.no_grad():
            return call(mapping, inputs)

    def backward() -> object:
        p = call(mapping, inputs)
        return torch.autograd.grad(p, leaves(mapping, inputs), inputs.g)

    runs = {"forward": forward, "backward": backward}
    took = timing.medians(runs, todo.repeats, clock=_process)
    ahead, both = took["forward"] * 1e3, took["backward"] * 1e3
    known = RECORDED[mapping].get(columns) if todo.rows == RECORDED_ROWS else None
    first, second = known or (None, None)
    together = None if first is None or second is None else first + second
    return Row(
        mapping,
        shape,
        None,
        ahead,
        both,
        first,
        together,
        None if first is None else ahead / first,
        None if together is None else both / together,
    )


def _process(run: timing.Run) -> float:
    """Seconds of this process alone: others on the machine do not count."""
    start = time.process_time()
    run()
    return time.process_time() - start


def check(mapping: str, inputs: Inputs) -> str | None:
    """Why a mapping may not be timed, or None."""
    try:
        gate.poison(inputs.z)
        p = call(mapping, inputs)
        grads = torch.autograd.grad(p, leaves(mapping, inputs), inputs.g)
    except Exception as error:  # noqa: BLE001
        return gate.told(error)
    expected = simplex_gate.expect(mapping, inputs.z.detach(), inputs.upper.detach())
    off = float((p.detach().double() - expected).abs().max())
    if not off <= gate.EXACT:
        return f"off by {off:.2g}"
    missing = float((p.detach().double().sum(-1) - 1).abs().max())
    if not missing <= 1e-6:
        return f"a sum is off by {missing:.2g}"
    wanted = simplex_gate.gradients(mapping, expected, inputs.g, inputs.upper.detach())
    for found, right in zip(grads, wanted, strict=True):
        worst = float((found.double() - right).abs().max())
        if not worst <= _GRADIENT:
            return f"a gradient is off by {worst:.2g}"
    return None


# --- table ----------------------------------------------------------------------------------------


def table(rows: list[Row]) -> Table:
    """Milliseconds, and how they compare with what was recorded of others; lower is faster."""
    result = Table(
        title="milliseconds of process time, one thread, float32; recorded: other packages, before",
        title_justify="left",
    )
    for name in ("mapping", "shape"):
        result.add_column(name, no_wrap=True)
    for name in ("forward", "recorded", "ratio", "and backward", "recorded", "ratio"):
        result.add_column(name, justify="right")
    for row in rows:
        shape = f"{row.shape[0]}x{row.shape[1]}"
        if row.refused:
            result.add_row(row.mapping, shape, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            row.mapping,
            shape,
            *(_cell(x) for x in (row.forward_ms, row.recorded_forward_ms, row.forward_ratio)),
            *(_cell(x) for x in (row.backward_ms, row.recorded_backward_ms, row.backward_ratio)),
        )
    return result


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
