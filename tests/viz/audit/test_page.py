"""The page of an audit: fetches nothing, says what was measured, shows every text word by word."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from tests.analysis.audit.models import model, texts
from tests.viz.page import Page

from parsimax.analysis.audit import (
    Audit,
    Comparison,
    Estimate,
    Search,
    Text,
    audit,
    uniform_attention,
)
from parsimax.viz.audit import Facts, audit_page, write_page
from parsimax.viz.audit.words import interval, number


def audited(mapping: str = "softmax", **options: object) -> Audit:
    torch.manual_seed(0)
    given = texts([7, 9, 4, 12, 8, 1])
    given[0] = Text(given[0].tokens, ["<b>", "a & b", *given[0].words[2:]], 1)
    options = {"searches": [Search(steps=5)], "permutations": 4, "resamples": 50} | options
    return audit(model(mapping=mapping).auditable(), given, examples=3, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def html() -> str:
    one = Estimate(0.2, 0.1, 0.3, 0.1, 0.2, 5)
    control = Comparison("seed <2>", "seed", one, one, one, (0.8, 0.75))
    facts = Facts(name="mine & <yours>", data="a test", labels=("bad", "good"), left_out="3 short")
    return audit_page(audited("sparsemax", controls=[control]), facts)


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]", html)
    assert not re.search(r"url\((?!#)", html)
    assert page.values("src") == []
    assert not set(page.tags) & {"script", "link", "iframe", "img"}
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert "$" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    assert "prefers-color-scheme: dark" in html


def test_names_and_words_are_text_not_markup(html: str) -> None:
    assert "mine &amp; &lt;yours&gt;" in html
    assert "<yours>" not in html
    assert "seed &lt;2&gt;" in html
    assert "<u><b>" not in html


def test_it_says_what_was_found_in_words(html: str) -> None:
    text = " ".join(Page(html).text)
    for part in (
        "Undecided",  # five texts decide nothing
        "5 texts of a test",
        "Do predictions depend on the weights at all?",
        "What this does not show.",
        "Importance measures are not the truth",
        "gradient of words",
        "leave-one-out of hidden states",
        "seed <2>",
        "one token",
        "Before the audit: 3 short",
        "have exactly none",
    ):
        assert part in text
    # names that only code has stay out of what a reader sees
    shown = text[: text.index("All numbers")]
    assert not re.search(r"gradient_norm|leave_one_out|tau_b|prediction_moved/", shown)


def test_every_word_has_a_bar_or_a_dot_for_each_measure() -> None:
    result = audited("sparsemax")
    html = audit_page(result)
    cards = re.findall(r'<figure class="card text">.*?</figure>', html, flags=re.DOTALL)
    assert len(cards) == len(result.examples) == 3
    for card, example in zip(cards, result.examples, strict=True):
        tokens = re.findall(r'<span class="w".*?</span>', card)
        assert len(tokens) == len(example.words)
        for token, weight in zip(tokens, example.attention, strict=True):
            cells = re.findall(r"<b(?: class=\"none\")?>.*?</b>", token)
            assert len(cells) == 5  # attention, three importances, adversarial weights
            assert ("none" in cells[0]) == (weight == 0)
        heights = [int(h) for h in re.findall(r'class="s1" style="height:(\d+)%"', card)]
        assert max(heights) == 100
        assert len(heights) == sum(weight > 0 for weight in example.attention)


def test_what_was_not_measured_is_not_shown(tmp_path: Path) -> None:
    result = audited(searches=(), permutations=0, fractions=(), states=None)
    path = write_page(tmp_path / "new" / "audit.html", result)
    text = " ".join(Page(path.read_text(encoding="utf-8")).text)
    assert text.count("This was not tested.") == 2
    assert "share of a hidden state that is due" not in text
    assert "Attention gives some weight to every word" in text
    assert "adversarial" not in text


def test_attention_without_any_order() -> None:
    """Uniform weights: agreement is undefined everywhere, and the page says so."""
    even = model().auditable()
    uniform = dataclasses.replace(even, attend=uniform_attention)
    result = audit(uniform, texts([7, 9, 4]), searches=(), permutations=2, resamples=20)
    assert len(result.examples) == 3
    html = audit_page(result)
    text = " ".join(Page(html).text)
    assert "not defined: there is no order to compare" in text
    assert "over 0 texts" not in text
    assert "attention is constant" in text  # counted among what was left out
    assert 'class="agreement"' not in html


def test_numbers() -> None:
    assert number(-0.004) == "0.00"
    assert number(-0.25) == "−0.25"
    assert number(float("nan")) == "–"
    nan = float("nan")
    assert interval(Estimate(0.5, nan, nan, nan, 0.5, 1)) == "0.50"
    assert interval(Estimate(nan, nan, nan, nan, nan, 0)) == "–"


def test_the_first_picture_fits_and_no_word_comes_before_its_explanation(html: str) -> None:
    first = re.search(r'<figure class="card ([a-z]+)"><svg viewBox', html)
    assert first is not None
    assert first[1] == "fits"
    assert ".fits svg { width: auto; max-width: 100%; }" in html
    tiles = re.search(r'<div class="tiles">.*?</header>', html, re.DOTALL)
    assert tiles is not None
    assert "τ" not in tiles[0]
    assert "0 if they have nothing to do with each other" in tiles[0]
