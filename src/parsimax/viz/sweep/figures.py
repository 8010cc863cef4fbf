"""Figures 1 to 4 of Meister et al. (2021), from our models."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parsimax.analysis.audit.sweep import Cell, Sweep, ceiling, entropy, tau
from parsimax.viz import svg

_WIDTH = 11.7
_COLORS = (svg.SERIES[1], svg.SERIES[4])
_METHODS = (("gradient_norm", "gradient"), ("leave_one_out", "leave-one-out"))


def correlation_figure(sweep: Sweep, method: str, *, name: str) -> str:
    """Figures 1 (gradient) and 4 (leave-one-out): τ-b with words, and with hidden states."""
    kinds = (("inputs", "with words"), ("hidden", "with hidden states"))
    # half a row of space between settings
    rows: list[tuple[float, str, Cell]] = []
    end = 0.0
    for number, config in enumerate(sweep.configs):
        for cell in sweep.cells(config):
            rows.append((len(rows) + 0.5 * number, f"{config}, {short(cell)}", cell))
        end = rows[-1][0] + 1
    with svg.drawing():
        figure = Figure(figsize=(_WIDTH, 1.2 + 0.26 * end), layout="constrained")
        axes = figure.subplots()
        svg.quiet_axes(axes)
        for (source, label), color in zip(kinds, _COLORS, strict=True):
            for place, _, cell in rows:
                _interval(axes, cell, tau(method, source), place, color, across=True)
            axes.plot([], [], "o", color=color, label=label)
        axes.set_yticks([place for place, _, _ in rows], [name for _, name, _ in rows])
        axes.set_ylim(end - 0.4, -0.6)
        axes.axvline(0, color=svg.MUTED, linewidth=1)
        axes.set_xlabel("correlation with attention, τ-b")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 1.1 / (end + 1)), ncols=2,
                    frameon=False)  # fmt: skip
        return svg.to_svg(figure, name=name, label="Correlation of attention and importance")


def entropy_figure(sweep: Sweep) -> str:
    """Figure 2: entropy of both importances of words, for every mapping."""

    def draw(axes: Axes, config: str) -> None:
        for (method, label), color in zip(_METHODS, _COLORS, strict=True):
            _line(axes, sweep, config, entropy(f"{method}:inputs"), color, label)
        axes.set_ylim(0, 1.03)

    return _panels(sweep, draw, "entropy of importance", "sweep-entropy", "Entropy and sparsity")


def trend_figure(sweep: Sweep) -> str:
    """Figure 3: τ-b with both importances of words, and the most that ties allow."""

    def draw(axes: Axes, config: str) -> None:
        for (method, label), color in zip(_METHODS, _COLORS, strict=True):
            _line(axes, sweep, config, tau(method, "inputs"), color, label)
        _line(axes, sweep, config, ceiling("gradient_norm", "inputs"), svg.ZERO,
              "most possible (gradient)", dashed=True)  # fmt: skip
        axes.set_ylim(-0.15, 1.03)

    return _panels(sweep, draw, "τ-b with attention", "sweep-trend", "Correlation and sparsity")


def density_figure(sweep: Sweep) -> str:
    """Share of words with attention, and of hidden states' influence: what sparsity did."""

    def draw(axes: Axes, config: str) -> None:
        _line(axes, sweep, config, "density/attention", _COLORS[0], "words with attention")
        _line(axes, sweep, config, entropy("attention"), _COLORS[1], "entropy of attention")
        axes.set_ylim(0, 1.03)

    return _panels(sweep, draw, "share, entropy", "sweep-density", "Attention and sparsity")


def short(cell: Cell) -> str:
    """A mapping in few letters: λ = 0.5, α = 1.25, softmax."""
    place = cell.place
    if cell.name == cell.mapping and place.parameter:
        letter = {"lam": "λ", "alpha": "α"}[place.parameter]
        return f"{letter} = {place.value:g}".replace("-", "−")
    return cell.name


def _panels(sweep: Sweep, draw: Callable[[Axes, str], None], y: str, name: str, label: str) -> str:
    configs = sweep.configs
    columns = min(3, max(len(configs), 2))
    count = -(-len(configs) // columns)
    with svg.drawing():
        figure = Figure(figsize=(_WIDTH, 0.6 + 2.7 * count), layout="constrained")
        grid = figure.subplots(count, columns, squeeze=False, sharey=True)
        flat = [axes for row in grid for axes in row]
        for axes in flat[len(configs) :]:
            axes.set_axis_off()
        for axes, config in zip(flat, configs, strict=False):
            svg.quiet_axes(axes)
            draw(axes, config)
            _ticks(axes, sweep, config)
            axes.set_title(config, fontsize=10.5, color=svg.INK, loc="left")
        for row in grid:
            row[0].set_ylabel(y)
        handles, labels = flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        return svg.to_svg(figure, name=name, label=label)


def _positions(sweep: Sweep, config: str) -> list[tuple[float, Cell]]:
    """Where each mapping stands: by its strength, and softmax left of all."""
    cells = sweep.cells(config)
    known = [cell.place.strength for cell in cells if cell.place.parameter]
    span = (max(known) - min(known)) if known else 1.0
    left = (min(known) if known else 0.0) - max(0.18 * span, 0.2)
    return [(cell.place.strength if cell.place.parameter else left, cell) for cell in cells]


def _ticks(axes: Axes, sweep: Sweep, config: str) -> None:
    places = _positions(sweep, config)
    names = [
        f"{cell.place.value:g}".replace("-", "−") if cell.place.parameter else cell.name
        for _, cell in places
    ]
    axes.set_xticks([x for x, _ in places], names, fontsize=8.5, rotation=35)
    letter = {"lam": "λ of sparsegen", "alpha": "α of entmax"}[sweep.parameter]
    axes.set_xlabel(letter)


def _line(
    axes: Axes,
    sweep: Sweep,
    config: str,
    key: str,
    color: str,
    label: str,
    *,
    dashed: bool = False,
) -> None:
    places = [(x, cell, cell.estimate(key, resamples=400)) for x, cell in _positions(sweep, config)]
    drawn = [(x, cell, e) for x, cell, e in places if e is not None and e.count]
    joined = [(x, e.mean) for x, cell, e in drawn if cell.place.parameter]
    style = (0, (4, 2)) if dashed else "solid"
    axes.plot([x for x, _ in joined], [y for _, y in joined], color=color, linewidth=1.5,
              linestyle=style, label=label)  # fmt: skip
    for x, cell, _ in drawn:
        _interval(axes, cell, key, x, color, across=False)
        for value in cell.by_seed(key).values() if len(cell.points) > 1 else ():
            axes.plot([x], [value], "_", color=color, markersize=7, alpha=0.8)


def _interval(axes: Axes, cell: Cell, key: str, place: float, color: str, *, across: bool) -> None:
    found = cell.estimate(key, resamples=400)
    if found is None or not found.count:
        return
    ends, at = [found.low, found.high], [place, place]
    pair = (ends, at) if across else (at, ends)
    axes.plot(*pair, color=color, linewidth=4, alpha=0.45, solid_capstyle="round")
    point = ([found.mean], [place]) if across else ([place], [found.mean])
    axes.plot(*point, "o", color=color, markersize=4.5)
