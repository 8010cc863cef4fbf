"""Training of sequence models: target tokens a second, beside torch's own softmax and loss.

One step is forward, backward, clipping and Adam. Everybody has the same batches and takes turns.
On a GPU, forward and backward are replayed from CUDA graphs, with the eager figure beside.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from parsimax.bench import session
from parsimax.bench import training_contenders as contenders
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.models import ModelSettings
from parsimax.seq2seq.training.graphs import GraphedLoss

_CLIP = 5.0
# Loss and each parameter's gradient, relative to float64 with the same weights. In bf16 a gradient
# of an alpha is a difference of many products that were rounded.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1}
# Some gradients are more sensitive than that: those of an alpha near 2 jump when a key enters a
# support. They may be off by twice what exact ones move by if every weight is off by so much, which
# is what a product of 512 terms is off by in float32, and one rounding in bf16.
_TIMES = 2.0
_NOISE = {"float32": 2.0**-20, "bfloat16": 2.0**-9}
_DRAWS = 3  # of that noise: a jump may or may not be among one


@dataclass(frozen=True)
class Case:
    """One model, its vocabularies and its batches."""

    name: str
    dtype: str
    settings: ModelSettings
    sizes: tuple[int, int]
    sentences: int | None  # a batch; None: as many as make up ``tokens``
    tokens: int
    lengths: tuple[int, int]
    batches: int

    def make_batches(self) -> list[Batch]:
        """The same every time."""
        fixed, tokens = self.sentences, self.tokens
        return contenders.batches(
            self.batches, lambda n: fixed or max(8, tokens // n), self.lengths, self.sizes
        )


_RNN = Case(
    "inflection RNN, batch 64", "float32", contenders.INFLECTION, (1127, 777), 64, 0, (5, 19), 24
)
_BASE = Case(
    "Transformer, base", "float32", contenders.TRANSFORMER, (32000, 32000), None, 8192, (16, 40), 6
)
_LONG = replace(
    _BASE, name="Transformer, base, long", dtype="bfloat16", lengths=(500, 1000), batches=4
)
_SMALL = Case(
    "Transformer, small",
    "float32",
    contenders.SMALL_TRANSFORMER,
    (8000, 8000),
    None,
    1024,
    (12, 28),
    4,
)
ON_GPU = (_RNN, _BASE, replace(_BASE, dtype="bfloat16"), _LONG)
ON_CPU = (replace(_RNN, batches=6), _SMALL)


@dataclass(frozen=True)
class Row:
    """One contender; the ratio is of tokens a second to torch's own."""

    model: str
    dtype: str
    contender: str
    refused: str | None = None
    tokens_per_second: float | None = None
    ratio: float | None = None
    eager_tokens_per_second: float | None = None
    eager_ratio: float | None = None
    step_ms: float | None = None

    def complaint(self) -> str | None:
        """Why a result of ours was refused, and on which input."""
        if self.refused is None or self.contender == contenders.TORCH:
            return None
        return f"{self.contender}, {self.model}, {self.dtype}: {self.refused}"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    device: str
    cases: Sequence[Case]
    rounds: int


def plan(*, device: str = "auto", only: Sequence[str] = (), rounds: int | None = None) -> Plan:
    """All cases that suit the device, or those whose name has one of these words in it."""
    device = session.choose(device)
    cases = [
        case
        for case in (ON_GPU if device == "cuda" else ON_CPU)
        if not only or any(word in f"{case.name} {case.dtype}" for word in only)
    ]
    if not cases:
        raise ValueError(f"only: no case has any of {list(only)} in its name")
    return Plan(device, cases, rounds or (7 if device == "cuda" else 5))


def main(todo: Plan, out: Path | None = None) -> int:
    """Check, time, print and store; 1 if a result of ours was refused."""
    cases = {f"{case.name} {case.dtype}": _measuring(case, todo) for case in todo.cases}
    about = {"device": todo.device, "rounds": todo.rounds}
    return session.run("training", todo.device, cases, table, about, out)


def _measuring(case: Case, todo: Plan) -> Callable[[session.Note], list[Row]]:
    return lambda note: measure(case, todo, note)


def measure(case: Case, todo: Plan, note: session.Note = lambda _: None) -> list[Row]:
    """All contenders of one case."""
    batches = [batch.to(todo.device) for batch in case.make_batches()]
    tokens = sum(int((batch.target != 0).sum()) for batch in batches if batch.target is not None)
    refused: dict[str, str | None] = {}
    runs: dict[tuple[str, bool], Callable[[], None]] = {}
    for name in contenders.CHOICES:
        note(f"{name}: checking")
        certain = replace(case.settings, dropout=0.0)
        checked = contenders.model(name, certain, case.sizes).to(todo.device).train()
        refused[name] = refuse(checked, batches[0], case.dtype)
        if refused[name] is not None:
            continue
        model = contenders.model(name, case.settings, case.sizes).to(todo.device).train()
        runs[name, False] = _epoch(model, batches, case.dtype, graphs=False)
        if todo.device == "cuda":
            runs[name, True] = _epoch(copy.deepcopy(model), batches, case.dtype, graphs=True)
    note("warming up")
    for run in (*runs.values(), *runs.values()):  # a graph is captured when its shape comes again
        run()
    note("timing")
    seconds: dict[tuple[str, bool], list[float]] = {key: [] for key in runs}
    for turn in range(todo.rounds):
        for (name, graphs), run in runs.items():
            if graphs or turn < 3 or todo.device != "cuda":  # eager steps are only told beside
                seconds[name, graphs].append(_time(run, todo.device))
    rates = {key: tokens / statistics.median(values) for key, values in seconds.items()}
    best = todo.device == "cuda"
    rows = []
    for name in contenders.CHOICES:
        row = Row(case.name, case.dtype, name, refused[name])
        if (name, best) in rates:
            row = replace(
                row,
                tokens_per_second=rates[name, best],
                ratio=_ratio(rates, name, best),
                eager_tokens_per_second=rates[name, False],
                eager_ratio=_ratio(rates, name, False),
                step_ms=1e3 * tokens / rates[name, best] / len(batches),
            )
        rows.append(row)
    return rows


def _ratio(rates: dict[tuple[str, bool], float], name: str, graphs: bool) -> float | None:
    base = rates.get((contenders.TORCH, graphs))
    return None if base is None else rates[name, graphs] / base


def refuse(model: nn.Module, batch: Batch, dtype: str) -> str | None:
    """Why the model, without dropout, may not be timed: its loss or a gradient is not float64's.

    On a GPU it is asked for them by a CUDA graph, too, since that is what is timed.
    """
    exact = copy.deepcopy(model).double()
    right = _loss_and_gradients(exact, _plainly(exact, "float64"), batch)
    moved: dict[str, float] = {}
    ways = {"": _plainly(model, dtype)}
    if batch.source.is_cuda:
        ways["as a graph "] = _graphed(model, dtype)
        for _ in range(2):  # run, then captured: what is compared is a replay
            _loss_and_gradients(model, ways["as a graph "], batch)
    for way, step in ways.items():
        off = _distances(_loss_and_gradients(model, step, batch), right)
        for name, distance in off.items():
            if distance <= _TOLERANCE[dtype]:
                continue
            moved = moved or _moved(exact, batch, right, _NOISE[dtype])
            if not distance <= _TIMES * moved[name]:
                return f"{way}{name} off by {distance:.0e}"
    return None


def _distances(found: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the norm of what is right."""
    return {
        name: float((mine.double() - right[name]).norm() / right[name].norm().clamp_min(1e-6))
        for name, mine in found.items()
    }


def _moved(
    exact: nn.Module, batch: Batch, right: dict[str, Tensor], unit: float
) -> dict[str, float]:
    """How far exact results go at most if every weight is off by up to ``unit`` of itself."""
    generator = torch.Generator(batch.source.device).manual_seed(0)
    most = dict.fromkeys(right, 0.0)
    for _ in range(_DRAWS):
        rounded = copy.deepcopy(exact)
        with torch.no_grad():
            for weight in rounded.parameters():
                noise = torch.empty_like(weight).uniform_(-unit, unit, generator=generator)
                weight.mul_(1 + noise)
        found = _loss_and_gradients(rounded, _plainly(rounded, "float64"), batch)
        most = {name: max(most[name], off) for name, off in _distances(found, right).items()}
    return most


def _loss_and_gradients(
    model: nn.Module, step: Callable[[Batch], Tensor], batch: Batch
) -> dict[str, Tensor]:
    """By the name of the parameter."""
    model.zero_grad(set_to_none=False)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        loss = step(batch)
    found = {"loss": loss.detach().clone()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.clone()
    return found


def _plainly(model: nn.Module, dtype: str) -> Callable[[Batch], Tensor]:
    def step(batch: Batch) -> Tensor:
        with _casting(batch.source.device.type, dtype):
            loss: Tensor = model(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return step


def _graphed(model: nn.Module, dtype: str) -> Callable[[Batch], Tensor]:
    return GraphedLoss(model, context=lambda: _casting("cuda", dtype))


def _casting(device: str, dtype: str) -> torch.autocast:
    enabled = dtype == "bfloat16"
    # a graph must not keep a cast that another one made
    return torch.autocast(device, torch.bfloat16, enabled=enabled, cache_enabled=False)


def _epoch(
    model: nn.Module, batches: Sequence[Batch], dtype: str, graphs: bool
) -> Callable[[], None]:
    """One step for each batch."""
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, 1e-4, fused=True)
    step = _graphed(model, dtype) if graphs else _plainly(model, dtype)

    def epoch() -> None:
        for batch in batches:
            step(batch)
            grads = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(grads, 1 / len(batch.source))
            torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not graphs)

    return epoch


def _time(run: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def table(rows: list[Any]) -> Table:
    """Target tokens a second, and their ratio to torch's own; higher is better."""
    result = Table(
        title=f"training, target tokens a second; ratios to {contenders.TORCH}",
        title_justify="left",
    )
    for name in ("model", "dtype", "contender"):
        result.add_column(name, no_wrap=True)
    for name in ("tokens/s", "ratio", "ms a step", "eager tokens/s", "ratio"):
        result.add_column(name, justify="right")
    for row in rows:
        cells = [row.model, row.dtype, row.contender]
        if row.tokens_per_second is None:
            result.add_row(*cells, f"not timed: {row.refused}", style="dim")
            continue
        result.add_row(
            *cells,
            f"{row.tokens_per_second:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.3f}",
            f"{row.step_ms:.2f}",
            f"{row.eager_tokens_per_second:,.0f}",
            "" if row.eager_ratio is None else f"{row.eager_ratio:.3f}",
            style=None if row.contender == contenders.TORCH else "bold",
        )
    return result
