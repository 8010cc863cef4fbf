"""The tables of the page."""

from __future__ import annotations

import json
from collections import Counter
from html import escape

from parsimax.analysis.audit import Audit, Measure
from parsimax.viz.canvas import percent
from parsimax.viz.table import table

from .words import interval, measure, method, number, subject


def agreement_table(audit: Audit) -> str:
    """One row an importance: τ-b beside the most that ties allow."""
    rows = []
    for reference in _references(audit):
        tau, ceiling, share, inside = (
            audit.estimate(name, "attention", reference)
            for name in ("tau_b", "tau_b_ceiling", "tau_b_of_ceiling", "tau_b_support")
        )
        rows.append(
            (
                escape(subject(reference)),
                interval(tau),
                number(ceiling.mean),
                interval(share),
                interval(inside),
                f"{tau.count:,}",
            )
        )
    head = ("importance", "agreement, τ-b", "most possible", "share of that",
            "among attended words", "texts")  # fmt: skip
    return table(head, rows) if rows else "<p>This was not measured.</p>"


def overlap_table(audit: Audit) -> str:
    """One row an importance: how many of the first words are the same."""
    names = [name for name in _names(audit) if name.endswith("_overlap")]
    if not names:
        return ""
    rows = [
        (
            escape(subject(reference)),
            *(interval(audit.estimate(name, "attention", reference)) for name in names),
        )
        for reference in _references(audit)
    ]
    return table(("importance", *(measure(name) for name in names)), rows)


def between_table(audit: Audit) -> str:
    """Agreement of the measures of importance with each other."""
    rows = [
        (escape(subject(m.subject)), escape(subject(m.reference)), interval(e), f"{e.count:,}")
        for m, e in audit.estimates.items()
        if m.name == "tau_b" and m.subject != "attention"
    ]
    return table(("importance", "and", "agreement, τ-b", "texts"), rows) if rows else ""


def states_table(audit: Audit) -> str:
    """How far hidden states are about their own words."""
    wanted = ("own_share", "own_first", "tau_b_difference")
    rows = []
    for m, e in audit.estimates.items():
        if m.name in wanted or (m.name == "entropy" and m.subject.endswith("inputs-to-hidden")):
            name = measure(m.name)
            if m.name == "tau_b_difference":
                name = f"{method(m.subject)}: {name}"
            elif m.name == "entropy":
                name = "spread of a hidden state over words"
            rows.append((escape(name), interval(e), f"{e.count:,}"))
    return table(("", "mean", "texts"), rows) if rows else "<p>This was not measured.</p>"


def other_weights_table(audit: Audit) -> str:
    """Permuted, uniform and adversarial weights."""
    names = ("prediction_moved", "decision_changed", "jsd", "far", "mixed")
    subjects = dict.fromkeys(m.subject for m in audit.estimates if m.name in names)
    rows = []
    for name in subjects:
        cells = [audit.estimates.get(Measure(each, name)) for each in names]
        rows.append((escape(subject(name)), *("" if e is None else interval(e) for e in cells)))
    head = ("weights", *(measure(name) for name in names))
    return table(head, rows) if rows else ""


def controls_table(audit: Audit) -> str:
    """Other models beside the audited one."""
    rows = [
        (
            escape(c.name),
            interval(c.jsd),
            interval(c.tvd, 3),
            interval(c.agreement),
            f"{number(c.accuracy[1], 3)} ({number(c.accuracy[0], 3)})",
        )
        for c in audit.controls
    ]
    head = ("model", "distance of attention", "distance of predictions", "same decision",
            "accuracy (of the audited model)")  # fmt: skip
    return table(head, rows)


def exclusions_table(audit: Audit) -> str:
    """Texts that take no part at all, and numbers that are undefined, with reasons."""
    rows = [
        ("whole text", escape(reason), f"{count:,}")
        for reason, count in Counter(e.reason for e in audit.excluded).items()
    ]
    for key, estimate in audit.estimates.items():
        rows += [
            (escape(_what(key)), escape(reason), f"{count:,}")
            for reason, count in estimate.excluded.items()
        ]
    if not rows:
        return (
            f"<p>Nothing: all {audit.texts:,} texts took part, and every number is defined for "
            "each of them.</p>"
        )
    return table(("what", "why", "texts"), rows, tall=len(rows) > 12)


def everything_table(audit: Audit) -> str:
    """Every measure."""
    rows = [
        (
            escape(measure(m.name)),
            escape(subject(m.subject)),
            escape(subject(m.reference)),
            interval(e, 3),
            number(e.std, 3),
            number(e.median, 3),
            f"{e.count:,}",
        )
        for m, e in audit.estimates.items()
    ]
    head = ("measure", "of", "beside", "mean with interval", "standard deviation", "median",
            "texts")  # fmt: skip
    return table(head, rows, tall=True)


def settings_table(audit: Audit) -> str:
    """How it was measured."""
    rows = []
    for name, value in audit.settings.items():
        if isinstance(value, dict):
            rows += [
                (escape(f"{name}: {subject(str(k))}"), f"<code>{escape(_short(v))}</code>")
                for k, v in value.items()
            ]
        else:
            rows.append((escape(name), f"<code>{escape(_short(value))}</code>"))
    spent = sum(audit.seconds.values())
    rows.append(("time", f"{spent:.1f} s"))
    return table(("setting", "value"), rows, tall=True)


def quality_words(audit: Audit) -> str:
    """How often the model is right, in a phrase."""
    accuracy = audit.quality.accuracy
    return "unknown: no labels" if accuracy != accuracy else percent(accuracy)


def _references(audit: Audit) -> list[str]:
    """The importances that attention was compared with."""
    return [m.reference for m in audit.estimates if m[:2] == ("tau_b", "attention")]


def _names(audit: Audit) -> list[str]:
    return list(dict.fromkeys(m.name for m in audit.estimates))


def _what(key: Measure) -> str:
    of = f" of {subject(key.subject)}"
    beside = f" and {subject(key.reference)}" if key.reference else ""
    return measure(key.name) + of + beside


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 160 else text[:157] + "..."
