"""One page about the heads of one or several models."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import parsimax as px
from parsimax.analysis.heads import Agreement, HeadReport, head_rows
from parsimax.analysis.heads.alphas import Trajectory
from parsimax.viz.canvas import percent

from .alphas import alphas_figure, trajectories_figure
from .cards import example_cards
from .density import densities_figure, layers_figure
from .diversity import diversity_figure
from .tables import (
    agreement_table,
    glance_table,
    heads_table,
    interrogation_table,
    merging_table,
    positional_table,
)
from .titles import title

PAGE_NAME = "heads.html"


def heads_page(
    reports: Sequence[HeadReport], agreements: Sequence[Agreement] = (), *, data: str = ""
) -> str:
    """Return the page as HTML that fetches nothing.

    Args:
        reports: of each model.
        agreements: between models of the same vocabulary, by their place in ``reports``.
        data: what the models read, in words.
    """
    if not reports:
        raise ValueError("reports: expected at least one, got none")
    files = resources.files("parsimax.viz")
    own = resources.files("parsimax.viz.heads")
    page = Template(own.joinpath("page.html").read_text(encoding="utf-8"))
    style = files.joinpath("page.css").read_text(encoding="utf-8")
    style += files.joinpath("report.css").read_text(encoding="utf-8")
    style += own.joinpath("page.css").read_text(encoding="utf-8")
    return page.substitute(
        style=style,
        version=escape(px.__version__),
        names=escape(", ".join(report.name for report in reports)),
        data=escape(data or "the sentences given"),
        sentences=f"{max(report.sentences for report in reports):,}",
        glance=glance_table(reports),
        summary=_summary(reports),
        alphas=_alphas(reports),
        densities=densities_figure(reports),
        layers=layers_figure(reports),
        diversity=diversity_figure(reports),
        excluded=_excluded(reports),
        positional=positional_table(reports),
        positional_cards=_cards(reports, ("before", "same", "after"), "positional"),
        merging=merging_table(reports),
        merging_cards=_cards(reports, ("merging",), "merging"),
        interrogation=interrogation_table(reports),
        interrogation_cards=_cards(reports, ("question", "statement"), "asking"),
        interrogatives=escape(", ".join(reports[0].interrogatives)),
        contrast_cards=_cards(reports, ("denser", "sparser"), "contrast"),
        agreement=_agreement(reports, agreements),
        heads=heads_table([row for report in reports for row in head_rows(report)]),
    )


def write_page(
    path: str | Path,
    reports: Sequence[HeadReport],
    agreements: Sequence[Agreement] = (),
    *,
    data: str = "",
) -> Path:
    """Write the page and return where it is; the folder is made if need be."""
    page = heads_page(reports, agreements, data=data)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8")
    return target


def _summary(reports: Sequence[HeadReport]) -> str:
    """What was found, one paragraph a model."""
    paragraphs = []
    for report in reports:
        parts = []
        for module in report.modules.values():
            low, high = module.density.interval()
            parts.append(
                f"{percent(module.density.overall())} ({100 * low:.1f} to {100 * high:.1f}) in "
                f"{title(module.module)}"
            )
        sure = [
            found
            for module in report.modules.values()
            if module.positional is not None
            for found in module.positional.heads()
        ]
        roles = "no head looks at one fixed offset with a confidence of 90 % or more"
        if sure:
            listed = "; ".join(f"{h} at {o:+d} ({percent(c)})" for h, o, c in sure[:6])
            more = "" if len(sure) <= 6 else f"; and {len(sure) - 6} more"
            count = "1 head looks" if len(sure) == 1 else f"{len(sure)} heads look"
            roles = f"{count} at one fixed offset: {listed}{more}"
        paragraphs.append(
            f"<p><b>{escape(report.name)}</b>: of the tokens it may see, a query gives weight to "
            f"{escape(', '.join(parts))}. {escape(roles[0].upper() + roles[1:])}.</p>"
        )
    return "\n".join(paragraphs)


def _alphas(reports: Sequence[HeadReport]) -> str:
    """Figures 2 and 3 of each model that learned its alphas."""
    parts: list[str] = []
    for number, report in enumerate(reports):
        final = {m: r.alphas for m, r in report.modules.items() if r.alphas is not None}
        if not final:
            continue
        heading = f"<h3>{escape(report.name)}</h3>" if len(reports) > 1 else ""
        parts.append(heading)
        way: dict[str, Trajectory] = {m: t for m, t in report.trajectories.items() if m in final}
        if way:
            parts.append(
                _figure(
                    trajectories_figure(way, name=f"trajectories-{number}"),
                    "α of every head at each validation, in the colour of its layer "
                    "(Figure 2 of the paper shows some of the heads).",
                )
            )
        parts.append(
            _figure(
                alphas_figure(final, name=f"alphas-{number}"),
                "How many heads have which α in the model that was analysed (Figure 3).",
            )
        )
    return "\n".join(parts) or "<p>No model here learned its α.</p>"


def _figure(picture: str, caption: str) -> str:
    return f'<figure class="card">{picture}<figcaption>{caption}</figcaption></figure>'


def _cards(reports: Sequence[HeadReport], kinds: tuple[str, ...], name: str) -> str:
    cards = example_cards(reports, kinds, name=name)
    return cards or "<p>No sentence of 4 to 16 tokens shows it.</p>"


def _excluded(reports: Sequence[HeadReport]) -> str:
    """Queries without any weight, which no mean includes."""
    found: list[str] = []
    for report in reports:
        for module in report.modules.values():
            rows: Any = int(module.density.excluded.sum())
            if rows:
                found.append(f"{report.name}, {module.module}: {rows:,}")
    if not found:
        return "<p>Every query of every head had some weight; none was left out.</p>"
    return f"<p>Queries of a head without any weight, left out: {escape('; '.join(found))}.</p>"


def _agreement(reports: Sequence[HeadReport], agreements: Sequence[Agreement]) -> str:
    if not agreements:
        return ""
    return (
        "<section><h2>Do other seeds learn the same heads?</h2>"
        "<p>The numbering of heads is an accident, so each head is first matched with one of the "
        "same layer of the other model, on half of the sentences; the likeness is that on the "
        "other half. It is 1 where two heads always look at the same, 0 where they have nothing in "
        "common. Beside it stands the likeness of any two heads of a layer, matched or not.</p>"
        f"{agreement_table(reports, agreements)}</section>"
    )
