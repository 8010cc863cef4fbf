"""The demo page: the family of mappings, drawn from the library's own results."""

from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import parsimax as px
from parsimax.viz.family import curves_figure, path_figure
from parsimax.viz.notes import note_for
from parsimax.viz.panels import panels_figure
from parsimax.viz.sentence import DEFAULT_SENTENCE, score_pairs, score_sentence
from parsimax.viz.strips import strips, strips_figure

PAGE_NAME = "demo.html"


def write_demo(directory: str | Path, *, sentence: str | None = None) -> Path:
    """Write the demo page into a directory, which is made if need be, and return its path."""
    page = demo_page(sentence)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE_NAME
    path.write_text(page, encoding="utf-8")
    return path


def demo_page(sentence: str | None = None) -> str:
    """Return the demo page as HTML.

    Args:
        sentence: the words to spread attention over; a default when None.

    Raises:
        ValueError: the sentence has fewer than 2 or more than 24 words.
    """
    scored = score_sentence(DEFAULT_SENTENCE if sentence is None else sentence)
    members = strips(scored)
    names = list(px.mappings.registry())
    return _template("demo.html").substitute(
        style=_template("page.css").template,
        version=escape(px.__version__),
        count=len(names),
        words=len(scored.words),
        sentence=escape(" ".join(scored.words)),
        curves=curves_figure(),
        path=path_figure(scored),
        strips=strips_figure(scored, members),
        panels=panels_figure(score_pairs(scored), scored.labels, scored.labels, name="panels"),
        notes="\n".join(_note_card(name) for name in names),
    )


def _template(name: str) -> Template:
    return Template(resources.files("parsimax.viz").joinpath(name).read_text(encoding="utf-8"))


def _note_card(name: str) -> str:
    note = note_for(name)
    lines = [f'<article class="note"><h3><code>{escape(name)}</code></h3>']
    lines += [f'<p class="formula">{line}</p>' for line in (note.problem, note.solution) if line]
    lines += [f"<p>{note.text}</p></article>"]
    return "\n".join(lines)
