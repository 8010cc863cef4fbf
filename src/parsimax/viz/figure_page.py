"""A self-contained page with pictures under one another."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path


def write_figure_page(
    path: str | Path,
    pictures: Sequence[tuple[str, str]],
    *,
    title: str,
    heading: str,
    lede: str,
) -> Path:
    """Write a page; ``pictures`` are titles and ``<svg>`` elements.

    The folder is made if need be.
    """
    files = resources.files("parsimax.viz")
    style = "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "report.css")
    )
    cards = "\n".join(
        f'<figure class="card natural"><figcaption class="top"><b>{escape(caption)}</b>'
        f"</figcaption>{picture}</figure>"
        for caption, picture in pictures
    )
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<h1>{escape(heading)}</h1><p>{escape(lede)}</p>"
        f'<div class="stack one">{cards}</div></body></html>\n'
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target
