"""Training curves from the lines of a run's ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from parsimax.viz import svg


@dataclass(frozen=True)
class Curve:
    """Points of one line."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Lines that share an axis, which shows shares in percent, or is logarithmic."""

    title: str
    curves: tuple[Curve, ...]
    percent: bool = False
    logarithmic: bool = False


def curve(
    records: Sequence[Mapping[str, object]], key: str, *, label: str, x: str = "step"
) -> Curve | None:
    """The values of a key over another; None if no record has both."""
    points = [
        (float(a), float(b))
        for record in records
        if isinstance(a := record.get(x), int | float)
        and isinstance(b := record.get(key), int | float)
        and math.isfinite(b)
    ]
    if not points:
        return None
    points.sort()
    return Curve(label, tuple(a for a, _ in points), tuple(b for _, b in points))


def curves_figure(panels: Sequence[Panel], *, name: str = "training", xlabel: str = "step") -> str:
    """Draw panels side by side."""
    if not panels:
        raise ValueError("panels: expected at least one, got none")
    with svg.drawing():
        figure = Figure(figsize=(3.9 * len(panels), 2.9), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(all_axes, panels, strict=True):
            svg.quiet_axes(axes)
            for line, color in zip(panel.curves, svg.SERIES[1::2] + svg.SERIES[::2], strict=False):
                scale = 100 if panel.percent else 1
                marker = "o" if len(line.x) < 30 else None
                axes.plot(
                    line.x, [scale * y for y in line.y], color=color, linewidth=1.8,
                    marker=marker, markersize=3, label=line.label,
                )  # fmt: skip
            axes.set_title(panel.title, fontsize=10.5, color=svg.INK, loc="left")
            axes.set_xlabel(xlabel)
            if panel.percent:
                axes.set_ylabel("%")
                axes.set_ylim(top=100.4)
            elif panel.logarithmic and all(y > 0 for line in panel.curves for y in line.y):
                axes.set_yscale("log")
                axes.tick_params(which="both", length=0)
                axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
                axes.yaxis.set_minor_formatter(NullFormatter())
            else:
                axes.set_ylim(bottom=0)
            if len(panel.curves) > 1:
                axes.legend(frameon=False, fontsize=9)
        titles = ", ".join(panel.title for panel in panels)
        return svg.to_svg(figure, name=name, label=f"Training curves: {titles}")
