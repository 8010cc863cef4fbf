"""The verdict follows from intervals: it changes where they cross a line, and only there."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from parsimax.analysis.audit.adversarial import Search
from parsimax.analysis.audit.bootstrap import Estimate
from parsimax.analysis.audit.measures import Measure
from parsimax.analysis.audit.quality import Quality, quality
from parsimax.analysis.audit.trained import Comparison
from parsimax.analysis.audit.verdict import verdict

GOOD = Quality(100, 0.8, 0.9, (50, 50), ())


def estimate(low, high, count=100):
    return Estimate((low + high) / 2, low, high, 0.1, (low + high) / 2, count)


def judge(measures, controls=(), searches=None):
    return verdict(measures, GOOD, controls, searches or {"adversarial attention": Search()})


def ranks(low, high, count=100):
    names = ("tau_b", "tau_b_ceiling", "tau_b_of_ceiling")
    return {
        Measure(n, "attention", "gradient_norm:inputs"): estimate(low, high, count) for n in names
    }


@pytest.mark.parametrize(
    ("low", "high", "answer", "word", "supports"),
    [
        (0.7, 0.8, "yes", "strong with", True),
        (0.1, 0.2, "no", "weak with", False),
        (-0.3, -0.2, "no", "weak with", False),
        (0.4, 0.5, "partly", "moderate with", None),
        (0.25, 0.35, "partly", "weak to moderate with", None),
        (0.1, 0.9, "partly", "weak to strong with", None),
    ],
)
def test_agreement(low, high, answer, word, supports):
    (finding,) = judge(ranks(low, high)).findings
    assert (finding.answer, finding.supports) == (answer, supports)
    assert word in finding.statement


def test_few_texts_decide_nothing():
    found = judge(ranks(0.7, 0.8, count=10))
    assert found.findings[0].answer == "unclear"
    assert "10 texts" in found.findings[0].statement
    assert found.headline.startswith("Undecided")


def test_headlines():
    far = {Measure(n, "adversarial attention"): estimate(0.6, 0.65) for n in ("far", "jsd")}
    assert "that is not a proof" in judge(ranks(0.7, 0.8)).headline
    assert judge(ranks(0.1, 0.2)).headline.startswith("Not supported")
    mixed = judge({**ranks(0.7, 0.8), **far})
    assert mixed.headline.startswith("Mixed: tests with a clear answer are 2, of which 1 for")
    assert "at most 0.01" in str(mixed)
    assert judge({}).headline.startswith("Undecided")


@pytest.mark.parametrize(
    ("more", "less", "answer"),
    [
        ((0.1, 0.2), (-0.2, -0.1), "yes"),
        ((0.1, 0.2), (-0.1, 0.1), "partly"),
        ((-0.1, 0.1), (-0.1, 0.1), "unclear"),
        ((-0.2, -0.1), (0.1, 0.2), "no"),
    ],
)
def test_removal(more, less, answer):
    measures = {
        Measure("comprehensiveness_difference", "attention", "random"): estimate(*more),
        Measure("sufficiency_difference", "attention", "random"): estimate(*less),
    }
    assert judge(measures).findings[0].answer == answer


@pytest.mark.parametrize(
    ("uniform", "permuted", "answer", "supports"),
    [
        ((0.0, 0.01), (0.0, 0.01), "no", False),
        ((0.2, 0.3), (0.0, 0.01), "yes", None),
        ((0.04, 0.06), (0.0, 0.01), "unclear", None),
    ],
)
def test_whether_weights_are_used(uniform, permuted, answer, supports):
    measures = {
        Measure("prediction_moved", "uniform attention"): estimate(*uniform),
        Measure("decision_changed", "uniform attention"): estimate(0, 0.1),
        Measure("prediction_moved", "permuted attention"): estimate(*permuted),
    }
    (finding,) = judge(measures).findings
    assert (finding.answer, finding.supports) == (answer, supports)


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(0.6, 0.7, "yes"), (0.2, 0.3, "no"), (0.4, 0.6, "unclear")]
)
def test_own_tokens(low, high, answer):
    names = ("own_share", "own_first", "entropy")
    measures = {Measure(n, "gradient_norm:inputs-to-hidden"): estimate(low, high) for n in names}
    assert judge(measures).findings[0].answer == answer


def test_own_token_first_but_not_most():
    share, first, entropy = (
        Measure(n, "gradient_norm:inputs-to-hidden") for n in ("own_share", "own_first", "entropy")
    )
    measures = {share: estimate(0.2, 0.3), first: estimate(0.8, 0.9), entropy: estimate(0.8, 0.9)}
    assert judge(measures).findings[0].answer == "partly"


def control(kind, jsd, tvd):
    return Comparison(kind, kind, estimate(*jsd), estimate(*tvd), estimate(0.9, 1), (0.8, 0.8))


SEED = control("seed", (0.05, 0.1), (0.05, 0.08))


@pytest.mark.parametrize(
    ("controls", "answer", "supports"),
    [
        ([SEED, control("adversarial", (0.4, 0.5), (0.03, 0.06))], "yes", False),
        ([SEED, control("adversarial", (0.4, 0.5), (0.3, 0.4))], "no", True),
        ([SEED, control("adversarial", (0.08, 0.2), (0.03, 0.06))], "unclear", None),
        ([control("adversarial", (0.4, 0.5), (0.03, 0.06))], "unclear", None),
        ([SEED], "unclear", None),
    ],
)
def test_trained_controls(controls, answer, supports):
    (finding,) = judge({}, controls).findings
    assert (finding.answer, finding.supports) == (answer, supports)


def test_notes_about_the_model_are_cautions():
    found = verdict({}, dataclasses.replace(GOOD, notes=("Odd.",)), (), {})
    assert found.cautions[-1] == "Odd."


def test_quality():
    p = torch.tensor([0.9, 0.4, 0.4, 0.2, 0.7])
    found = quality(torch.stack([1 - p, p], 1), [1, 1, 0, 0, None])
    assert (found.texts, found.accuracy) == (4, 0.75)
    assert found.auc == pytest.approx(3.5 / 4)  # one of four pairs is a tie
    assert found.predicted == (3, 2)
    flat = quality(torch.tensor([[0.9, 0.1]] * 3), [None] * 3)
    assert math.isnan(flat.accuracy)
    assert len(flat.notes) == 2


@pytest.mark.parametrize(
    ("search", "mixed", "answer", "word"),
    [
        (Search(), (0.0, 0.1), "no", "that others exist is not excluded"),
        (Search(steps=0), (0.0, 0.1), "unclear", "the search was short (5 × 0 steps of 0.01"),
        (Search(steps=100), (0.0, 0.1), "unclear", "5 × 100 steps"),
        (Search(steps=50, lr=0.1), (0.0, 0.1), "no", "not excluded"),
        (Search(), (0.8, 0.9), "unclear", "the search itself failed"),
    ],
)
def test_what_was_not_found_is_no_support(search, mixed, answer, word):
    subject = "adversarial attention"
    measures = {Measure(n, subject): estimate(0.0, 0.1) for n in ("far", "jsd")}
    measures[Measure("mixed", subject)] = estimate(*mixed)
    found = judge(measures, searches={subject: search})
    (finding,) = found.findings
    assert (finding.answer, finding.supports) == (answer, None)
    assert word in finding.statement
    assert f"looked for in 5 × {search.steps} steps" in finding.evidence[0]
    assert "was mixed with attention itself" in finding.evidence[0]
    assert found.headline.startswith("Undecided")
    some = {m: e if m.name == "mixed" else estimate(0.1, 0.4) for m, e in measures.items()}
    (partly,) = judge(some, searches={subject: search}).findings
    assert ("there may be more of them" in partly.statement) == (answer == "unclear")
    short = any("was short here" in text for text in found.cautions)
    assert short == (search.steps in (0, 100))
