"""A page with the trees of several sources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path


def write_tree_page(path: str | Path, trees: Sequence[tuple[str, str]]) -> Path:
    """Write a self-contained page; ``trees`` are titles and pictures.

    The folder is made if need be.
    """
    files = resources.files("parsimax.viz")
    style = "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "report.css")
    )
    cards = "\n".join(
        f'<figure class="card natural"><figcaption class="top"><b>{escape(title)}</b></figcaption>'
        f"{picture}</figure>"
        for title, picture in trees
    )
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>parsimax: trees of hypotheses</title><style>{style}</style></head><body>"
        "<h1>Everything it might say</h1><p>All sequences of positive probability. Symbols in one "
        "box follow each other without a choice; branches carry their probabilities.</p>"
        f'<div class="stack one">{cards}</div></body></html>\n'
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target
