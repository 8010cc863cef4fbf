"""One page about one audited model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import parsimax as px
from parsimax.analysis.audit import Audit, Finding
from parsimax.viz.canvas import percent

from . import figures, tables, words
from .diagram import diagram
from .examples import example_card, legend

PAGE_NAME = "audit.html"


@dataclass(frozen=True)
class Facts:
    """What a page says about a model beside its numbers; all of it may be empty.

    Args:
        name: Of the model.
        model: What it is, in words.
        data: Which texts it read.
        labels: Names of its classes.
        left_out: What was left out before the audit, in words.
        origin: With what, when and how the page was made.
        note: What a reader has to know before all else, such as that this was a quick look.
    """

    name: str = "this model"
    model: str = ""
    data: str = "the texts given"
    labels: Sequence[str] = ()
    left_out: str = ""
    origin: str = ""
    note: str = ""


def audit_page(audit: Audit, facts: Facts | None = None) -> str:
    """Return the page as HTML that fetches nothing."""
    about = facts or Facts()
    files = resources.files("parsimax.viz")
    own = resources.files("parsimax.viz.audit")
    page = Template(own.joinpath("page.html").read_text(encoding="utf-8"))
    style = "".join(
        folder.joinpath(name).read_text(encoding="utf-8")
        for folder, name in ((files, "page.css"), (files, "report.css"), (own, "page.css"))
    )
    word, _, rest = audit.verdict.headline.partition(":")
    return page.substitute(
        style=style,
        version=escape(px.__version__),
        name=escape(about.name),
        model=escape(f" ({about.model})" if about.model else ""),
        data=escape(about.data),
        texts=f"{len(audit.kept):,}",
        note=f'<p class="lede">{escape(about.note)}</p>' if about.note else "",
        word=escape(word),
        headline=escape(rest.strip()[:1].upper() + rest.strip()[1:]),
        tiles=_tiles(audit),
        findings="\n".join(_finding(f) for f in audit.verdict.findings),
        cautions="".join(f"<li>{escape(c)}</li>" for c in audit.verdict.cautions),
        diagram=diagram(),
        agreement_figure=_figure(
            figures.agreement_figure(audit),
            "How many texts have which agreement. The line is the mean over texts, the band around "
            "it its interval; a dashed line, if there is one, is the most that ties allow.",
        ),
        agreement=tables.agreement_table(audit) + tables.overlap_table(audit),
        between=_between(audit),
        states=tables.states_table(audit),
        spread_figure=_figure(
            figures.spread_figure(audit),
            "Spread of attention and of each importance: means with their intervals.",
        ),
        density=_density(audit),
        erasure=_erasure(audit),
        other_weights=_other_weights(audit),
        controls=_controls(audit),
        examples=_examples(audit, about),
        exclusions=tables.exclusions_table(audit),
        left_out=f"<p>Before the audit: {escape(about.left_out)}.</p>" if about.left_out else "",
        everything=tables.everything_table(audit),
        settings=tables.settings_table(audit),
        level=percent(float(audit.settings.get("level", 0.95))).replace(".0", ""),
        resamples=f"{int(audit.settings.get('resamples', 1000)):,}",
        origin=escape(about.origin),
    )


def write_page(path: str | Path, audit: Audit, facts: Facts | None = None) -> Path:
    """Write the page and return where it is; the folder is made if need be."""
    page = audit_page(audit, facts)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _tiles(audit: Audit) -> str:
    tiles = [
        (
            "texts audited",
            f"{len(audit.kept):,}",
            f"of {audit.texts:,}; {len(audit.excluded):,} excluded",
        ),
        ("the model is right on", tables.quality_words(audit), "of the labelled texts"),
    ]
    for key, estimate in audit.estimates.items():
        if key.name == "tau_b" and key.subject == "attention" and key.reference.endswith(":inputs"):
            tiles.append(
                (
                    f"agreement with {words.method(key.reference)}",
                    words.number(estimate.mean),
                    "1 if both put all words in the same order, 0 if they have nothing to do with "
                    f"each other; {words.interval(estimate).partition(' ')[2]}"
                    if estimate.count
                    else "not defined: there is no order to compare",
                )
            )
    for key, estimate in audit.estimates.items():
        if key.name == "far" and estimate.count:
            tiles.append(
                (
                    "texts for which very different weights say the same",
                    percent(estimate.mean),
                    words.subject(key.subject),
                )
            )
    return "".join(
        f'<div class="tile"><p class="what">{escape(what)}</p><p class="number">{escape(number)}'
        f'</p><p class="beside">{escape(beside)}</p></div>'
        for what, number, beside in tiles
    )


def _finding(finding: Finding) -> str:
    kind, speaks = {
        True: ("for", "speaks for it"),
        False: ("against", "speaks against it"),
        None: ("neither", "decides nothing by itself"),
    }[finding.supports]
    evidence = "".join(f"<li>{escape(words.plain(item))}</li>" for item in finding.evidence)
    return (
        f'<div class="finding {kind}"><h3>{escape(finding.question)}</h3>'
        f'<p><span class="answer">{escape(finding.answer.capitalize())}</span> '
        f"{escape(words.plain(finding.statement))} <span class=speaks>({speaks})</span></p>"
        f"<details open><summary>the evidence</summary><ul>{evidence}</ul></details>"
        f'<p class="caution"><b>What this does not show.</b> {escape(finding.caution)}</p></div>'
    )


def _figure(picture: str, caption: str) -> str:
    if not picture:
        return ""
    return f'<figure class="card">{picture}<figcaption>{caption}</figcaption></figure>'


def _between(audit: Audit) -> str:
    found = tables.between_table(audit)
    if not found:
        return ""
    return (
        "<h3>Do the measures of importance agree with each other?</h3><p>They are different ways "
        "to ask the same question. Where two of them disagree, attention cannot agree with both, "
        f"and a low agreement with one says less.</p>{found}"
    )


def _density(audit: Audit) -> str:
    share = audit.estimate("density").mean
    if share > 0.9995:
        return "Attention gives some weight to every word of a text."
    return (
        f"Attention gives any weight at all to {percent(share)} of the words of a text; the others "
        "have exactly none."
    )


def _erasure(audit: Audit) -> str:
    picture = figures.erasure_figure(audit)
    if not picture:
        return "<p>This was not tested.</p>"
    shares = ", ".join(f"{100 * q:g}" for q in audit.settings["fractions"])
    return (
        f"<p>The first {shares} % of words, by attention, by each importance, or in random order, "
        "are taken out and the model reads what is left; then they are kept and all others are "
        "taken out. Shown is how much the probability of the predicted class falls, as a mean over "
        "those shares. A good ranking has a large drop on the left and a small one on the right."
        "</p>"
        + _figure(
            picture, "Means with intervals. Attention means something if it beats random order."
        )
    )


def _other_weights(audit: Audit) -> str:
    parts = [
        _figure(
            figures.exchanges_figure(audit),
            "The same hidden states, other weights: shuffled among the words (the median of many "
            "shuffles), or the same for all words. 0 is no move at all, 1 one from certainty to "
            "certainty of the contrary.",
        ),
        _figure(
            figures.adversarial_figure(audit),
            "Distance of the farthest weights that were found and leave the prediction almost as "
            "it is: 0 if they are attention itself, 0.69 if they have no word in common. Right of "
            "the dashed line we call them very different.",
        ),
        tables.other_weights_table(audit),
    ]
    return "\n".join(parts) if any(parts) else "<p>This was not tested.</p>"


def _controls(audit: Audit) -> str:
    if not audit.controls:
        return (
            "<p>No other model was trained, so this page cannot say how much attention differs "
            "between models that decide alike.</p>"
        )
    return (
        "<p>Other models, trained on the same data: with other random beginnings (seeds), with the "
        "same weight for all words (uniform), or told to decide as this one does and to attend "
        "elsewhere (adversarial). If such a model decides alike and attends farther away than "
        "another seed does, attention is not the one way to arrive at these decisions.</p>"
        + tables.controls_table(audit)
    )


def _examples(audit: Audit, about: Facts) -> str:
    if not audit.examples:
        return "<p>None were asked for.</p>"
    cards = "\n".join(example_card(example, about.labels) for example in audit.examples)
    return legend(audit.examples[0]) + cards
