"""The plots of the page: distributions over texts, and means with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parsimax.analysis.audit import Audit, Estimate, Measure
from parsimax.viz import svg

from . import words

_WIDTH = 11.7  # inches of a page
_BINS = 24


def agreement_figure(audit: Audit) -> str:
    """τ-b of every text, one histogram an importance; "" if none was measured."""
    found = [
        m
        for m, e in audit.estimates.items()
        if (m.name, m.subject) == ("tau_b", "attention") and e.count
    ]
    rows = [
        [m for m in found if m.reference.endswith(f":{source}")] for source in ("inputs", "hidden")
    ]
    rows = [row for row in rows if row]
    if not rows:
        return ""
    columns = max(len(row) for row in rows)
    with svg.drawing():
        figure = Figure(figsize=(_WIDTH, 2.3 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
        for axes_row, row in zip(grid, rows, strict=True):
            for axes in axes_row[len(row) :]:
                axes.set_axis_off()
            for axes, key in zip(axes_row, row, strict=False):
                _histogram(axes, audit, key, (-1.0, 1.0))
                ceiling = audit.estimates[Measure("tau_b_ceiling", "attention", key.reference)]
                if ceiling.count and ceiling.mean < 0.995:
                    axes.axvline(ceiling.mean, color=svg.ZERO, linewidth=1.3, linestyle=(0, (4, 2)))
                _title(axes, words.subject(key.reference))
                axes.set_xlabel("agreement with attention, τ-b")
                axes.tick_params(labelbottom=True)  # also where nothing is drawn below
            axes_row[0].set_ylabel("texts")
        return svg.to_svg(
            figure, name="agreement", label="Agreement of attention and importance, text by text"
        )


def spread_figure(audit: Audit) -> str:
    """Normalised entropies with intervals."""
    keys = [m for m in audit.estimates if m.name == "entropy"]
    named = [(words.subject(m.subject), audit.estimates[m]) for m in keys]
    return _forest([("spread (0: one word, 1: all alike)", named)], "spread", "Spread", limits=True)


def erasure_figure(audit: Audit) -> str:
    """Comprehensiveness and sufficiency of every ranking; "" if they were not measured."""
    panels = []
    for name, title in (
        ("comprehensiveness", "drop when the first words go"),
        ("sufficiency", "drop when only the first words stay"),
    ):
        keys = [m for m in audit.estimates if m.name == name]
        panels.append((title, [(words.method(m.subject), audit.estimates[m]) for m in keys]))
    if not panels[0][1]:
        return ""
    return _forest(panels, "erasure", "Removing and keeping words")


def exchanges_figure(audit: Audit) -> str:
    """How far predictions move under other weights; "" if that was not tried."""
    keys = [
        m for m in audit.columns if m.name == "prediction_moved" and "adversarial" not in m.subject
    ]
    return _histograms(audit, keys, (0.0, 1.0), "exchanges", "move of the prediction")


def adversarial_figure(audit: Audit) -> str:
    """Distance of adversarial weights from attention; "" without a search."""
    keys = [m for m, e in audit.estimates.items() if m.name == "jsd" and e.count]
    return _histograms(
        audit,
        keys,
        (0.0, math.log(2)),
        "adversarial",
        "distance from attention",
        line=math.log(2) / 2,
    )


def _histograms(
    audit: Audit,
    keys: Sequence[Measure],
    limits: tuple[float, float],
    name: str,
    label: str,
    line: float | None = None,
) -> str:
    if not keys:
        return ""
    with svg.drawing():
        figure = Figure(figsize=(_WIDTH, 2.5), layout="constrained")
        grid = figure.subplots(1, max(len(keys), 2), squeeze=False)[0]
        for axes in grid[len(keys) :]:
            axes.set_axis_off()
        for axes, key in zip(grid, keys, strict=False):
            _histogram(axes, audit, key, limits)
            if line is not None:
                axes.axvline(line, color=svg.ZERO, linewidth=1.3, linestyle=(0, (4, 2)))
            _title(axes, words.subject(key.subject))
            axes.set_xlabel(label)
        grid[0].set_ylabel("texts")
        return svg.to_svg(figure, name=name, label=label)


def _histogram(axes: Axes, audit: Audit, key: Measure, limits: tuple[float, float]) -> None:
    svg.quiet_axes(axes)
    column, estimate = audit.columns[key], audit.estimates[key]
    values = [v for v in column.values.tolist() if v == v]
    axes.hist(
        values, bins=_BINS, range=limits, color=svg.SERIES[1], edgecolor=svg.PAPER, linewidth=0.6
    )
    if estimate.count:
        axes.axvline(estimate.mean, color=svg.INK, linewidth=1.6)
    if estimate.low == estimate.low:
        axes.axvspan(estimate.low, estimate.high, color=svg.MUTED, alpha=0.35, linewidth=0)
    margin = 0.02 * (limits[1] - limits[0])
    axes.set_xlim(limits[0] - margin, limits[1] + margin)


def _forest(
    panels: Sequence[tuple[str, Sequence[tuple[str, Estimate]]]],
    name: str,
    label: str,
    *,
    limits: bool = False,
) -> str:
    """Means with intervals, one line a name, panels side by side."""
    count = max(len(rows) for _, rows in panels)
    with svg.drawing():
        figure = Figure(figsize=(_WIDTH, 0.9 + 0.32 * count), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, rows) in zip(grid, panels, strict=True):
            svg.quiet_axes(axes)
            for place, (_, estimate) in enumerate(rows):
                if not estimate.count:
                    continue
                if estimate.low == estimate.low:
                    axes.plot(
                        [estimate.low, estimate.high], [place, place], color=svg.SERIES[1],
                        linewidth=4, solid_capstyle="round", alpha=0.55,
                    )  # fmt: skip
                axes.plot([estimate.mean], [place], "o", color=svg.SERIES[1], markersize=6)
            axes.set_yticks(range(len(rows)), [text for text, _ in rows])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.set_xlabel(title)
            if limits:
                axes.set_xlim(-0.02, 1.02)
            else:
                axes.axvline(0, color=svg.MUTED, linewidth=1)
        grid[0].tick_params(axis="y", labelcolor=svg.INK)
        return svg.to_svg(figure, name=name, label=label)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10.5, color=svg.INK, loc="left")
