"""A page with the trees of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parsimax.viz.figure_page import write_figure_page


def write_tree_page(path: str | Path, trees: Sequence[tuple[str, str]]) -> Path:
    """Write a self-contained page; ``trees`` are titles and pictures.

    The folder is made if need be.
    """
    return write_figure_page(
        path,
        trees,
        title="parsimax: trees of hypotheses",
        heading="Everything it might say",
        lede="All sequences of positive probability. Symbols in one box follow each other without "
        "a choice; branches carry their probabilities.",
    )
