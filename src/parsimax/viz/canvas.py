"""Small pictures written as SVG directly, in the colours of the page they stand in.

For boxes, lines and words this gives closer control than a plotting library, and needs none. The
conventions are those of :mod:`parsimax.viz.svg`: colours are the roles of ``page.css``, so one
picture serves light and dark pages; text stays text; a label says what is shown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from html import escape

LETTER = 9.7  # width of a monospaced letter at LETTER_SIZE, with a little to spare
LETTER_SIZE = 16


class Canvas:
    """Shapes on a page's own paper; the picture grows to hold what is drawn."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._right = 0.0
        self._bottom = 0.0

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 13,
        role: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        turn: float = 0,
        css: str = "",
    ) -> None:
        """Write a line of text whose middle is at height ``y``."""
        width = cells(content) * size * (0.61 if mono else 0.56)
        if turn:
            reach_x, reach_y = x + 4, y + 4  # turned text goes up: its caller makes room for it
        else:
            reach_x = x + {"start": width, "middle": width / 2, "end": 0.0}[anchor]
            reach_y = y + size * 0.7
        self._reach(reach_x, reach_y)
        family = "var(--mono)" if mono else "var(--sans)"
        weight = "700 " if bold else ""
        rotated = f' transform="rotate({_n(turn)} {_n(x)} {_n(y)})"' if turn else ""
        css_class = f' class="{escape(css, quote=True)}"' if css else ""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" dy="0.35em" text-anchor="{anchor}" '
            f'style="font: {weight}{_n(size)}px {family}; fill: var(--{role})"{rotated}{css_class}'
            f' xml:space="preserve">{escape(content)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str | None = None,
        opacity: float = 1.0,
        stroke: str | None = None,
        stroke_width: float = 1.0,
        radius: float = 0.0,
        css: str = "",
        hint: str = "",
    ) -> None:
        """Draw a rectangle from its upper left corner; ``hint`` shows under the pointer."""
        self._reach(x + width, y + height)
        style = f"fill: var(--{fill})" if fill else "fill: none"
        if fill and opacity < 1:
            style += f"; fill-opacity: {opacity:.3f}"
        if stroke:
            style += f"; stroke: var(--{stroke}); stroke-width: {_n(stroke_width)}"
        css_class = f' class="{escape(css, quote=True)}"' if css else ""
        inside = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'rx="{_n(radius)}" style="{style}"{css_class}{inside}'
        )

    def line(self, *points: tuple[float, float], role: str = "muted", width: float = 1.4) -> None:
        """Draw a line through points, with round corners."""
        for x, y in points:
            self._reach(x + width, y + width)
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" style="fill: none; stroke: var(--{role}); '
            f'stroke-width: {_n(width)}; stroke-linejoin: round"/>'
        )

    def to_svg(self, *, name: str, label: str, margin: float = 4) -> str:
        """Return the picture as an ``<svg>`` element at its natural size."""
        width, height = self._right + 2 * margin, self._bottom + 2 * margin
        return (
            f'<svg viewBox="{_n(-margin)} {_n(-margin)} {_n(width)} {_n(height)}" '
            f'width="{_n(width)}" height="{_n(height)}" role="img" '
            f'aria-label="{escape(label, quote=True)}" class="{escape(name, quote=True)}">'
            + "".join(self._parts)
            + "</svg>"
        )

    def _reach(self, x: float, y: float) -> None:
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)


def cells(text: str) -> int:
    """How many monospaced cells a text takes: Chinese and Japanese letters take two.

    >>> cells("go"), cells("行く")
    (2, 4)
    """
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def percent(p: float) -> str:
    """A probability as people read it; nothing above zero reads as zero, nothing below one as one.

    >>> percent(0.664), percent(1.0), percent(0.0003), percent(0.9999)
    ('66.4 %', '100 %', '<0.1 %', '>99.9 %')
    """
    if p >= 1 - 1e-6:
        return "100 %"
    if p >= 0.9995:
        return ">99.9 %"
    return "<0.1 %" if 0 < p < 0.0005 else f"{100 * p:.1f} %"


_SHOWN: Mapping[str, str] = {"<space>": "␣", "<unk>": "�", "<eos>": "⏎", " ": "␣"}


def shown(symbol: str) -> str:
    """A symbol as a picture writes it: what cannot be seen gets a sign, marks lose their marks.

    >>> shown("<space>"), shown("<tag:PST>"), shown("<lang:english>"), shown("a")
    ('␣', 'PST', 'english', 'a')
    """
    if symbol.startswith(("<tag:", "<lang:")):
        return symbol.partition(":")[2].removesuffix(">")
    return _SHOWN.get(symbol, symbol)


def _n(value: float) -> str:
    """A coordinate in few characters."""
    return f"{value:.1f}".removesuffix(".0")
