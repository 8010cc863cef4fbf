"""The loss of a linear output layer: time and peak memory of forward and backward, side by side."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import parsimax.losses as px
from parsimax.bench import gate, timing
from parsimax.bench.rows import machine

Layer = tuple[Tensor, Tensor, Tensor]  # hidden (N, D), weight (V, D), target (N,)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]

OURS, PLAIN, PEER = "linear_entmax_loss", "entmax_loss(F.linear)", "F.cross_entropy(F.linear)"
_CHECKED_TOKENS = 128  # float64 with all logits at once is for a sample
_LIMIT_S = 600


@dataclass(frozen=True)
class Row:
    """One contender; ratios are to ``entmax_loss(F.linear)``, memory is beyond the inputs."""

    alpha: float
    contender: str
    refused: str | None
    ms: float | None = None
    time_ratio: float | None = None
    peak_mib: float | None = None
    memory_ratio: float | None = None


def contenders(alpha: float) -> dict[str, Loss]:
    """Ours without the logits, ours with them, and the cross-entropy of torch."""
    return {
        OURS: lambda hidden, weight, target: px.linear_entmax_loss(
            hidden, weight, target, alpha=alpha
        ),
        PLAIN: lambda hidden, weight, target: px.entmax_loss(
            F.linear(hidden, weight), target, alpha
        ),
        PEER: lambda hidden, weight, target: F.cross_entropy(F.linear(hidden, weight), target),
    }


def layer(tokens: int, hidden: int, words: int) -> Layer:
    """Logits of variance one, and targets at random."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(tokens, hidden, generator=generator)
    weight = torch.randn(words, hidden, generator=generator) / math.sqrt(hidden)
    target = torch.randint(0, words, (tokens,), generator=generator)
    return rows.requires_grad_(), weight.requires_grad_(), target


def main(
    *, tokens: int, hidden: int, words: int, alphas: list[float], repeats: int, out: Path | None
) -> int:
    """Check, time, measure memory, print, and store; 1 if a result of ours was refused."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    steady = timing.reuse_memory()
    console = Console()
    results: list[Row] = []
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("loss", total=len(alphas))
            for alpha in alphas:
                progress.update(task, description=f"alpha {alpha:g}")
                results += measure((tokens, hidden, words), alpha, repeats)
                progress.advance(task)
    finally:
        torch.set_num_threads(threads)
    console.print(table(results, (tokens, hidden, words)))
    if not steady:
        console.print("memory could not be kept between calls here: times include page faults")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        sizes = {"tokens": tokens, "hidden": hidden, "words": words, "dtype": "float32"}
        report = {**machine(), **sizes, "rows": [asdict(row) for row in results]}
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {out}")
    return int(any(row.refused and row.contender == OURS for row in results))


def measure(sizes: tuple[int, int, int], alpha: float, repeats: int) -> list[Row]:
    """All contenders on one layer; each of ours is checked against float64 before it is timed."""
    inputs = layer(*sizes)
    losses = contenders(alpha)
    refused = {name: refuse(losses[name], inputs, alpha) for name in (OURS, PLAIN)}
    timed = {name: loss for name, loss in losses.items() if not refused.get(name)}
    times = timing.medians({name: _step(loss, inputs) for name, loss in timed.items()}, repeats)
    memory = {name: peak(name, sizes, alpha) for name in timed}
    rows = []
    for name in losses:
        reason = refused.get(name)
        if reason:
            rows.append(Row(alpha, name, reason))
            continue
        ratios = (_ratio(x.get(name), x.get(PLAIN)) for x in (times, memory))
        time_ratio, memory_ratio = ratios
        row = Row(alpha, name, None, times[name] * 1e3, time_ratio, memory[name], memory_ratio)
        rows.append(row)
    return rows


def refuse(loss: Loss, inputs: Layer, alpha: float) -> str | None:
    """Why this loss may not be timed, or None: rows from everywhere, the plain path in float64."""
    hidden, weight, target = (x.detach() for x in inputs)
    chosen = gate.spread(len(hidden), _CHECKED_TOKENS)
    hidden, target = hidden[chosen].requires_grad_(), target[chosen]
    weight = weight.requires_grad_()
    exact = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    logits = F.linear(*exact)
    if alpha == 1:
        want = F.cross_entropy(logits, target)
    else:
        want = px.entmax_loss(logits, target, alpha, backend="torch")
    got = loss(hidden, weight, target)
    off = abs(float(got.detach()) - float(want.detach())) / max(1.0, float(want.detach()))
    if not off <= 2e-6:
        return f"off by {off:.0e}"
    grads = torch.autograd.grad(got, (hidden, weight)), torch.autograd.grad(want, exact)
    for ours, theirs in zip(*grads, strict=True):
        off = float((ours.double() - theirs).norm() / theirs.norm())
        if not off <= 2e-5:
            return f"gradient off by {off:.0e}"
    return None


def _step(loss: Loss, inputs: Layer) -> Callable[[], object]:
    hidden, weight, target = inputs
    return lambda: torch.autograd.grad(loss(hidden, weight, target), (hidden, weight))


def _ratio(x: float | None, base: float | None) -> float | None:
    return None if x is None or not base else x / base


# --- memory ---------------------------------------------------------------------------------------


def peak(name: str, sizes: tuple[int, int, int], alpha: float) -> float | None:
    """MiB beyond the inputs at the peak of one step in a fresh process; None where not measured."""
    if not sys.platform.startswith("linux"):
        return None
    arguments = [name, *(str(size) for size in sizes), str(alpha)]
    done = subprocess.run(
        [sys.executable, "-m", "parsimax.bench.loss", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    return float(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def own_peak(name: str, sizes: tuple[int, int, int], alpha: float) -> float:
    """The same for this process."""
    torch.set_num_threads(1)
    loss = contenders(alpha)[name]
    _step(loss, layer(70, 8, 100))()  # compiles what is to be compiled
    inputs = layer(*sizes)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _high_water()
    _step(loss, inputs)()
    return (_high_water() - before) / 1024


def _high_water() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


# --- table ----------------------------------------------------------------------------------------


def table(rows: list[Row], sizes: tuple[int, int, int]) -> Table:
    """Times and memory, and their ratios to the plain path; lower is better."""
    tokens, hidden, words = sizes
    title = f"forward and backward, {tokens} tokens x {hidden} -> {words}, float32, one thread"
    result = Table(title=title, title_justify="left")
    for name in ("alpha", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("time", "ratio", "peak memory", "ratio"):
        result.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row.alpha:g}", row.contender]
        if row.refused:
            result.add_row(*cells, f"wrong: {row.refused}", "not timed", style="dim")
            continue
        result.add_row(
            *cells,
            f"{row.ms:.1f} ms",
            "" if row.time_ratio is None else f"{row.time_ratio:.2f} x",
            "not measured" if row.peak_mib is None else f"{row.peak_mib:.0f} MiB",
            "" if row.memory_ratio is None else f"{row.memory_ratio:.2f} x",
            style="bold" if row.contender == OURS else None,
        )
    return result


if __name__ == "__main__":
    tokens, hidden, words = (int(text) for text in sys.argv[2:5])
    print(own_peak(sys.argv[1], (tokens, hidden, words), float(sys.argv[5])))
