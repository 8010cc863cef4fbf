"""From a matplotlib figure to SVG that lives inside a page and follows its colours.

Figures are drawn with stand-in colours, one for each role (ink, grid, ...). In the SVG each of them
becomes a CSS variable, so one picture serves light and dark pages.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Role -> stand-in. The colours themselves are in page.css, as --ink, --muted and so on.
INK, MUTED, GRID, PAPER = "#010101", "#010102", "#010103", "#010104"
ACCENT, ZERO, ZERO_FILL = "#010105", "#010106", "#010107"
SERIES = ("#010111", "#010112", "#010113", "#010114", "#010115", "#010116")

_ROLES = {
    "ink": INK,
    "muted": MUTED,
    "grid": GRID,
    "paper": PAPER,
    "accent": ACCENT,
    "zero": ZERO,
    "zero-fill": ZERO_FILL,
    **{f"series-{number}": color for number, color in enumerate(SERIES, start=1)},
}

_RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: the browser's own font, selectable
    "svg.hashsalt": "parsimax",  # the same figure gives the same bytes
    "font.size": 10,
    "text.parse_math": False,  # a word may hold a dollar sign
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "hatch.linewidth": 0.7,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Settings for everything that is drawn for a page; nothing outside the block changes."""
    defaults: Any = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    settings: Any = {**defaults, **_RC}
    with mpl.rc_context(settings), warnings.catch_warnings():
        # matplotlib measures with its own font; the browser has one that knows the letter.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def quiet_axes(axes: Axes) -> None:
    """Leave only what the reader needs of the frame: a light grid, no box."""
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def to_svg(figure: Figure, *, name: str, label: str) -> str:
    """Return the figure as an ``<svg>`` element.

    Args:
        figure: drawn inside :func:`drawing`.
        name: put before every id, so that the pictures of a page do not share ids.
        label: what the picture shows, for readers who do not see it.
    """
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)

    view_box = re.search(r'viewBox="([^"]+)"', svg)
    assert view_box is not None, "matplotlib always writes a viewBox"
    opening = (
        f'<svg viewBox="{view_box[1]}" role="img" aria-label="{escape(label, quote=True)}"'
        f' class="{name}">'
    )
    svg = re.sub(r"^<svg[^>]*>", opening, svg)

    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace("xlink:href", "href")
    svg = re.sub(r'font-family: [^;"]*', "font-family: var(--sans)", svg)
    for role, color in _ROLES.items():
        svg = svg.replace(color, f"var(--{role})")
    return svg
