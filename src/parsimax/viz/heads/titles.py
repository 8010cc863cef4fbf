"""Names of modules and colours of layers, the same in every picture."""

from __future__ import annotations

from parsimax.viz import svg

_TITLES = {
    "encoder": "encoder self-attention",
    "context": "context attention",
    "decoder": "decoder self-attention",
}


def title(module: str) -> str:
    """A module as readers know it."""
    return _TITLES.get(module, module)


def page_width(panels: int) -> float:
    """Width of a figure in inches: that of a page, whose text would else grow with few panels."""
    return 3.9 * max(panels, 3)


def layer_colors(layers: int) -> list[str]:
    """One colour a layer, from the first to the last of the page's series; neighbours differ."""
    series = svg.SERIES
    if layers <= len(series):
        step = (len(series) - 1) / max(layers - 1, 1)
        return [series[round(layer * step)] for layer in range(layers)]
    return [series[layer % len(series)] for layer in range(layers)]
