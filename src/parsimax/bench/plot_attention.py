"""Times of attention over dense softmax's, against the share of blocks without weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from parsimax.bench.attention_contenders import FLASH, LEARNED, OURS, SPLASH, SPLASH_2
from parsimax.bench.plot_style import ADASPLASH, DASHES, INK, MUTED, PARSIMAX, Look, clean, head

_LOOKS = {
    OURS: Look("parsimax, α = 1.5", PARSIMAX.color, PARSIMAX.marker),
    LEARNED: Look("parsimax, one learned α a head", "#56B4E9", "D"),
    SPLASH_2: Look("adasplash v2", ADASPLASH.color, ADASPLASH.marker),
    SPLASH: Look("adasplash v1", "#E69F00", "v"),
    FLASH: Look("softmax, FlashAttention", "#CC79A7", "s"),
}
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def drawable(rows: list[Any]) -> bool:
    """Whether these are results of ``bench attention``."""
    return any("empty" in row and "causal" in row and row.get("ratio") for row in rows)


def draw(report: Mapping[str, Any]) -> Figure:
    """The figure: columns are lengths, rows are sizes of heads, causal and not."""
    rows = report["rows"]
    lengths = sorted({row["tokens"] for row in rows})
    lines = sorted({(row["size"], row["causal"]) for row in rows})
    above = 1.2  # inches for title and legend
    height = above + 0.55 + 2.0 * len(lines)
    layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - above / height))
    figure = Figure(figsize=(max(9.0, 1.1 + 3.1 * len(lengths)), height), layout=layout)
    grid = figure.subplots(len(lines), len(lengths), sharex=True, sharey=True, squeeze=False)
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    limits = min(0.8, 0.8 * min(ratios)), max(2.0, 1.3 * max(ratios))
    shares = sorted({row["empty"] for row in rows})
    for i, (size, causal) in enumerate(lines):
        for j, tokens in enumerate(lengths):
            here = [
                row
                for row in rows
                if (row["size"], row["causal"], row["tokens"]) == (size, causal, tokens)
            ]
            _panel(grid[i, j], here, limits)
            grid[i, j].set_xticks(shares, [f"{share:.0%}" for share in shares])
            if i == 0:
                grid[i, j].set_title(f"{tokens:,} tokens", fontsize=10, color=INK)
        band = "causal" if causal else "not causal"
        grid[i, 0].set_ylabel(f"heads of {size}, {band}\ntime / softmax")
    for axes in grid[-1]:
        axes.set_xlabel("blocks without weight")
    _head(figure, report, height)
    return figure


def _panel(axes: Axes, rows: list[dict[str, Any]], limits: tuple[float, float]) -> None:
    axes.axhline(1.0, color=MUTED, linewidth=1.2, linestyle=DASHES)
    if not rows:
        axes.text(
            0.5, 0.7, "not measured", transform=axes.transAxes, ha="center", color=MUTED
        )  # fmt: skip
    for name, look in _LOOKS.items():
        points = sorted(
            (row["empty"], row["ratio"])
            for row in rows
            if row["contender"] == name and row["ratio"] is not None
        )
        if points:
            axes.plot(
                *zip(*points, strict=True), color=look.color, marker=look.marker, markersize=4,
                markeredgecolor="white", markeredgewidth=0.4, linewidth=1.2,
            )  # fmt: skip
        for row in rows:
            if row["contender"] == name and row["refused"]:
                at = row["empty"], limits[1] / 1.25
                axes.plot(*at, color=look.color, marker="x", markersize=4.5, linestyle="none")
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(FixedLocator([t for t in _TICKS if limits[0] <= t <= limits[1]]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.set_xlim(-0.05, 1.0)
    clean(axes)


def _head(figure: Figure, report: Mapping[str, Any], height: float) -> None:
    rows = report["rows"]
    machine = report.get("gpu") or report.get("processor", "CPU")
    head(
        figure,
        "Attention, forward and backward: time as a multiple of dense softmax's (lower is better)",
        f"{machine}, torch {report.get('torch', '?')}, {report.get('date', '')}, "
        f"{rows[0]['dtype']}, {report.get('heads', '?')} heads. Dashed: torch's softmax"
        f"{' by cuDNN' if report.get('gpu') else ''}.",
        height,
    )
    there = {row["contender"] for row in rows}
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, markersize=5, label=look.label)
        for name, look in _LOOKS.items()
        if name in there
    ]
    if any(row["refused"] for row in rows):
        handles.append(
            Line2D([], [], color=MUTED, marker="x", linestyle="none", label="wrong or failed")
        )
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.003, 1 - 0.55 / height),
        ncols=3, frameon=False, fontsize=9,
    )  # fmt: skip
