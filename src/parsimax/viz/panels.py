"""One sentence's attention under several mappings, side by side.

As in Figure 1 of Niculae & Blondel (2017): the same scores become dense, sparse, or sparse in runs
of neighbours. Weights above zero are outlined.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import parsimax as px
from parsimax.viz.canvas import Canvas, cells, shown
from parsimax.viz.grid import CELL, draw_grid, room_for

MAPPINGS = ("softmax", "sparsemax", "fusedmax(lam=0.3)")
_GAP = 40.0  # between two panels
_TITLE = 34.0  # height of what stands over a panel


def panels_figure(
    scores: Sequence[Sequence[float]],
    source: Sequence[str],
    target: Sequence[str],
    *,
    mappings: Sequence[str | px.mappings.Mapping] = MAPPINGS,
    name: str = "panels",
) -> str:
    """Draw what each mapping makes of the scores, as an ``<svg>`` element.

    Args:
        scores: (target, source); of weights that softmax made, their logarithms are scores.
        source: symbols over the columns.
        target: symbols beside the rows.
        mappings: texts or mappings, one a panel, from left to right.
        name: class of the picture.

    >>> svg = panels_figure([[2.0, 1.9, 0.0]], ["a", "b", "c"], ["d"])
    >>> svg.count('class="nonzero"')  # softmax: 3, sparsemax: 2, fusedmax: 2
    7
    """
    rows = [[float(score) for score in row] for row in scores]
    if len(rows) != len(target) or any(len(row) != len(source) for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})}"
        raise ValueError(
            f"scores: expected {len(target)} rows (target) of {len(source)} (source), got {shape}"
        )
    if not mappings:
        raise ValueError("mappings: expected at least one, got none")
    matrix = torch.tensor(rows, dtype=torch.float64).reshape(len(target), len(source))
    heads, sides = [shown(s) for s in source], [shown(s) for s in target]
    canvas = Canvas()
    over, left = room_for(heads, sides)
    counts = []
    for number, mapping in enumerate(map(px.mappings.parse, mappings)):
        title = str(mapping)
        canvas.text(left, _TITLE / 2 - 4, title, bold=True, size=15)
        weights = mapping(matrix).tolist()
        count = draw_grid(canvas, left, _TITLE + over, weights, heads, sides, beside=number == 0)
        bottom = _TITLE + over + len(rows) * CELL
        share = f"{count} of {matrix.numel()} above zero"
        canvas.text(left, bottom + 16, share, role="muted")
        counts.append(f"{title}: {share}")
        width = max(len(source) * CELL, cells(title) * 9.0, cells(share) * 7.5)
        left += width + _GAP
    return canvas.to_svg(name=name, label=f"Attention on {' '.join(heads)}. {'; '.join(counts)}")
