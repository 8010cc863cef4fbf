"""Pictures of results, whichever benchmark they are of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from parsimax.bench import plot_attention, plot_rows
from parsimax.bench.plot_style import INK


def write(source: Path, out: Path | None = None) -> Path:
    """Draw the results in a file of ``bench rows`` or ``attention``; the picture lies beside it."""
    target = source.with_suffix(".svg") if out is None else out
    report = _read(source)
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "parsimax",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
    }
    with mpl.rc_context(settings):
        figure = draw(report)
        target.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(target, dpi=130, facecolor="white", metadata=metadata)
    return target


def draw(report: Mapping[str, Any]) -> Figure:
    """One figure of all results in a file."""
    if plot_attention.drawable(report["rows"]):
        return plot_attention.draw(report)
    return plot_rows.draw(report)


def _read(source: Path) -> dict[str, Any]:
    try:
        report = json.loads(source.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{source}: expected results as JSON, got {error}") from None
    rows = report.get("rows", []) if isinstance(report, dict) else []
    if not plot_rows.drawable(rows) and not plot_attention.drawable(rows):
        raise ValueError(
            f"{source}: expected results of `bench rows` on a GPU, with memory floors, or of "
            "`bench attention`"
        )
    return dict(report)
