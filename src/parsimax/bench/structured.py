"""``parsimax bench structured``: SparseMAP, forward and backward, by structure and size.

A result counts only if it converged, which is checked by one more call of the oracle. The C++
implementations that are compared with cannot be installed beside this package, so their process
times stand here, measured on the same kind of machine: one thread, one instance at a time, the
better of the two, random scores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

import parsimax.structured as px
from parsimax.bench import session

_TOL = 1e-6
_GAP = 1e-5  # as measured by one more call of the oracle
_GROUPS = 3  # independent batches a case


@dataclass(frozen=True)
class Case:
    """A structure, its size, and milliseconds (forward, backward) of the better peer."""

    structure: str
    n: int
    m: int
    peer: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """As in a table."""
        return f"{self.structure} {self.n}x{self.m}"


# Both peers leave gaps of up to 3.7 on sequences of 100 x 10: no time for that.
CASES = (
    Case("sequence", 20, 10, (0.41, 0.04)),
    Case("sequence", 50, 10, (2.1, 0.10)),
    Case("sequence", 50, 50, (82.0, 13.0)),
    Case("sequence", 100, 10),
    Case("sequence", 200, 5),
    Case("matching", 10, 10, (0.05, 0.02)),
    Case("matching", 20, 20, (0.76, 0.03)),
    Case("matching", 50, 50, (17.0, 0.13)),
    Case("matching", 100, 100),
    Case("arborescence", 10, 10, (0.15, 0.02)),
    Case("arborescence", 25, 25, (2.6, 0.03)),
    Case("arborescence", 50, 50, (16.0, 0.16)),
    Case("projective", 50, 50, (23.0, 0.44)),
)


@dataclass(frozen=True)
class Row:
    """Process milliseconds an instance; ``refused`` says why a result is not timed."""

    structure: str
    n: int
    m: int
    batch: int
    forward_ms: float | None
    backward_ms: float | None
    ratio: float | None  # to the better peer, forward and backward together
    speedup: float | None  # of two threads, by the clock of the machine
    structures: float | None
    iterations: float | None
    gap: float | None
    refused: str | None = None

    def complaint(self) -> str | None:
        """What is wrong, and where."""
        return (
            None if self.refused is None else f"{self.structure} {self.n}x{self.m}: {self.refused}"
        )


@dataclass(frozen=True)
class Plan:
    """What to run."""

    cases: tuple[Case, ...] = CASES
    batch: int = 16
    repeats: int = 5


def plan(*, only: Sequence[str] = (), batch: int | None = None, repeats: int | None = None) -> Plan:
    """All cases, or those whose names contain one of ``only``."""
    cases = tuple(c for c in CASES if not only or any(part in c.name for part in only))
    if not cases:
        raise ValueError(
            f"only: no case has {' or '.join(only)} in its name; there are "
            f"{', '.join(c.name for c in CASES)}"
        )
    return Plan(cases, batch or Plan.batch, repeats or Plan.repeats)


def main(todo: Plan, out: Path | None = None) -> int:
    """Measure, print and store; 1 if a solution did not converge."""
    cases = {case.name: partial(_measured, case, todo) for case in todo.cases}
    about = {"batch": todo.batch, "tol": _TOL, "dtype": "float32"}
    return session.run("structured", "cpu", cases, partial(table, todo=todo), about, out)


def _measured(case: Case, todo: Plan, note: session.Note) -> list[Row]:
    return [measure(case, todo)]


def problem(case: Case, batch: int, generator: torch.Generator) -> tuple[Tensor, px.Structure]:
    """Scores, and transitions where there are some, from N(0, 1)."""
    scores = torch.randn(batch, case.n, case.m, generator=generator).requires_grad_()
    if case.structure == "sequence":
        shape = (batch, case.n - 1, case.m, case.m)
        return scores, px.Sequence(torch.randn(shape, generator=generator).requires_grad_())
    structures: dict[str, Callable[[], px.Structure]] = {
        "matching": px.Matching,
        "arborescence": px.Arborescence,
        "projective": px.ProjectiveTree,
    }
    return scores, structures[case.structure]()


def measured_gap(result: px.SparseMAPResult, scores: Tensor, structure: px.Structure) -> float:
    """The largest gap in the batch, by one call of the oracle at the marginals."""
    scores = scores.detach().double()
    marginals = result.marginals.detach().double()
    value = ((scores - marginals) * marginals).flatten(1).sum(1)
    if isinstance(structure, px.Sequence) and structure.transitions is not None:
        edges = result.edge_marginals
        assert edges is not None
        value = value + (structure.transitions * edges).detach().double().flatten(1).sum(1)
    best = best_score(scores - marginals, structure)
    return float((best - value).max())


def best_score(scores: Tensor, structure: px.Structure) -> Tensor:
    """The value of the best structure of each instance: SparseMAP of scores too large to mix.

    Scaled by a large number, SparseMAP is the MAP: a single structure, found by one call.
    """
    scale = 1e8
    transitions = None
    if isinstance(structure, px.Sequence) and structure.transitions is not None:
        transitions = structure.transitions.detach().double()
        structure = px.Sequence(scale * transitions)
    best = px.sparsemap(scale * scores, structure, tol=scale)
    value = (scores * best.marginals).flatten(1).sum(1)
    if transitions is not None:
        edges = best.edge_marginals
        assert edges is not None
        value = value + (transitions * edges).flatten(1).sum(1)
    return value


def measure(case: Case, todo: Plan) -> Row:
    """Forward and backward over batches of fresh scores; the median over all runs."""
    generator = torch.Generator().manual_seed(0)
    forward: list[float] = []
    backward: list[float] = []
    worst, structures, iterations = 0.0, [], []
    groups = [problem(case, todo.batch, generator) for _ in range(_GROUPS)]
    for scores, structure in groups:
        exact = px.sparsemap(scores.double(), structure, tol=_TOL)
        gap = measured_gap(exact, scores, structure)
        worst = max(worst, gap)
        if not bool(exact.converged.all()) or gap > _GAP:
            return _refused(case, todo, f"not converged, the gap is {gap:.2g}")
        structures.append((exact.probabilities > 0).sum(1).double().mean().item())
        iterations.append(exact.iterations.double().mean().item())
        for _ in range(todo.repeats):
            times = _run(scores, structure)
            forward.append(times[0] * 1e3 / todo.batch)
            backward.append(times[1] * 1e3 / todo.batch)
    f, b = statistics.median(forward), statistics.median(backward)
    return Row(
        case.structure,
        case.n,
        case.m,
        todo.batch,
        f,
        b,
        None if case.peer is None else (f + b) / sum(case.peer),
        _speedup(*groups[0]),
        statistics.mean(structures),
        statistics.mean(iterations),
        worst,
    )


def _refused(case: Case, todo: Plan, why: str) -> Row:
    nothing = (None,) * 7
    return Row(case.structure, case.n, case.m, todo.batch, *nothing, refused=why)


def _run(scores: Tensor, structure: px.Structure) -> tuple[float, float]:
    """Process seconds (forward, backward)."""
    start = time.process_time()
    result = px.sparsemap(scores, structure, tol=_TOL)
    middle = time.process_time()
    torch.autograd.backward(result.marginals, torch.ones_like(result.marginals))
    return middle - start, time.process_time() - middle


def _speedup(scores: Tensor, structure: px.Structure) -> float:
    """How much faster two threads are, by the best of a few runs on the clock of the machine."""
    best = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            px.sparsemap(scores, structure, tol=_TOL)
            seconds.append(time.perf_counter() - start)
        best[threads] = min(seconds)
    torch.set_num_threads(1)
    return best[1] / best[2]


def table(rows: list[Row], todo: Plan) -> Table:
    """Milliseconds an instance."""
    result = Table(
        title=f"process ms an instance, one thread, batches of {todo.batch}; ratio to the better "
        "C++ peer, forward and backward",
        title_justify="left",
    )
    result.add_column("structure", no_wrap=True)
    columns = ("forward", "backward", "ratio", "two threads", "structures", "oracle calls", "gap")
    for name in columns:
        result.add_column(name, justify="right")
    for row in rows:
        name = f"{row.structure} {row.n}x{row.m}"
        if row.refused is not None:
            result.add_row(name, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            name,
            f"{row.forward_ms:.3f}",
            f"{row.backward_ms:.3f}",
            "" if row.ratio is None else f"{row.ratio:.2f} x",
            f"{row.speedup:.2f} x",
            f"{row.structures:.0f}",
            f"{row.iterations:.0f}",
            f"{row.gap:.0e}",
        )
    return result
