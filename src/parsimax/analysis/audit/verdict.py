"""What the numbers mean, in words that say no more than the intervals do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .adversarial import Search
from .bootstrap import Estimate
from .measures import Measure
from .quality import Quality
from .trained import Comparison

FEW = 30  # texts below which an interval is not trusted
WEAK, STRONG = 0.3, 0.6  # of the agreement that ties allow
HARDLY = 0.05  # mean move of a prediction below which weights hardly matter
MOST, SOME = 0.5, 0.2  # of texts
USUAL = Search()  # with as many steps, of that size, as Jain & Wallace's

YES, NO, PARTLY, UNCLEAR = "yes", "no", "partly", "unclear"


@dataclass(frozen=True)
class Finding:
    """One question that was tested.

    Args:
        question: In plain words.
        answer: "yes", "no", "partly" or "unclear".
        statement: The answer in a sentence.
        evidence: The numbers it rests on, with intervals.
        caution: What it does not show.
        supports: Whether it speaks for reading attention as an explanation; None if for neither.
    """

    question: str
    answer: str
    statement: str
    evidence: tuple[str, ...]
    caution: str
    supports: bool | None


@dataclass(frozen=True)
class Verdict:
    """All findings, and a headline that follows from them."""

    headline: str
    findings: tuple[Finding, ...]
    cautions: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.headline]
        for finding in self.findings:
            lines.append(f"\n{finding.question} {finding.answer.capitalize()}. {finding.statement}")
            lines += [f"  - {item}" for item in finding.evidence]
            lines.append(f"  {finding.caution}")
        return "\n".join([*lines, "", *self.cautions])


def verdict(
    estimates: Mapping[Measure, Estimate],
    quality: Quality,
    controls: Sequence[Comparison],
    searches: Mapping[str, Search],
) -> Verdict:
    """Judge what was measured; questions that were not tested are left out.

    ``searches`` are those for adversarial attention, by the subject of their measures.
    """
    candidates = [
        _used(estimates),
        _ranks(estimates),
        _own_tokens(estimates),
        _removal(estimates),
        _unique(estimates, searches),
        _trained(controls),
    ]
    findings = tuple(finding for finding in candidates if finding is not None)
    cautions = [
        (
            "Importance measures are not the truth about a model either: they disagree with each "
            "other, and low agreement with one of them does not prove attention wrong."
        ),
        (
            "These are tests of faithfulness to this model on these texts. They do not ask whether "
            "a person finds the weights plausible, and do not carry over to other models or data."
        ),
        *_short_searches(searches),
        *quality.notes,
    ]
    return Verdict(_headline(findings), findings, tuple(cautions))


def _headline(findings: Sequence[Finding]) -> str:
    clear = [finding for finding in findings if finding.supports is not None]
    good = sum(bool(finding.supports) for finding in clear)
    if not clear:
        return (
            "Undecided: none of the tests gives a clear answer on these texts, for or against "
            "reading attention as an explanation."
        )
    if good == len(clear):
        return (
            "Supported as far as tested: every test with a clear answer speaks for reading "
            f"attention as an indication of which tokens matter here ({good} of {len(findings)} "
            "tests); that is not a proof."
        )
    if good == 0:
        return (
            "Not supported: every test with a clear answer speaks against reading attention as an "
            f"explanation of this model's predictions ({len(clear)} of {len(findings)} tests)."
        )
    return (
        f"Mixed: tests with a clear answer are {len(clear)}, of which {good} for reading attention "
        f"as an explanation and {len(clear) - good} against. It should not be shown as one without "
        "the evidence below."
    )


def _grade(estimate: Estimate) -> str:
    """Words for an interval of agreement."""
    levels = (
        ("weak", -2.0, WEAK),
        ("moderate", WEAK, STRONG),
        ("strong", STRONG, 2.0),
    )
    inside = [name for name, a, b in levels if estimate.low < b and estimate.high >= a]
    return inside[0] if len(inside) == 1 else f"{inside[0]} to {inside[-1]}"


def _enough(*estimates: Estimate) -> bool:
    return all(estimate.count >= FEW for estimate in estimates)


def _say(measure: Measure, estimate: Estimate, words: str) -> str:
    return f"{words}: {estimate} over {estimate.count} texts ({measure})"


def _ranks(estimates: Mapping[Measure, Estimate]) -> Finding | None:
    found = {
        m: e
        for m, e in estimates.items()
        if m.name == "tau_b_of_ceiling"
        and m.subject == "attention"
        and m.reference.endswith(":inputs")
        and e.count
    }
    if not found:
        return None
    evidence = []
    for measure, share in found.items():
        plain = Measure("tau_b", "attention", measure.reference)
        ceiling = Measure("tau_b_ceiling", "attention", measure.reference)
        evidence.append(
            f"{measure.reference}: τ-b {estimates[plain]}, at most {estimates[ceiling].mean:.3f} "
            f"under these ties; that is {share} of what is reachable, over {share.count} texts"
        )
    question = "Does attention rank tokens as measures of importance do?"
    caution = (
        "Agreement is about the order of all tokens, and most tokens of a text matter little "
        "either way; disagreement may be about those."
    )
    if not _enough(*found.values()):
        few = min(e.count for e in found.values())
        return Finding(
            question, UNCLEAR, f"Only {few} texts count.", tuple(evidence), caution, None
        )
    grades = {measure.reference: _grade(e) for measure, e in found.items()}
    words = "; ".join(f"{grade} with {name}" for name, grade in grades.items())
    kinds = set(grades.values())
    if kinds == {"strong"}:
        answer, supports = YES, True
    elif kinds == {"weak"}:
        answer, supports = NO, False
    else:
        answer, supports = PARTLY, None
    return Finding(question, answer, f"Agreement is {words}.", tuple(evidence), caution, supports)


def _own_tokens(estimates: Mapping[Measure, Estimate]) -> Finding | None:
    subject = next((m.subject for m in estimates if m.name == "own_share"), None)
    if subject is None:
        return None
    share = Measure("own_share", subject)
    entropy = Measure("entropy", subject)
    first = Measure("own_first", subject)
    evidence = [
        _say(share, estimates[share], "share of a state's influence that its own token has"),
        _say(first, estimates[first], "share of states whose own token has the most influence"),
        _say(entropy, estimates[entropy], "normalised entropy of the influence on a state"),
    ]
    for measure, estimate in estimates.items():
        if measure.name == "tau_b_difference" and estimate.count:
            text = f"τ-b with {measure.subject} less τ-b with {measure.reference}"
            evidence.append(_say(measure, estimate, text))
    question = (
        "Is a hidden state mostly about its own token, so that weight on one is weight on it?"
    )
    caution = (
        "Attention weighs hidden states. If each mixes many tokens, a weight cannot be read as the "
        "weight of one token, however well it describes the state."
    )
    value = estimates[share]
    if not _enough(value):
        return Finding(
            question, UNCLEAR, f"Only {value.count} texts count.", tuple(evidence), caution, None
        )
    if value.low > MOST:
        answer, supports = YES, True
        statement = "Most of the influence on a state comes from the token it stands over."
    elif value.high < MOST and estimates[first].high < MOST:
        answer, supports = NO, False
        statement = (
            "Most of the influence on a state comes from other tokens, and for most states another "
            "token than their own has the largest."
        )
    elif value.high < MOST:
        answer, supports = PARTLY, None
        statement = (
            "Its own token is often the one with most influence on a state, but all others "
            "together have more."
        )
    else:
        answer, supports = UNCLEAR, None
        statement = "About half of the influence on a state comes from its own token."
    return Finding(question, answer, statement, tuple(evidence), caution, supports)


def _removal(estimates: Mapping[Measure, Estimate]) -> Finding | None:
    removed = Measure("comprehensiveness_difference", "attention", "random")
    alone = Measure("sufficiency_difference", "attention", "random")
    if removed not in estimates or not estimates[removed].count:
        return None
    evidence = []
    for measure, estimate in estimates.items():
        if measure.name in ("comprehensiveness", "sufficiency"):
            evidence.append(_say(measure, estimate, f"{measure.name} of {measure.subject}"))
    more, less = estimates[removed], estimates[alone]
    evidence.append(_say(removed, more, "attention less random, comprehensiveness"))
    evidence.append(_say(alone, less, "attention less random, sufficiency"))
    question = "Do predictions change more when attended tokens go than when random ones go?"
    caution = (
        "A text with words missing is not one the model was trained on, and part of what is seen "
        "may be due to that; it is the same for random words."
    )
    if not _enough(more, less):
        answer, supports, statement = UNCLEAR, None, f"Only {more.count} texts count."
    elif more.low > 0 and less.high < 0:
        answer, supports = YES, True
        statement = (
            "Removing the tokens with most attention moves the prediction more than removing "
            "random ones, and keeping only those preserves it better."
        )
    elif more.high <= 0 and less.low >= 0:
        answer, supports = NO, False
        statement = "Tokens with most attention matter no more than random ones."
    elif more.low > 0 or less.high < 0:
        answer, supports = PARTLY, None
        statement = "One of the two, removing or keeping, tells attended tokens from random ones."
    else:
        answer, supports, statement = UNCLEAR, None, "The intervals contain no difference."
    return Finding(question, answer, statement, tuple(evidence), caution, supports)


def _used(estimates: Mapping[Measure, Estimate]) -> Finding | None:
    moved = Measure("prediction_moved", "uniform attention")
    flips = Measure("decision_changed", "uniform attention")
    shuffled = Measure("prediction_moved", "permuted attention")
    if moved not in estimates:
        return None
    evidence = (
        _say(moved, estimates[moved], "move of the prediction under uniform weights"),
        _say(flips, estimates[flips], "share of decisions that uniform weights change"),
        _say(shuffled, estimates[shuffled], "median move under permuted weights"),
    )
    question = "Do predictions depend on the weights at all?"
    caution = (
        "Where they do not, weights explain nothing and other weights are easily found; where "
        "they do, it does not yet follow that the weights show what matters."
    )
    value, other = estimates[moved], estimates[shuffled]
    if not _enough(value):
        return Finding(
            question, UNCLEAR, f"Only {value.count} texts count.", evidence, caution, None
        )
    if value.high < HARDLY and other.high < HARDLY:
        statement = "Neither uniform nor permuted weights move predictions much."
        return Finding(question, NO, statement, evidence, caution, False)
    if value.low > HARDLY or other.low > HARDLY:
        statement = "Other weights on the same hidden states move predictions."
        return Finding(question, YES, statement, evidence, caution, None)
    statement = "The effect is close to the smallest that we would call one."
    return Finding(question, UNCLEAR, statement, evidence, caution, None)


def _is_short(search: Search) -> bool:
    """Whether logits cannot go as far as in the usual search: Adam moves them by lr a step."""
    return search.steps * search.lr < USUAL.steps * USUAL.lr * (1 - 1e-9)


def _effort(search: Search) -> str:
    return f"{search.count} × {search.steps} steps of {search.lr:g}"


def _short_searches(searches: Mapping[str, Search]) -> list[str]:
    found = {_effort(search): None for search in searches.values() if _is_short(search)}
    if not found:
        return []
    return [
        "The search for other weights was short here: "
        + "; ".join(found)
        + f" a text, and {_effort(USUAL)} are usual. A longer one may find weights farther "
        "away."
    ]


def _unique(
    estimates: Mapping[Measure, Estimate], searches: Mapping[str, Search]
) -> Finding | None:
    far = {m: e for m, e in estimates.items() if m.name == "far" and e.count}
    if not far:
        return None
    evidence = []
    for measure, estimate in far.items():
        jsd = Measure("jsd", measure.subject)
        evidence.append(
            f"{measure.subject}: divergence {estimates[jsd]} nats of at most 0.693; beyond half of "
            f"that for a share {estimate} of {estimate.count} texts"
        )
        if measure.subject in searches:
            evidence[-1] += f"; looked for in {_effort(searches[measure.subject])} a text"
        failed = estimates.get(Measure("mixed", measure.subject))
        if failed is not None and failed.count:
            evidence[-1] += (
                f"; for a share {failed} of texts all that was found moved the prediction too far, "
                "and was mixed with attention itself"
            )
    question = "Could very different weights have led to the same prediction?"
    caution = (
        "Such weights are found text by text, and no trained model produces them: they show that "
        "attention is not the only account of a prediction, not that it is a wrong one."
    )
    first, value = next(iter(far.items()))
    search = searches.get(first.subject)
    mixed = estimates.get(Measure("mixed", first.subject))
    limit = "" if search is None else f" that move the prediction by at most {search.epsilon:g}"
    if not _enough(value):
        return Finding(
            question, UNCLEAR, f"Only {value.count} texts count.", tuple(evidence), caution, None
        )
    if value.low > MOST:
        answer, supports = YES, False
        statement = f"For most texts there are very different weights{limit}."
    elif value.high < SOME:
        # what a search does not find may be there: this never speaks for attention
        supports = None
        statement = f"For few texts were very different weights found{limit}"
        if search is not None and _is_short(search):
            answer = UNCLEAR
            statement += f", but the search was short ({_effort(search)} a text)."
        elif mixed is not None and mixed.count and mixed.high > SOME:
            answer = UNCLEAR
            statement += ", but for many texts the search itself failed."
        else:
            answer = NO
            statement += "; that others exist is not excluded."
    else:
        answer, supports = PARTLY, None
        statement = f"For some texts there are very different weights{limit}."
        if (search is not None and _is_short(search)) or (
            mixed is not None and mixed.count and mixed.high > SOME
        ):
            statement += " The search was short or often failed: there may be more of them."
    return Finding(question, answer, statement, tuple(evidence), caution, supports)


def _trained(controls: Sequence[Comparison]) -> Finding | None:
    if not controls:
        return None
    evidence = tuple(
        f"{c.name}: attention {c.jsd} nats apart, predictions {c.tvd} apart, same decision for a "
        f"share {c.agreement} of {c.agreement.count} texts; accuracy {c.accuracy[0]:.3f} and "
        f"{c.accuracy[1]:.3f}"
        for c in controls
    )
    seeds = [c for c in controls if c.kind == "seed"]
    rivals = [c for c in controls if c.kind == "adversarial"]
    question = "Can a model be trained that decides alike and attends elsewhere?"
    caution = "Training was not exhaustive: a rival that was not found may exist."
    if not rivals:
        statement = "No model was trained to do so; the other controls are shown."
        return Finding(question, UNCLEAR, statement, evidence, caution, None)
    noise = max((c.jsd.high for c in seeds), default=None)
    alike = max((c.tvd.high for c in seeds), default=HARDLY)
    if noise is None:
        statement = "Without models of other seeds, what distance is usual is not known."
        return Finding(question, UNCLEAR, statement, evidence, caution, None)
    if any(c.jsd.low > noise and c.tvd.high <= max(alike, HARDLY) for c in rivals):
        statement = (
            "One predicts as closely as another seed does, and its attention is farther away than "
            "that of any other seed."
        )
        return Finding(question, YES, statement, evidence, caution, False)
    if all(c.jsd.high <= noise or c.tvd.low > max(alike, HARDLY) for c in rivals):
        statement = "Those that attend farther away than other seeds do also predict differently."
        return Finding(question, NO, statement, evidence, caution, True)
    statement = "The intervals do not separate these models from other seeds."
    return Finding(question, UNCLEAR, statement, evidence, caution, None)
