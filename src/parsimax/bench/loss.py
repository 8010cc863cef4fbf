"""The loss of a linear output layer: time and peak memory of forward and backward, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from parsimax.bench import gate, loss_contenders, loss_gate, memory, session, timing
from parsimax.bench.loss_contenders import (
    OURS,
    OURS_ON_LOGITS,
    PEER,
    PEER_ON_LOGITS,
    PLAIN,
    Layer,
    Logits,
    Sizes,
)

_CHECKED_TOKENS = 128  # on a CPU: all of them would take minutes in float64
# Whose result comes from the layer itself; the others see logits that were rounded.
_FROM_LAYER = frozenset({OURS})
_UNCHECKED = frozenset({PEER, PEER_ON_LOGITS})  # torch's own, and another loss
_MINE = frozenset({OURS, OURS_ON_LOGITS})

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Row:
    """One contender; ratios are to ``base``, memory is beyond the inputs (GPU: and gradients)."""

    task: str
    dtype: str
    words: int
    std: float
    alpha: float
    contender: str
    base: str
    refused: str | None = None
    ms: float | None = None
    eager_ms: float | None = None
    graph: bool | None = None
    time_ratio: float | None = None
    peak_mib: float | None = None
    memory_ratio: float | None = None
    support: float | None = None

    def complaint(self) -> str | None:
        """Why a result of ours was refused, and on which input."""
        if self.contender not in _MINE or not self.refused:
            return None
        where = f"{self.dtype} {self.words} words std {self.std:g} alpha {self.alpha:g}"
        return f"{self.contender} {where}: {self.refused}"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    device: str = "cpu"
    dtype: str = "float32"
    tokens: int = 2048
    hidden: int = 256
    words: Sequence[int] = (32000,)
    std: Sequence[float] = (1.0,)
    alphas: Sequence[float] = (1.5, 1.0)
    repeats: int = 5


_ON_GPU = Plan("cuda", "bfloat16", 8192, 1024, (32000, 128256), (1.0, 8.0), (1.5, 2.0, 1.3), 15)


def plan(
    *,
    device: str = "auto",
    dtype: str | None = None,
    tokens: int | None = None,
    hidden: int | None = None,
    words: Sequence[int] = (),
    std: Sequence[float] = (),
    alphas: Sequence[float] = (),
    repeats: int | None = None,
) -> Plan:
    """What was asked for; the rest is what suits the device."""
    device = session.choose(device)
    usual = _ON_GPU if device == "cuda" else Plan()
    return Plan(
        device,
        dtype or usual.dtype,
        tokens or usual.tokens,
        hidden or usual.hidden,
        words or usual.words,
        std or usual.std,
        alphas or usual.alphas,
        repeats or usual.repeats,
    )


def main(todo: Plan, out: Path | None = None) -> int:
    """Check, time, measure memory, print, and store; 1 if a result of ours was refused."""
    cases = {
        f"{words} words std {std:g}": _case(words, std, todo)
        for words in todo.words
        for std in todo.std
    }
    about = {
        "device": todo.device,
        "repeats": todo.repeats,
        "tokens": todo.tokens,
        "hidden": todo.hidden,
    }
    return session.run("loss", todo.device, cases, lambda rows: table(rows, todo), about, out)


def _case(words: int, std: float, todo: Plan) -> Callable[[session.Note], list[Row]]:
    return lambda note: measure(words, std, todo, note)


def measure(words: int, std: float, todo: Plan, note: session.Note = lambda _: None) -> list[Row]:
    """All contenders on one layer; those that compute this loss are checked against float64."""
    sizes = Sizes(todo.tokens, todo.hidden, words)
    layer = loss_contenders.layer(sizes, std, getattr(torch, todo.dtype), todo.device)
    on_gpu, half = todo.device == "cuda", layer.hidden.dtype.itemsize == 2
    rows: list[Row] = []
    for alpha in todo.alphas:
        note(f"alpha {alpha:g}: checking")
        checked = layer if on_gpu else sample(layer)
        right, rounded = _exact(checked, alpha)
        losses = loss_contenders.on_layer(alpha, peers=on_gpu, half=half)
        refused = verdicts(losses, checked, right, rounded)
        weigh = _on_gpu(layer) if on_gpu else _on_cpu(sizes, alpha, std, todo.dtype)
        about = Row("linear", todo.dtype, words, std, alpha, "", PEER if on_gpu else PLAIN)
        about = replace(about, support=right.support)
        note(f"alpha {alpha:g}: timing")
        rows += compare(about, losses, refused, layer, weigh, todo)
        if on_gpu:
            note(f"alpha {alpha:g}: logits")
            logits, given = layer.logits(), loss_contenders.on_logits(alpha, half=half)
            refused = verdicts(given, logits, right, rounded)
            about = replace(about, task="logits", base=PEER_ON_LOGITS, support=rounded.support)
            rows += compare(about, given, refused, logits, _on_gpu(logits), todo)
    return rows


def sample(layer: Layer) -> Layer:
    """The same layer with few tokens, from the first to the last."""
    chosen = gate.spread(len(layer.hidden), _CHECKED_TOKENS)
    hidden = layer.hidden.detach()[chosen].requires_grad_()
    return Layer(hidden, layer.weight, layer.target[chosen])


def _exact(layer: Layer, alpha: float) -> tuple[loss_gate.Exact, loss_gate.Exact]:
    right = loss_gate.exact(layer, alpha)
    if layer.hidden.dtype.itemsize > 2:
        return right, right
    return right, loss_gate.exact(layer, alpha, rounded=True)


def verdicts(
    losses: Mapping[str, Loss],
    problem: Layer | Logits,
    right: loss_gate.Exact,
    rounded: loss_gate.Exact,
) -> dict[str, str | None]:
    """Why each of them may not be timed, or None."""
    return {
        name: None
        if name in _UNCHECKED
        else loss_gate.refuse(loss, problem, right if name in _FROM_LAYER else rounded)
        for name, loss in losses.items()
    }


def compare(
    about: Row,
    losses: Mapping[str, Loss],
    refused: Mapping[str, str | None],
    problem: Layer | Logits,
    weigh: Callable[[str, timing.Run], float | None],
    todo: Plan,
) -> list[Row]:
    """Time and weigh those who were not refused; ``about`` says what all rows have in common."""
    runs = {name: memory.step(loss, problem) for name, loss in losses.items() if not refused[name]}
    weights = {name: weigh(name, run) for name, run in runs.items()}
    times = timing.times(runs, 1, todo.repeats, todo.device)
    ms = {name: took.ms for name, took in times.items()}
    return [
        replace(
            about,
            contender=name,
            refused=refused[name],
            ms=ms.get(name),
            eager_ms=times[name].eager_ms if name in times else None,
            graph=times[name].graph if name in times else None,
            time_ratio=_ratio(ms, name, about.base),
            peak_mib=weights.get(name),
            memory_ratio=_ratio(weights, name, about.base),
            support=None if name in _UNCHECKED else about.support,
        )
        for name in losses
    ]


def _on_gpu(problem: Layer | Logits) -> Callable[[str, timing.Run], float | None]:
    return lambda _, run: memory.gpu_peak(run, problem.leaves)


def _on_cpu(
    sizes: Sizes, alpha: float, std: float, dtype: str
) -> Callable[[str, timing.Run], float | None]:
    return lambda name, _: memory.cpu_peak(name, sizes, alpha, std, dtype)


def _ratio(values: Mapping[str, float | None], name: str, base: str) -> float | None:
    value, other = values.get(name), values.get(base)
    return None if value is None or not other else value / other


# --- table ----------------------------------------------------------------------------------------


def table(rows: list[Row], todo: Plan) -> Table:
    """Times and memory, and their ratios to the base; lower is better."""
    where = "one GPU" if todo.device == "cuda" else "one thread"
    size = f"{todo.tokens} tokens x {todo.hidden}, {todo.dtype}, {where}"
    base = " and ".join(dict.fromkeys(row.base for row in rows))
    result = Table(
        title=f"forward and backward, {size}; ratios to {base}",
        title_justify="left",
    )
    for name in ("words", "std", "alpha", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("support", "time", "ratio", "peak memory", "ratio"):
        result.add_column(name, justify="right")
    for row in rows:
        cells = [str(row.words), f"{row.std:g}", f"{row.alpha:g}", row.contender]
        cells.append("" if row.support is None else f"{row.support:.0f}")
        if row.ms is None:
            result.add_row(*cells, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            *cells,
            _time(row),
            "" if row.time_ratio is None else f"{row.time_ratio:.2f} x",
            "not measured" if row.peak_mib is None else f"{row.peak_mib:.0f} MiB",
            "" if row.memory_ratio is None else f"{row.memory_ratio:.2f} x",
            style="bold" if row.contender in _MINE else None,
        )
    return result


def _time(row: Row) -> str:
    if row.eager_ms is None:
        return f"{row.ms:.1f} ms"
    return f"{row.ms:.3f} ms{'' if row.graph is not False else ' *'} ({row.eager_ms:.3f})"
