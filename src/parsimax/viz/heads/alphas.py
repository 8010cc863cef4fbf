"""Learned alphas: their way through training (Figure 2), and where they ended (Figure 3)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from parsimax.analysis.heads import Trajectory, histogram
from parsimax.viz import svg

from .titles import layer_colors, page_width, title


def trajectories_figure(
    trajectories: Mapping[str, Trajectory], *, name: str = "trajectories"
) -> str:
    """Draw one panel a module and one line a head, in the colour of its layer."""
    if not trajectories:
        raise ValueError("trajectories: expected at least one module, got none")
    layers = max(each.alphas.shape[1] for each in trajectories.values())
    colors = layer_colors(layers)
    top = max(2.0, *(float(each.alphas.max()) for each in trajectories.values()))
    with svg.drawing():
        width = page_width(len(trajectories))
        figure = Figure(figsize=(width, 3.1), layout="constrained")
        panels = figure.subplots(1, len(trajectories), squeeze=False, sharey=True)[0]
        for axes, (module, each) in zip(panels, trajectories.items(), strict=True):
            svg.quiet_axes(axes)
            marker = "o" if len(each.steps) < 3 else None
            for layer in range(each.alphas.shape[1]):
                for head in range(each.alphas.shape[2]):
                    axes.plot(
                        each.steps.tolist(), each.alphas[:, layer, head].tolist(),
                        color=colors[layer], marker=marker,
                        markersize=3, linewidth=1.3, label=f"layer {layer + 1}" if not head else "",
                    )  # fmt: skip
            axes.set_title(title(module), fontsize=10.5, color=svg.INK, loc="left")
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_ylim(0.98, top + 0.02)
        panels[0].set_ylabel("α")
        if layers > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            chosen = [(h, text) for h, text in zip(handles, labels, strict=True) if text]
            figure.legend(
                [h for h, _ in chosen], [text for _, text in chosen], frameon=False, fontsize=9,
                loc="outside lower center", ncols=min(layers, 12),
            )  # fmt: skip
        label = f"α of every head during training: {', '.join(map(title, trajectories))}"
        return svg.to_svg(figure, name=name, label=label)


def alphas_figure(alphas: Mapping[str, Tensor], *, name: str = "alphas", bins: int = 20) -> str:
    """Draw how many heads of each module have which alpha."""
    if not alphas:
        raise ValueError("alphas: expected at least one module, got none")
    top = max(2.0, *(float(each.max()) for each in alphas.values()))
    with svg.drawing():
        figure = Figure(figsize=(page_width(len(alphas)), 2.7), layout="constrained")
        panels = figure.subplots(1, len(alphas), squeeze=False, sharey=True)[0]
        for axes, (module, each) in zip(panels, alphas.items(), strict=True):
            svg.quiet_axes(axes)
            counts, edges = histogram(each, bins)
            axes.bar(
                edges[:-1].tolist(), counts.tolist(), width=edges.diff().tolist(), align="edge",
                color=svg.SERIES[1],
                edgecolor=svg.PAPER, linewidth=0.8,
            )  # fmt: skip
            axes.set_xlim(0.98, top + 0.02)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_title(title(module), fontsize=10.5, color=svg.INK, loc="left")
            axes.set_xlabel("α: 1 is softmax, 2 sparsemax")
        panels[0].set_ylabel("heads")
        label = f"Learned α of all heads: {', '.join(map(title, alphas))}"
        return svg.to_svg(figure, name=name, label=label)
