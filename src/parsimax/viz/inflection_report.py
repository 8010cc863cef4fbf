"""One page about an inflection model: what it gets right, what it can prove, where it hesitates.

The page is drawn from plain values, so that whoever has them can draw it: the numbers of an
evaluation, words with everything the model may say for them, attention, curves, errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import parsimax as px
from parsimax.seq2seq.metrics.certificates import PAPER
from parsimax.viz.canvas import percent, shown
from parsimax.viz.curves import Panel, curves_figure
from parsimax.viz.grid import attention_figure
from parsimax.viz.support import Step, support_figure
from parsimax.viz.tree import Leaf, tree_figure

PAGE_NAME = "inflection.html"
_MOST_LEAVES = 8
_HALF_PAGE = 520.0  # pixels inside a card that shares its row


@dataclass(frozen=True)
class WordPicture:
    """A question to the model, and all it may answer.

    Args:
        lemma: the word that was asked about.
        asked: the form that was asked for, in words.
        origin: whether the model had seen the lemma, in words.
        leaves: everything with positive probability.
        gold: the right form as symbols; None if nobody knows, as for an invented word.
        optimal: whether the best answer is proved to be the most probable.
        complete: whether ``leaves`` are all there are.
        source: symbols the model read.
        target: symbols of the answer whose attention is shown, with the end.
        weights: (target, source), or None where no grid is wanted.
        steps: what could come next at each step of the answer.
    """

    lemma: str
    asked: str
    origin: str
    leaves: tuple[Leaf, ...]
    gold: tuple[str, ...] | None = None
    optimal: bool = True
    complete: bool = True
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Mistake:
    """A held-out question that was answered wrongly."""

    lemma: str
    asked: str
    gold: str
    output: str
    probability: float
    gold_probability: float | None


@dataclass(frozen=True)
class Summary:
    """The numbers on top of the page; shares are between 0 and 1."""

    accuracy: float
    right: int
    questions: int
    single: float | None
    exhaustive: float | None
    optimal: float | None
    support: float
    vocabulary: int
    attended: float
    attendable: float
    zero_gold: float
    beam: int
    train_rows: int
    train_lemmas: int
    held_out_lemmas: int
    seconds: float
    epochs: float
    parameters: int
    model: str
    machine: str
    other: tuple[tuple[str, str], ...] = ()


def report_page(
    summary: Summary,
    words: Sequence[WordPicture],
    panels: Sequence[Panel],
    mistakes: Sequence[Mistake],
) -> str:
    """Return the page as HTML that fetches nothing."""
    files = resources.files("parsimax.viz")
    page = Template(files.joinpath("inflection_report.html").read_text(encoding="utf-8"))
    style = files.joinpath("page.css").read_text(encoding="utf-8")
    style += files.joinpath("report.css").read_text(encoding="utf-8")
    grids = [word for word in words if word.weights is not None]
    strips = [word for word in words if word.steps]
    return page.substitute(
        style=style,
        version=escape(px.__version__),
        model=escape(summary.model),
        machine=escape(summary.machine),
        accuracy=percent(summary.accuracy),
        right=f"{summary.right:,}",
        questions=f"{summary.questions:,}",
        held_out=f"{summary.held_out_lemmas:,}",
        train_rows=f"{summary.train_rows:,}",
        train_lemmas=f"{summary.train_lemmas:,}",
        seconds=f"{summary.seconds:.0f}",
        epochs=f"{summary.epochs:.3g}",
        parameters=f"{summary.parameters:,}",
        beam=summary.beam,
        tiles=_tiles(summary),
        support=f"{summary.support:.2f}",
        vocabulary=summary.vocabulary,
        attended=f"{summary.attended:.2f}",
        attendable=f"{summary.attendable:.1f}",
        zero_gold=percent(summary.zero_gold),
        trees="\n".join(_tree_card(word, number) for number, word in enumerate(words)),
        grids="\n".join(_grid_card(word, number) for number, word in enumerate(grids)),
        strips="\n".join(_strip_card(word, number) for number, word in enumerate(strips)),
        curves=curves_figure(panels) if panels else "<p>No metrics were recorded.</p>",
        mistakes=_mistakes(mistakes, summary),
        details=_details(summary),
    )


def write_report(
    path: str | Path,
    summary: Summary,
    words: Sequence[WordPicture],
    panels: Sequence[Panel],
    mistakes: Sequence[Mistake],
) -> Path:
    """Write the page and return where it is; the folder is made if need be."""
    page = report_page(summary, words, panels, mistakes)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _tiles(summary: Summary) -> str:
    """The four numbers, each with what the paper found, where it says."""
    single, exhaustive = PAPER["medium"]
    single_high, exhaustive_high = PAPER["high"]

    def paper(medium: float, high: float) -> str:
        return f"paper: {medium:.0%} (medium), {high:.0%} (high)"

    tiles = [
        ("right", percent(summary.accuracy), "of the forms of unseen verbs, letter for letter"),
        ("one answer", _share(summary.single), paper(single, single_high)),
        ("every answer found", _share(summary.exhaustive), paper(exhaustive, exhaustive_high)),
        ("best answer proved", _share(summary.optimal), "nothing else can be more probable"),
    ]
    return "\n".join(
        f'<div class="tile"><p class="what">{what}</p><p class="number">{number}</p>'
        f'<p class="beside">{beside}</p></div>'
        for what, number, beside in tiles
    )


def _share(value: float | None) -> str:
    return "not claimed" if value is None else percent(value)


def _tree_card(word: WordPicture, number: int) -> str:
    picture = tree_figure(word.leaves, name=f"tree-{number}", gold=word.gold, most=_MOST_LEAVES)
    count = len(word.leaves)
    answers = "one answer" if count == 1 else f"{count:,} answers"
    if not word.complete:
        answers = f"more than {answers}"
    best = max(word.leaves, key=lambda leaf: leaf.probability)
    if word.gold is None:
        verdict = "no dictionary says"
    elif best.symbols == word.gold:
        verdict = "right"
    else:
        verdict = f"wrong: it is {_join(word.gold)}"
    proof = "" if word.optimal else ", not proved"
    return _card(word, picture, f" · {answers} · {verdict}{proof}")


def _grid_card(word: WordPicture, number: int) -> str:
    assert word.weights is not None
    title = f"Attention for {word.lemma}, {word.asked}"
    picture = attention_figure(
        word.weights, word.source, word.target, name=f"grid-{number}", title=title
    )
    return _card(word, picture)


def _strip_card(word: WordPicture, number: int) -> str:
    picture = support_figure(word.steps, name=f"strip-{number}")
    return _card(word, picture)


def _card(word: WordPicture, picture: str, more: str = "") -> str:
    """A picture under what was asked; one that needs the page's width gets it."""
    size = re.search(r'width="([0-9.]+)"', picture)
    wide = " whole" if size and float(size[1]) > _HALF_PAGE else ""
    return (
        f'<figure class="card natural{wide}"><figcaption class="top"><b>{escape(word.lemma)}</b>, '
        f"{escape(word.asked)} <span>{escape(word.origin + more)}</span></figcaption>"
        f"{picture}</figure>"
    )


def _mistakes(mistakes: Sequence[Mistake], summary: Summary) -> str:
    """All mistakes, the most certain first."""
    if not mistakes:
        return "<p>There are none.</p>"
    rows = []
    for m in mistakes:
        known = m.gold_probability
        gold_p = "?" if known is None else "0" if known == 0 else percent(known)
        rows.append(
            f"<tr><td>{escape(m.lemma)}</td><td>{escape(m.asked)}</td>"
            f"<td><code>{escape(m.output)}</code></td><td>{percent(m.probability)}</td>"
            f"<td><code>{escape(m.gold)}</code></td><td>{gold_p}</td></tr>"
        )
    wrong = summary.questions - summary.right
    shown_note = (
        "" if len(mistakes) == wrong else f"<p>The {len(mistakes)} most certain of {wrong}.</p>"
    )
    head = (
        "<thead><tr><th>verb</th><th>form</th><th>the model says</th><th>with</th>"
        "<th>the lexicon says</th><th>which the model gives</th></tr></thead>"
    )
    body = "".join(rows)
    return f'{shown_note}<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _details(summary: Summary) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in summary.other
    )
    return f'<div class="scroll all"><table><tbody>{rows}</tbody></table></div>' if rows else ""


def _join(symbols: Sequence[str]) -> str:
    return "".join(map(shown, symbols))
