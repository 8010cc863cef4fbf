"""How pictures of benchmarks look: colours of Okabe and Ito, and axes with little ink."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#222222", "#666666", "#dddddd"
DASHES = (0, (5, 3))


@dataclass(frozen=True)
class Look:
    """How somebody is drawn: by a colour that colour-blind readers tell apart, and a marker."""

    label: str
    color: str
    marker: str


PARSIMAX = Look("parsimax", "#0072B2", "o")
ENTMAX = Look("entmax", "#D55E00", "s")
ADASPLASH = Look("adasplash", "#009E73", "^")


def clean(axes: Axes) -> None:
    """Horizontal lines only, and no box."""
    axes.grid(visible=True, axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def head(figure: Figure, title: str, below: str, height: float) -> None:
    """What is shown, in bold, and a line about how; both stand above the panels."""
    figure.text(0.01, 1 - 0.12 / height, title, fontsize=12, weight="bold", va="top")
    figure.text(0.01, 1 - 0.37 / height, below, fontsize=9, color=MUTED, va="top")
