"""``parsimax train`` and ``parsimax evaluate`` where they are about text classifiers."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from parsimax.classify.metrics import Scores

_INTERRUPTED = 130


def train(
    config: Path,
    overrides: Sequence[str],
    *,
    folder: Path,
    resume: bool,
    show: bool,
    quiet: bool,
) -> int:
    """Train a classifier from a config file."""
    from parsimax.classify import config as configs

    options = configs.load(config, overrides)
    if show:
        print(options.to_yaml(), end="")
        return 0
    from parsimax.classify.training import train as fit

    try:
        outcome = fit(options, folder, resume=resume, quiet=quiet)
    except KeyboardInterrupt:
        if (folder / "checkpoints" / "last.ckpt").exists():
            again = ["parsimax", "train", str(config), *overrides, "--out", str(folder), "--resume"]
            print("Stopped. The epochs that had ended are saved; go on with")
            print(f"  {shlex.join(again)}")
        return _INTERRUPTED
    if quiet:
        return 0
    epoch, best = outcome.best
    print(
        f"Ended after epoch {outcome.epochs}, in {_duration(outcome.seconds)}: {outcome.stopped}."
    )
    print(f"Best at epoch {epoch}, with {_line(best)} of the validation data.")
    if outcome.test is not None:
        print(f"Test data: {_line(outcome.test.to_dict())}.")
    print(f"The run is in {folder}.")
    return 0


def evaluate(
    folders: Sequence[Path],
    *,
    data: Sequence[str],
    out: Path | None,
    predictions: Path | None,
    as_json: bool,
    batch: int,
    checkpoint: str,
    device: Any,
    skip_bad: bool,
) -> int:
    """Measure a classifier on labelled texts."""
    if len(folders) > 1:
        raise ValueError(f"RUN: classifiers are measured one by one, got {len(folders)} runs")
    from rich.console import Console
    from rich.progress import Progress

    from parsimax.classify import evaluation
    from parsimax.classify import run as runs
    from parsimax.classify.batches import encode
    from parsimax.classify.examples import check_some
    from parsimax.cli.runs import place

    run = runs.load(folders[0], checkpoint, place(device))
    given = run.config.data
    paths = list(data) or list(given.test or given.validation)
    found = run.read(paths, skip_bad=skip_bad or None)
    check_some(found, ", ".join(paths))
    errors = Console(stderr=True)
    if found.remarks():
        errors.print(f"left out: {found.remarks()}", style="yellow")
    names = run.vocabulary.labels
    with Progress(console=errors, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("classifying", total=len(found))
        scores, said = evaluation.evaluate(
            run.model,
            encode(found.examples, run.vocabulary),
            names,
            batch=batch,
            progress=lambda done: bar.update(task, completed=done),
        )
    text = json.dumps(
        {"run": str(folders[0]), "data": paths, "left_out": found.left_out(), **scores.to_dict()},
        indent=1,
    )
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if predictions is not None:
        evaluation.write_predictions(predictions, found.examples, said, names)
    if as_json:
        print(text)
        return 0
    Console().print(_table(scores, f"{folders[0]} on {', '.join(paths)}"))
    for path in (out, predictions):
        if path is not None:
            print(f"written to {path}")
    return 0


def _table(scores: Scores, title: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("texts", "precision", "recall", "F1"):
        table.add_column(name, justify="right")
    for c in scores.classes:
        values = (c.precision, c.recall, c.f1)
        table.add_row(f"class {c.label}", f"{c.texts:,}", *(f"{v:.4f}" for v in values))
    table.add_section()
    area = "undefined: one class" if math.isnan(scores.auc) else f"{scores.auc:.4f}"
    table.add_row("all", f"{scores.texts:,}", "", "", f"{scores.f1:.4f}")
    table.add_row("accuracy", f"{scores.accuracy:.4f}")
    table.add_row("AUC", area)
    table.add_row("loss", f"{scores.loss:.4f}")
    return table


def _line(scores: dict[str, Any]) -> str:
    area = scores["auc"]
    return f"accuracy {100 * scores['accuracy']:.2f} %, F1 {scores['f1']:.4f}, AUC " + (
        "undefined" if area is None else f"{area:.4f}"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
