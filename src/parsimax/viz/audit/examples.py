"""Texts word by word: attention beside importance, as small bars over each word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from parsimax.analysis.audit import Example
from parsimax.viz.canvas import percent

from . import words


def series(example: Example) -> dict[str, tuple[float, ...]]:
    """What is drawn over each word, by name: attention, importances of words, other weights."""
    found = {"attention": example.attention}
    for name, values in example.importance.items():
        if name.endswith(":inputs"):
            found[words.method(name)] = values
    return found | {words.subject(name): values for name, values in example.adversarial.items()}


def legend(example: Example) -> str:
    """Which colour is what, from top to bottom."""
    items = "".join(
        f'<span><b class="s{_color(place)}"></b>{escape(name)}</span>'
        for place, name in enumerate(series(example))
    )
    return f'<p class="legend">{items}</p>'


def example_card(example: Example, labels: Sequence[str] = ()) -> str:
    """One text with its prediction, and bars over each of its words."""
    rows = series(example)
    best = max(range(len(example.prediction)), key=lambda c: example.prediction[c])
    said = f"predicted {_label(best, labels)} with {percent(example.prediction[best])}"
    truth = "" if example.label is None else f", labelled {_label(example.label, labels)}"
    far = "; ".join(
        f"{words.subject(name)} is {value:.2f} of at most 0.69 away from attention"
        if value == value
        else f"{words.subject(name)}: none were found"
        for name, value in example.jsd.items()
    )
    note = words.subject(example.chosen_for) + (f"; {far}" if far else "")
    tokens = "".join(_token(i, word, rows) for i, word in enumerate(example.words))
    return (
        f'<figure class="card text"><figcaption class="top"><b>Text {example.index + 1}</b> '
        f"{escape(said + truth)}<br><span>{escape(note)}</span></figcaption>"
        f'<div class="words">{tokens}</div></figure>'
    )


def _token(i: int, word: str, rows: Mapping[str, Sequence[float]]) -> str:
    bars, said = [], []
    for place, (name, values) in enumerate(rows.items()):
        value, most = values[i], max(values, default=0.0)
        said.append(f"{name} {words.number(value, 3)}")
        if value == 0 or value != value:
            bars.append('<b class="none">·</b>')
            continue
        height = 100 * value / most if most > 0 else 0.0
        bars.append(f'<b><i class="s{_color(place)}" style="height:{max(height, 3):.0f}%"></i></b>')
    hint = escape(f"{word}: " + ", ".join(said), quote=True)
    return f'<span class="w" title="{hint}">{"".join(bars)}<u>{escape(word)}</u></span>'


def _color(place: int) -> int:
    return place % 8 + 1


def _label(number: int, labels: Sequence[str]) -> str:
    return f"class {labels[number] if number < len(labels) else number}"
