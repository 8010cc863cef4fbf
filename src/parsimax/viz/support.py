"""What may come next, at every step: the strip of Figure 2 of Peters et al. (2019).

Each step lists the symbols of positive probability, the given one in bold. Steps that allow one
symbol only share a border: that run could be completed for the writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parsimax.viz.canvas import LETTER, LETTER_SIZE, Canvas, cells, percent, shown

_LINE, _PAD, _GAP = 25.0, 8.0, 10.0


@dataclass(frozen=True)
class Step:
    """The symbols that may come next with their probabilities, and the one that was given."""

    candidates: tuple[tuple[str, float], ...]
    given: str

    @property
    def forced(self) -> bool:
        """Whether nothing but the given symbol was possible."""
        return len(self.candidates) == 1 and self.candidates[0][0] == self.given


def runs(steps: Sequence[Step]) -> list[list[Step]]:
    """Group neighbours that allow one symbol only; every real choice stays alone."""
    groups: list[list[Step]] = []
    for step in steps:
        if step.forced and groups and groups[-1][-1].forced:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def support_figure(steps: Sequence[Step], *, name: str, joiner: str = "", most: int = 8) -> str:
    """Draw the strip from left to right.

    Args:
        steps: in order.
        name: class of the picture.
        joiner: what stands between the symbols of a forced run.
        most: candidates to list at a step; the number of the others is said.
    """
    if not steps:
        raise ValueError("steps: expected at least one, got none")
    canvas = Canvas()
    x = 0.0
    for group in runs(steps):
        x += _draw_group(canvas, x, group, joiner, most) + _GAP
    spoken = " ".join(shown(step.given) for step in steps)
    return canvas.to_svg(name=name, label=f"Symbols that may come next at each step of: {spoken}")


def _draw_group(canvas: Canvas, x: float, group: list[Step], joiner: str, most: int) -> float:
    """Draw one box, a forced run or a choice, and return its width."""
    first = group[0]
    if first.forced:
        gap = joiner or " "
        text = gap.join(shown(step.given) for step in group)
        width = cells(text) * LETTER + 2 * _PAD
        canvas.box(
            x, 0, width, _LINE + 8, fill="accent", opacity=0.12, stroke="accent", radius=6,
            css="forced",
        )  # fmt: skip
        canvas.text(
            x + width / 2, _LINE / 2 + 4, text, size=LETTER_SIZE, mono=True, bold=True,
            anchor="middle",
        )  # fmt: skip
        return width
    ordered = sorted(first.candidates, key=lambda c: (-c[1], c[0]))
    listed = ordered[:most]
    if first.given not in dict(listed):  # the given one is always shown, even at probability zero
        listed = [*listed[: most - 1], (first.given, dict(ordered).get(first.given, 0.0))]
    letters = max(cells(shown(symbol)) for symbol, _ in listed)
    width = letters * LETTER + 58 + 2 * _PAD
    hidden = len(ordered) - sum(p > 0 for _, p in listed)
    height = (len(listed) + bool(hidden)) * _LINE + 8
    canvas.box(x, 0, width, height, stroke="muted", radius=6, css="choice")
    for line, (symbol, p) in enumerate(listed):
        y = 4 + (line + 0.5) * _LINE
        given = symbol == first.given
        canvas.text(
            x + _PAD, y, shown(symbol), size=LETTER_SIZE, mono=True, bold=given,
            role="ink" if p > 0 else "zero", css="given" if given else "",
        )  # fmt: skip
        text = percent(p) if p > 0 else "0"
        role = "muted" if p > 0 else "zero"
        canvas.text(x + width - _PAD, y, text, size=11.5, role=role, anchor="end")
    if hidden:
        y = 4 + (len(listed) + 0.5) * _LINE
        canvas.text(x + _PAD, y, f"{hidden} more", size=11.5, role="muted")
    return width
