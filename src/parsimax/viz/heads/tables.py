"""The tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from parsimax.analysis.heads import Agreement, Head, HeadReport
from parsimax.viz.canvas import percent
from parsimax.viz.table import table

from .titles import title

_POSITIONS = ((-1, "before (−1)"), (0, "itself (0)"), (1, "after (+1)"))
_BEST = 3


def glance_table(reports: Sequence[HeadReport]) -> str:
    """One row a model and module."""
    rows = []
    for report in reports:
        for module in report.modules.values():
            diversity = module.diversity.diversity.nanmean().item()
            alphas = module.alphas
            rows.append(
                (
                    escape(report.name),
                    escape(title(module.module)),
                    f"{module.layers} × {module.heads}",
                    f"{module.sentences:,}",
                    percent(module.density.overall()),
                    f"{module.density.attended.nanmean().item():.1f}",
                    number(diversity),
                    "" if alphas is None else f"{alphas.min():.2f} … {alphas.max():.2f}",
                )
            )
    head = ("model", "attention", "layers × heads", "sentences", "density", "tokens with weight",
            "diversity", "learned α")  # fmt: skip
    return table(head, rows)


def positional_table(reports: Sequence[HeadReport]) -> str:
    """The surest heads at each neighbouring offset."""
    rows = []
    for report in reports:
        for module in report.modules.values():
            found = module.positional
            if found is None:
                continue
            for offset, words in _POSITIONS:
                if offset not in found.offsets:
                    continue
                best = found.ranking(offset, _BEST)
                sure = sum(value >= 0.9 for _, value in found.ranking(offset))
                cell = _listed(report, best) or "no query sees one"
                rows.append(
                    (escape(report.name), escape(title(module.module)), words, cell, str(sure))
                )
    head = ("model", "attention", "token", "surest heads, mean weight there", "heads ≥ 90 %")
    return table(head, rows) if rows else "<p>No model here has self-attention.</p>"


def merging_table(reports: Sequence[HeadReport]) -> str:
    """The heads that look most within words."""
    rows = []
    for report in reports:
        for module in report.modules.values():
            found = module.merging
            if found is None or not found.words:
                continue
            within = max(found.within.flatten().tolist())
            rows.append(
                (
                    escape(report.name),
                    escape(title(module.module)),
                    f"{found.split:,} of {found.words:,}",
                    _listed(report, found.ranking(_BEST)),
                    _listed(report, found.ranking_split(_BEST)) or "no such word",
                    percent(within),
                )
            )
    head = ("model", "attention", "words of several pieces", "score of all words",
            "score of these words alone", "most weight within a token’s own word")  # fmt: skip
    return table(head, rows) if rows else "<p>No words were found in the tokens.</p>"


def interrogation_table(reports: Sequence[HeadReport]) -> str:
    """The heads that look most from interrogative words to question marks."""
    rows = []
    for report in reports:
        for module in report.modules.values():
            found = module.interrogation
            if found is None or not found.questions.queries:
                continue
            rows.append(
                (
                    escape(report.name),
                    escape(title(module.module)),
                    f"{found.questions.queries:,}",
                    _listed(report, found.ranking(_BEST)),
                    percent(found.questions.uniform),
                    f"{found.statements.queries:,}",
                    _of_statements(found.statements.scores, found.ranking(_BEST)),
                )
            )
    head = ("model", "attention", "interrogative tokens in questions", "weight on “?”",
            "even attention", "in statements", "same heads, weight on the last token")  # fmt: skip
    nothing = "<p>There is no question with an interrogative word before its question mark.</p>"
    return table(head, rows) if rows else nothing


def agreement_table(reports: Sequence[HeadReport], agreements: Sequence[Agreement]) -> str:
    """One row a pair of models and module."""
    rows = []
    for each in agreements:
        best = sorted(each.pairs, key=lambda pair: -pair[2] if pair[2] == pair[2] else 1.0)[:_BEST]
        listed = "<br>".join(f"{_place(a)} ~ {_place(b)}: {number(v)}" for a, b, v in best)
        rows.append(
            (
                f"{escape(reports[each.first].name)} and {escape(reports[each.second].name)}",
                escape(title(each.module)),
                number(each.matched),
                number(each.any_pair),
                f"{each.sentences:,}" + ("" if each.held_out else " (not held out)"),
                listed,
            )
        )
    head = ("models", "attention", "matched heads", "any two heads", "sentences", "most alike")
    return table(head, rows)


def heads_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every head, as in the CSV file."""
    names = {
        "model": "model", "module": "module", "layer": "layer", "head": "head", "alpha": "α",
        "density": "density", "attended": "tokens", "best_offset": "offset",
        "best_confidence": "there", "merging": "merging", "merging_split": "split words",
        "within_word": "own word", "question_mark": "“?”",
    }  # fmt: skip
    body = [tuple(_cell(name, row[name]) for name in names) for row in rows]
    return table(tuple(names.values()), body, tall=True)


def number(value: float) -> str:
    """Three digits, or a dash for what is not defined."""
    return "–" if value != value else f"{value:.3f}"


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "best_offset":
        return f"{value:+d}" if value else "0"
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))


def _place(head: Head) -> str:
    return f"layer {head.layer + 1}, head {head.head + 1}"


def _listed(report: HeadReport, ranked: Sequence[tuple[Head, float]]) -> str:
    parts = []
    for head, value in ranked:
        alphas = report.modules[head.module].alphas
        alpha = "" if alphas is None else f" (α {alphas[head.layer, head.head]:.2f})"
        parts.append(f"{_place(head)}{alpha}: {percent(value)}")
    return "<br>".join(parts)


def _of_statements(scores: Any, ranked: Sequence[tuple[Head, float]]) -> str:
    values = [scores[head.layer, head.head].item() for head, _ in ranked]
    return "<br>".join("–" if value != value else percent(value) for value in values)
