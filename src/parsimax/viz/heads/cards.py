"""Heads on sentences: grids of weights with the nonzeros outlined (Figures 7 to 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from parsimax.analysis.heads import Example, HeadReport
from parsimax.analysis.heads.words import bare, find_marks, words
from parsimax.viz.canvas import percent
from parsimax.viz.grid import attention_figure

_HALF_PAGE = 520.0  # pixels inside a card that shares its row

_SCORES = {
    "before": "weight on the token before",
    "same": "weight on the token itself",
    "after": "weight on the token after",
    "merging": "score of words of several pieces",
    "question": "weight from interrogatives to the question mark",
    "statement": "weight from interrogatives to the last token",
    "denser": "density",
    "sparser": "density",
}


def pieces(tokens: Sequence[str]) -> list[str]:
    """Tokens as the paper writes them: ``~`` after a piece that its word goes on behind.

    >>> pieces(["▁bal", "lo", "ons", "▁fly", "."])
    ['bal~', 'lo~', 'ons', 'fly', '.']
    """
    marks = find_marks(tokens)
    shown = [bare(token, marks) or "␣" for token in tokens]
    for word in words(tokens, marks):
        for place in range(word.start, word.stop - 1):
            shown[place] += "~"
    return shown


def example_card(report: HeadReport, example: Example, *, name: str) -> str:
    """A grid under which head it is of, and how typical the sentence is."""
    picture = attention_figure(
        example.weights.tolist(),
        pieces(example.tokens),
        pieces(example.queries),
        name=name,
        title=f"{report.name}, {example.head}",
    )
    alphas = report.modules[example.head.module].alphas
    alpha = "" if alphas is None else f", α = {alphas[example.head.layer, example.head.head]:.2f}"
    mean = "" if example.mean is None else f" (mean of this head {percent(example.mean)})"
    note = f"{_SCORES[example.kind]}: {percent(example.score)} here{mean}"
    note = note.replace(" %", "\N{NO-BREAK SPACE}%")
    size = re.search(r'width="([0-9.]+)"', picture)
    wide = " whole" if size and float(size[1]) > _HALF_PAGE else ""
    return (
        f'<figure class="card natural{wide}"><figcaption class="top"><b>{escape(report.name)}</b>'
        f" {escape(str(example.head) + alpha)}<br><span class=below>{escape(note)}</span>"
        f"</figcaption>{picture}</figure>"
    )


def example_cards(reports: Iterable[HeadReport], kinds: Iterable[str], *, name: str) -> str:
    """Cards of all examples of some kinds, model by model."""
    wanted = list(kinds)
    cards = [
        example_card(report, example, name=f"{name}-{number}-{place}")
        for number, report in enumerate(reports)
        for place, example in enumerate(report.examples)
        if example.kind in wanted
    ]
    return "\n".join(cards)
