"""The tree of hypotheses: everything a sparse model may say, as Figure 1 of Peters et al. (2019).

Sequences that begin alike share their beginning. Where the model has no choice, symbols run
together in one box; where it has, the branches carry their probabilities, which sum to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsimax.viz.canvas import LETTER, LETTER_SIZE, Canvas, cells, percent, shown

_ROW, _BOX, _PAD, _GAP = 44.0, 30.0, 7.0, 67.0
_END = "⏎"
_MORE = "…"


@dataclass(frozen=True)
class Leaf:
    """One sequence that the model may say, and its probability."""

    symbols: tuple[str, ...]
    probability: float


@dataclass(frozen=True)
class Branch:
    """Symbols without a choice between them, then the choices.

    Args:
        symbols: what is said before the next choice; empty if the sequence ends at once.
        probability: of this branch, given everything before it.
        mass: of all sequences through this branch.
        children: the most probable first.
        leaf: the sequence that ends here.
    """

    symbols: tuple[str, ...]
    probability: float
    mass: float
    children: tuple[Branch, ...]
    leaf: Leaf | None = None


def grow(leaves: Sequence[Leaf], most: int | None = None) -> Branch:
    """Join sequences where they begin alike.

    A branch's probability is its share of what is known to pass through its parent, so the
    probabilities are the model's own when ``leaves`` are all sequences of positive probability.

    Args:
        leaves: in any order.
        most: how many of the most probable to have in the tree; the others still count.
    """
    if not leaves:
        raise ValueError("leaves: expected at least one hypothesis, got none")
    if any(leaf.probability <= 0 for leaf in leaves):
        raise ValueError("leaves: expected positive probabilities only")
    if len({leaf.symbols for leaf in leaves}) < len(leaves):
        raise ValueError("leaves: expected each sequence once")
    return _grow(_ranked(leaves)[:most], list(leaves), 0, 1.0)


def _ranked(leaves: Sequence[Leaf]) -> list[Leaf]:
    return sorted(leaves, key=lambda leaf: (-leaf.probability, leaf.symbols))


def _grow(drawn: list[Leaf], every: list[Leaf], depth: int, probability: float) -> Branch:
    """The tree of ``drawn``, which agree up to ``depth``, with the masses of ``every``."""
    end = depth
    while all(len(leaf.symbols) > end for leaf in drawn):
        if len({leaf.symbols[end] for leaf in drawn}) > 1:
            break
        end += 1
    run = drawn[0].symbols[depth:end]
    mass = _mass(every)
    if len(drawn) == 1:
        return Branch(run, probability, mass, (), drawn[0])
    here = _groups([leaf for leaf in every if leaf.symbols[depth:end] == run], end)
    parent = sum(map(_mass, here.values()))
    children = [
        _grow(group, here[symbol], end, _mass(here[symbol]) / parent)
        for symbol, group in _groups(drawn, end).items()
    ]
    children.sort(key=lambda child: -child.probability)
    return Branch(run, probability, mass, tuple(children))


def _groups(leaves: list[Leaf], place: int) -> dict[str | None, list[Leaf]]:
    """Leaves by their symbol at a place; None for those that end there."""
    groups: dict[str | None, list[Leaf]] = {}
    for leaf in leaves:
        symbol = leaf.symbols[place] if len(leaf.symbols) > place else None
        groups.setdefault(symbol, []).append(leaf)
    return groups


def _mass(leaves: list[Leaf]) -> float:
    return sum(leaf.probability for leaf in leaves)


def tree_figure(
    leaves: Sequence[Leaf],
    *,
    name: str,
    gold: tuple[str, ...] | None = None,
    joiner: str = "",
    most: int = 12,
) -> str:
    """Draw the tree, from left to right; the most probable continuation goes straight on.

    Args:
        leaves: all sequences of positive probability, or the ones that are known.
        name: class of the picture.
        gold: the right one, which gets a tick and bold letters.
        joiner: what stands between symbols: nothing between characters, a space between words.
        most: sequences to draw; the rest is named by its share.
    """
    root = grow(leaves, most)
    ordered = _ranked(leaves)
    drawn, rest = ordered[:most], ordered[most:]
    canvas = Canvas()
    column = _draw_all(canvas, root, gold, joiner)
    unknown = 1 - _mass(ordered)
    notes = []
    if rest:
        share = percent(_mass(rest))
        notes.append(f"and {len(rest)} more with {share} together")
    if unknown > 1e-4:
        notes.append(f"{percent(unknown)} is on sequences that were not followed")
    for line, note in enumerate(notes):
        y = len(drawn) * _ROW + 8 + 20 * line
        canvas.text(column, y, f"{_MORE} {note}", size=12, role="muted")
    spoken = "; ".join(f"{joiner.join(s.symbols)} {percent(s.probability)}" for s in drawn)
    return canvas.to_svg(name=name, label=f"Tree of hypotheses: {spoken}")


def _draw_all(canvas: Canvas, root: Branch, gold: tuple[str, ...] | None, joiner: str) -> float:
    """Draw boxes and lines, then the finished sequences in one column, whose place is returned."""
    ends: list[tuple[float, float, Leaf]] = []
    _draw(canvas, root, 0.0, 0, ends, joiner)
    column = max(x for x, _, _ in ends) + 26
    for x, y, leaf in ends:
        canvas.line((x, y), (column - 8, y), role="grid", width=1)
        right = gold is not None and leaf.symbols == gold
        text = joiner.join(map(shown, leaf.symbols)) or "(nothing)"
        canvas.text(column, y, text, size=LETTER_SIZE, mono=True, bold=right)
        after = column + cells(text) * LETTER + 14
        canvas.text(after, y, percent(leaf.probability), role="muted")
        if right:
            canvas.text(after + 58, y, "✓", role="series-4", bold=True, size=15)
    return column


def _draw(
    canvas: Canvas,
    branch: Branch,
    x: float,
    row: int,
    ends: list[tuple[float, float, Leaf]],
    joiner: str,
) -> int:
    """Draw a branch whose box begins at ``x`` in ``row``; return how many rows it took."""
    y = row * _ROW + _BOX / 2 + 10
    text = joiner.join(map(shown, branch.symbols))
    if branch.leaf is not None:
        text = f"{text} {_END}" if text else _END
    if not text:  # the very first symbol is a choice already
        text = "·"
    width = cells(text) * LETTER + 2 * _PAD
    strong = branch.mass >= 0.5
    canvas.box(
        x, y - _BOX / 2, width, _BOX, fill="accent", opacity=0.08 + 0.22 * branch.mass,
        stroke="accent" if strong else "muted", stroke_width=1.4 if strong else 1, radius=7,
        css="run",
    )  # fmt: skip
    canvas.text(x + width / 2, y, text, size=LETTER_SIZE, mono=True, anchor="middle")
    right = x + width
    if branch.leaf is not None:
        ends.append((right, y, branch.leaf))
        return 1
    taken = 0
    bend = right + 13
    for child in branch.children:
        child_y = (row + taken) * _ROW + _BOX / 2 + 10
        points = [(right, y), (bend, y), (bend, child_y), (right + _GAP, child_y)]
        canvas.line(*(points if taken else [points[0], points[-1]]))
        canvas.text(
            right + 17, child_y - 9, percent(child.probability), size=11.5, role="muted",
            css="choice",
        )  # fmt: skip
        taken += _draw(canvas, child, right + _GAP, row + taken, ends, joiner)
    return taken
