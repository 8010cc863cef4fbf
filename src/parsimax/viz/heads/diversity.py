"""How much the heads of each layer disagree (Figure 6)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from parsimax.analysis.heads import HeadReport
from parsimax.viz import svg

from .titles import page_width, title


def diversity_figure(reports: Sequence[HeadReport], *, name: str = "diversity") -> str:
    """Draw one panel a module and one line a model, each in its 95 % interval."""
    if not reports:
        raise ValueError("reports: expected at least one, got none")
    modules = list(dict.fromkeys(m for report in reports for m in report.modules))
    with svg.drawing():
        tall = 3.1 if len(reports) > 1 else 2.7
        figure = Figure(figsize=(page_width(len(modules)), tall), layout="constrained")
        panels = figure.subplots(1, len(modules), squeeze=False)[0]
        for axes, module in zip(panels, modules, strict=True):
            svg.quiet_axes(axes)
            for number, report in enumerate(reports):
                if module not in report.modules:
                    continue
                found = report.modules[module].diversity
                color = svg.SERIES[(1 + 2 * number) % len(svg.SERIES)]
                layers = range(1, len(found.diversity) + 1)
                low, high = found.low.tolist(), found.high.tolist()
                axes.fill_between(layers, low, high, color=color, alpha=0.18, lw=0)
                axes.plot(
                    layers, found.diversity.tolist(), color=color, marker="o", markersize=3.5,
                    linewidth=1.8, label=report.name,
                )  # fmt: skip
            axes.set_title(title(module), fontsize=10.5, color=svg.INK, loc="left")
            axes.set_xlabel("layer")
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        panels[0].set_ylabel("JS between heads")
        if len(reports) > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(
                handles, labels, frameon=False, fontsize=9, loc="outside lower center",
                ncols=min(len(reports), 6),
            )  # fmt: skip
        label = "Jensen-Shannon divergence between the heads of each layer"
        return svg.to_svg(figure, name=name, label=label)
