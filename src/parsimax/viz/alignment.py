"""Structured alignments as grids: the marginals, then every active structure with its probability.

As Figure 2 of Peters, Niculae & Martins (2018): one sentence beside the rows, the other over the
columns, weights above zero outlined. SparseMAP's weights are a mixture of few whole alignments, and
here they stand one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsimax.viz.canvas import Canvas, cells, percent, shown
from parsimax.viz.grid import draw_weights

_LARGE, _SMALL = 26.0, 13.0  # cells of the marginals, and of a structure
_SPACE = 34.0  # between two pictures
_Grid = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """One structure and how much of the weight is its."""

    structure: _Grid
    probability: float


def alignment_figure(
    marginals: _Grid,
    structures: Sequence[_Grid],
    probabilities: Sequence[float],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    name: str = "alignment",
    title: str = "",
    most: int = 12,
    width: float = 1060.0,
) -> str:
    """Draw the alignment of two sentences, and the structures it is a mixture of.

    Args:
        marginals: (rows, columns), from 0 to 1.
        structures: (K, rows, columns) of 0 and 1; those of probability 0 are left out.
        probabilities: (K,).
        rows: words beside the rows, as many as the grid has.
        columns: words over the columns.
        name: class of the picture.
        title: what the label for readers who do not see begins with.
        most: how many structures are drawn; what the rest has together is said.
        width: where structures continue on the next line.

    Returns:
        An ``<svg>`` element in the colours of its page.
    """
    whole = _checked(marginals, rows, columns, "marginals")
    if len(structures) != len(probabilities):
        raise ValueError(
            f"structures and probabilities must be as many, got {len(structures)} and "
            f"{len(probabilities)}"
        )
    panels = [
        Panel(_checked(structure, rows, columns, "structures"), float(p))
        for structure, p in zip(structures, probabilities, strict=True)
        if p > 0
    ]
    panels.sort(key=lambda panel: -panel.probability)
    sides, heads = [shown(word) for word in rows], [shown(word) for word in columns]
    canvas = Canvas()
    top = 14 + max((cells(head) for head in heads), default=1) * 8.2
    left = 14 + max((cells(side) for side in sides), default=1) * 9.0
    for column, head in enumerate(heads):
        canvas.text(left + (column + 0.5) * _LARGE, top - 8, head, mono=True, turn=-90, size=13)
    for row, side in enumerate(sides):
        y = top + (row + 0.5) * _LARGE
        canvas.text(left - 9, y, side, mono=True, anchor="end", size=15)
    nonzero = draw_weights(canvas, left, top, whole, sides, heads, cell=_LARGE)
    x = left + len(columns) * _LARGE + _SPACE
    _draw_structures(canvas, panels, x, top, sides, heads, most, width)
    label = (
        f"{title or 'Alignment'}: {nonzero} of {len(rows) * len(columns)} weights are above zero, "
        f"from {len(panels)} structure{'s' if len(panels) != 1 else ''}"
    )
    return canvas.to_svg(name=name, label=label)


def _draw_structures(
    canvas: Canvas,
    panels: Sequence[Panel],
    left: float,
    top: float,
    sides: Sequence[str],
    heads: Sequence[str],
    most: int,
    width: float,
) -> None:
    """Small grids from left to right, each under its probability, on as many lines as it takes."""
    wide = max(len(heads) * _SMALL, 52.0)
    tall = len(sides) * _SMALL
    x, y = left, top
    for panel in panels[:most]:
        if x + wide > width and x > left:
            x, y = left, y + tall + _SPACE
        canvas.text(x, y - 9, percent(panel.probability), size=13, bold=True, css="probability")
        canvas.box(x - 3, y, len(heads) * _SMALL + 6, tall + 3, stroke="grid", radius=4)
        draw_weights(
            canvas, x, y + 1.5, panel.structure, sides, heads, cell=_SMALL, role="series-3"
        )
        x += wide + _SPACE * 0.7
    rest = panels[most:]
    if rest:
        share = percent(sum(panel.probability for panel in rest))
        below = y + tall + 20
        canvas.text(left, below, f"and {len(rest)} more, {share} together", role="muted")


def _checked(grid: _Grid, rows: Sequence[str], columns: Sequence[str], what: str) -> _Grid:
    values = [[float(value) for value in row] for row in grid]
    if len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        raise ValueError(
            f"{what}: expected {len(rows)} rows of {len(columns)}, got {len(values)} rows of "
            f"{sorted({len(row) for row in values})}"
        )
    return values
