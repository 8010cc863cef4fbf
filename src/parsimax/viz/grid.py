"""Attention as a grid: which source positions each output symbol looked at.

As in Figure 5 of Peters et al. (2019), weights above zero are outlined, so a small weight and an
exact zero look different.
"""

from __future__ import annotations

from collections.abc import Sequence

from parsimax.viz.canvas import Canvas, cells, percent, shown

CELL = 26.0
_LETTERS_UPRIGHT = 2  # longer labels over columns are turned


def attention_figure(
    weights: Sequence[Sequence[float]],
    source: Sequence[str],
    target: Sequence[str],
    *,
    name: str,
    title: str = "",
) -> str:
    """Draw weights, one row a target symbol, one column a source symbol.

    Args:
        weights: (target, source), rows that sum to one.
        source: symbols over the columns.
        target: symbols beside the rows: row t is the query that predicts symbol t.
        name: class of the picture.
        title: what the label for readers who do not see begins with.
    """
    rows = [[float(w) for w in row] for row in weights]
    if len(rows) != len(target) or any(len(row) != len(source) for row in rows):
        shape = f"{len(rows)} rows of {sorted({len(row) for row in rows})}"
        raise ValueError(
            f"weights: expected {len(target)} rows (target) of {len(source)} (source), got {shape}"
        )
    heads = [shown(symbol) for symbol in source]
    sides = [shown(symbol) for symbol in target]
    canvas = Canvas()
    top, left = room_for(heads, sides)
    nonzero = draw_grid(canvas, left, top, rows, heads, sides)
    label = f"{title or 'Attention'}: {nonzero} of {len(rows) * len(source)} weights are above zero"
    return canvas.to_svg(name=name, label=label)


def room_for(heads: Sequence[str], sides: Sequence[str]) -> tuple[float, float]:
    """Height of the labels over the columns, and width of those beside the rows."""
    turned = [cells(head) for head in heads if cells(head) > _LETTERS_UPRIGHT]
    top = max(10 + max(turned, default=1) * 8.2, 24.0)
    return top, 14 + max((cells(side) for side in sides), default=1) * 9.0


def draw_grid(
    canvas: Canvas,
    left: float,
    top: float,
    rows: Sequence[Sequence[float]],
    heads: Sequence[str],
    sides: Sequence[str],
    *,
    beside: bool = True,
) -> int:
    """Draw cells from their upper left corner; return how many weights are above zero.

    Labels of the rows are drawn if ``beside``.
    """
    for column, head in enumerate(heads):
        x = left + (column + 0.5) * CELL
        if cells(head) > _LETTERS_UPRIGHT:
            canvas.text(x, top - 8, head, mono=True, turn=-90, size=13)
        else:
            canvas.text(x, top - 12, head, mono=True, anchor="middle", size=15)
    if beside:
        for row, side in enumerate(sides):
            y = top + (row + 0.5) * CELL
            canvas.text(left - 9, y, side, mono=True, anchor="end", size=15)
    return draw_weights(canvas, left, top, rows, sides, heads)


def draw_weights(
    canvas: Canvas,
    left: float,
    top: float,
    rows: Sequence[Sequence[float]],
    sides: Sequence[str],
    heads: Sequence[str],
    *,
    cell: float = CELL,
    role: str = "accent",
) -> int:
    """Draw weights from an upper left corner on; how many are above zero.

    ``sides`` and ``heads`` name the rows and columns under the pointer.
    """
    nonzero = 0
    gap, dot = cell * 0.058, cell * 0.16
    for row, values in enumerate(rows):
        for column, weight in enumerate(values):
            x, y = left + column * cell, top + row * cell
            if weight > 0:
                nonzero += 1
                canvas.box(
                    x + gap, y + gap, cell - 2 * gap, cell - 2 * gap, fill=role,
                    opacity=min(1.0, 0.06 + 0.94 * weight), stroke=role, stroke_width=cell * 0.06,
                    radius=cell * 0.12, css="nonzero",
                    hint=f"{sides[row]} ← {heads[column]}: {percent(weight)}",
                )  # fmt: skip
            else:
                canvas.box(
                    x + (cell - dot) / 2, y + (cell - dot) / 2, dot, dot, fill="grid",
                    radius=dot / 2, css="zero",
                )  # fmt: skip
                # a dot keeps the grid readable and cannot be taken for a weight
    return nonzero
