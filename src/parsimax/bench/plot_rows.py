"""Times over the memory floor, one panel for each shape, dtype and pass."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from parsimax.bench.contenders import BASE, LATE
from parsimax.bench.plot_style import (
    ADASPLASH,
    DASHES,
    ENTMAX,
    INK,
    MUTED,
    PARSIMAX,
    clean,
    head,
)

_LOOKS = {"parsimax": PARSIMAX, "entmax": ENTMAX, "adasplash": ADASPLASH}
_APART = 0.24  # between two packages
_SPREAD = 0.085  # between two standard deviations of the same contender
_PASSES = {"forward": "forward", "backward": "forward + backward"}
_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


def drawable(rows: list[Any]) -> bool:
    """Whether these are results of ``bench rows`` on a GPU, with memory floors."""
    return any((row.get("forward") or {}).get("floor_ms") for row in rows)


def draw(report: Mapping[str, Any]) -> Figure:
    """The figure: columns are shapes, rows are dtypes and passes."""
    rows = report["rows"]
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    alphas = sorted({row["alpha"] for row in rows if row["contender"] != BASE}, key=_order)
    lines = [(dtype, which) for dtype in dtypes for which in _PASSES]
    above = 0.95  # inches for title and legend
    height = above + 0.55 + 2.15 * len(lines)
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - above / height))
    # Title and legend are ten inches wide, however few the panels are.
    figure = Figure(figsize=(max(10.0, 1.1 + 3.1 * len(shapes)), height), layout=layout)
    grid = figure.subplots(len(lines), len(shapes), sharex=True, sharey=True, squeeze=False)
    multiples = _multiples(rows)
    limits = min(0.8, 0.9 * min(multiples)), max(4.0, 1.6 * max(multiples))
    for i, (dtype, which) in enumerate(lines):
        for j, shape in enumerate(shapes):
            here = [row for row in rows if row["dtype"] == dtype and tuple(row["shape"]) == shape]
            _panel(grid[i, j], here, which, alphas, limits)
            if i == 0:
                grid[i, j].set_title(f"{shape[0]:,} × {shape[1]:,}", fontsize=10, color=INK)
        grid[i, 0].set_ylabel(f"{_SHORT.get(dtype, dtype)}, {_PASSES[which]}\ntime / memory floor")
    for axes in grid[-1]:
        axes.set_xlabel("alpha")
    _head(figure, report, height)
    return figure


def _multiples(rows: list[dict[str, Any]]) -> list[float]:
    return [
        row[which]["ms"] / row[which]["floor_ms"] for row in rows for which in _PASSES if row[which]
    ]


def _panel(
    axes: Axes,
    rows: list[dict[str, Any]],
    which: str,
    alphas: list[Any],
    limits: tuple[float, float],
) -> None:
    deviations = list(dict.fromkeys(row["std"] for row in rows))
    base = [row[which]["ms"] / row[which]["floor_ms"] for row in rows if row["contender"] == BASE]
    axes.axhline(1.0, color=INK, linewidth=1.2, zorder=1)
    if base:
        axes.axhline(sorted(base)[len(base) // 2], color=MUTED, linewidth=1.2, linestyle=DASHES)
    best: dict[tuple[str, Any], dict[float, float]] = defaultdict(dict)
    refused: set[tuple[str, Any]] = set()
    for row in rows:
        key = row["contender"].split(".")[0].split(",")[0], row["alpha"]
        if key[0] not in _LOOKS:
            continue
        if row[which] is None:
            if row["refused"] != LATE:
                refused.add(key)
            continue
        # Of several ways to use one package, the fastest that is right counts.
        multiple = row[which]["ms"] / row[which]["floor_ms"]
        best[key][row["std"]] = min(multiple, best[key].get(row["std"], multiple))
    packages = _packages(rows)

    def center(package: str, alpha: Any) -> float:
        offset = packages.index(package) - (len(packages) - 1) / 2
        return float(alphas.index(alpha) + _APART * offset)

    for (package, alpha), found in best.items():
        look = _LOOKS[package]
        middle = center(package, alpha)
        xs = [
            middle + _SPREAD * (deviations.index(std) - (len(deviations) - 1) / 2) for std in found
        ]
        axes.plot(
            xs,
            list(found.values()),
            color=look.color,
            marker=look.marker,
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.4,
            linewidth=1,
            zorder=3,
        )
    for package, alpha in refused - set(best):
        at = center(package, alpha), limits[1] / 1.25
        axes.plot(*at, color=_LOOKS[package].color, marker="x", markersize=4.5, linestyle="none")
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if tick <= limits[1]]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlim(-0.6, len(alphas) - 0.4)
    axes.set_xticks(range(len(alphas)), [_name(alpha) for alpha in alphas])
    clean(axes)


def _packages(rows: list[dict[str, Any]]) -> list[str]:
    return [name for name in _LOOKS if any(row["contender"].startswith(name) for row in rows)]


def _order(alpha: float | str) -> float:
    return math.inf if isinstance(alpha, str) else alpha


def _name(alpha: float | str) -> str:
    return "one a\nrow" if alpha == "tensor" else f"{alpha:g}"


def _head(figure: Figure, report: Mapping[str, Any], height: float) -> None:
    rows = report["rows"]
    bandwidth = report.get("copy_bytes_per_second")
    floor = f"; the floor is bytes over {bandwidth / 1e12:.2f} TB/s, a copy's" if bandwidth else ""
    deviations = ", ".join(f"{std:g}" for std in dict.fromkeys(row["std"] for row in rows))
    head(
        figure,
        "Time as a multiple of the memory floor (lower is better)",
        f"{report.get('gpu', 'GPU')}, torch {report.get('torch', '?')}, {report.get('date', '')}"
        f"{floor}. Joined markers, left to right: scores of standard deviation {deviations}.",
        height,
    )
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, markersize=5, label=look.label)
        for look in (_LOOKS[name] for name in _packages(rows))
    ]
    handles += [
        Line2D([], [], color=MUTED, linestyle=DASHES, label="torch.softmax"),
        Line2D([], [], color=INK, label="memory floor"),
        Line2D([], [], color=MUTED, marker="x", linestyle="none", label="wrong or failed"),
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.003, 1 - 0.55 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=9,
    )
