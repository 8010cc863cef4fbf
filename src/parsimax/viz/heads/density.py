"""Density: of all heads on all sentences (Figure 4), and head by head through layers (Figure 5)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from parsimax.analysis.heads import HeadReport, ModuleReport
from parsimax.viz import svg

from .titles import page_width, title


def densities_figure(
    reports: Sequence[HeadReport], *, name: str = "densities", bins: int = 20
) -> str:
    """Draw a histogram for each module (rows) and model (columns)."""

    def draw(axes: Axes, module: ModuleReport) -> None:
        counts = module.density.histogram(bins).tolist()
        places = [place / bins for place in range(bins)]
        axes.bar(
            places, counts, width=1 / bins, align="edge", color=svg.SERIES[2],
            edgecolor=svg.PAPER, linewidth=0.8,
        )  # fmt: skip
        axes.set_xlim(-0.02, 1.02)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))

    label = "Density of every head on every sentence"
    return _table(reports, draw, name=name, label=label, x="density", y="heads × sentences")


def layers_figure(reports: Sequence[HeadReport], *, name: str = "layers") -> str:
    """Draw the density of the heads of each layer, sorted, for each module and model.

    A line joins the sparsest heads of all layers, the next the second sparsest, and so on: heads of
    different layers have nothing to do with each other, and so are joined by rank.
    """

    def draw(axes: Axes, module: ModuleReport) -> None:
        ranked = module.density.density.sort(1).values
        layers = range(1, module.layers + 1)
        for rank in range(module.heads):
            axes.plot(
                layers, ranked[:, rank].tolist(), color=svg.SERIES[2], marker="o", markersize=3,
                linewidth=1.3, alpha=0.75,
            )  # fmt: skip
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(0.8, module.layers + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(min(module.layers, 8), integer=True))

    label = "Density of the heads of each layer, sorted"
    return _table(reports, draw, name=name, label=label, x="layer", y="density")


def _table(
    reports: Sequence[HeadReport], draw: object, *, name: str, label: str, x: str, y: str
) -> str:
    """One picture a module and model: models side by side, or modules if there is one model."""
    if not reports:
        raise ValueError("reports: expected at least one, got none")
    assert callable(draw)
    modules = list(dict.fromkeys(m for report in reports for m in report.modules))
    one = len(reports) == 1
    rows, columns = (1, len(modules)) if one else (len(modules), len(reports))
    with svg.drawing():
        size = (page_width(columns), 2.7 if one else 2.3 * rows)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharex="row", sharey="row")
        for row, module in enumerate(modules):
            for column, report in enumerate(reports):
                axes = grid[0][row] if one else grid[row][column]
                svg.quiet_axes(axes)
                if module not in report.modules:
                    axes.set_axis_off()
                    continue
                draw(axes, report.modules[module])
                heading = title(module) if one else f"{report.name}: {title(module)}"
                axes.set_title(heading, fontsize=10.5, color=svg.INK, loc="left")
                axes.set_xlabel(x if one or row == rows - 1 else "")
        for row in range(rows):
            grid[row][0].set_ylabel(y)
        names = ", ".join(report.name for report in reports)
        return svg.to_svg(figure, name=name, label=f"{label}: {names}")
