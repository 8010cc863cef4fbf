"""The report: one file that fetches nothing and says what it was given."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.viz.page import Page

from parsimax.viz.curves import Curve, Panel
from parsimax.viz.inflection_report import (
    Mistake,
    Summary,
    WordPicture,
    report_page,
    write_report,
)
from parsimax.viz.support import Step
from parsimax.viz.tree import Leaf

SUMMARY = Summary(
    accuracy=0.968, right=2017, questions=2019, single=0.61, exhaustive=0.83, optimal=0.97,
    support=1.13, vocabulary=28, attended=2.1, attendable=11.2, zero_gold=0.0042, beam=5,
    train_rows=22108, train_lemmas=5648, held_out_lemmas=533, seconds=143.2, epochs=9,
    parameters=345678, model="a recurrent model, entmax(alpha=1.5)", machine="a test",
    other=(("ε-perplexity", "1.03"),),
)  # fmt: skip
DRAW = WordPicture(
    "draw", "past participle", "never seen",
    (Leaf(tuple("drawed"), 0.7), Leaf(tuple("drawn"), 0.3)), tuple("drawn"), True, True,
    ("<tag:PST>", *"draw"), (*"drawn", "<eos>"),
    ((0.0, 1.0, 0.0, 0.0, 0.0),) * 6,
    (Step((("d", 1.0),), "d"), Step((("e", 0.7), ("n", 0.3)), "n")),
)  # fmt: skip
GO = WordPicture("go", "past", "learned", (Leaf(tuple("went"), 1.0),), tuple("went"))
MISTAKES = [
    Mistake("draw", "past participle", "drawn", "drawed", 0.7, 0.3),
    Mistake("sing", "past", "sang", "singed", 0.99, 0.0),
]
PANELS = [Panel("loss", (Curve("train", (1, 2), (2, 1)),))]


@pytest.fixture(scope="module")
def html() -> str:
    return report_page(SUMMARY, [DRAW, GO], PANELS, MISTAKES)


def test_nothing_is_fetched(html: str) -> None:
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]", html)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert page.values("src") == []
    assert not set(page.tags) & {"script", "link", "iframe", "img"}


def test_colours_are_roles_for_light_and_dark(html: str) -> None:
    assert "prefers-color-scheme: dark" in html
    assert "#0101" not in html
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", html))
    used -= {"words"}  # a number that another page sets where it uses it
    assert used <= set(re.findall(r"--([a-z0-9-]+):", html))
    drawn = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawn) == 5  # two trees, a grid, a strip, the curves
    assert not any(re.search(r"#[0-9a-f]{3,6}\b", svg) for svg in drawn)


def test_numbers_stand_beside_the_papers(html: str) -> None:
    text = " ".join(Page(html).text)
    for shown in ("96.8 %", "61.0 %", "83.0 %", "97.0 %", "22,108", "143 seconds", "1.03"):
        assert shown in text
    assert "paper: 66% (medium)" in text
    assert "paper: 79% (medium)" in text


def test_every_mistake_is_listed(html: str) -> None:
    page = Page(html)
    assert page.tags.count("tr") == 1 + len(MISTAKES) + len(SUMMARY.other)
    assert "singed" in page.text
    assert "0" in page.text  # the right form was ruled out


def test_verdicts(html: str) -> None:
    text = " ".join(Page(html).text)
    assert "never seen · 2 answers · wrong: it is drawn" in text
    assert "learned · one answer · right" in text


def test_nothing_is_claimed_under_a_penalty() -> None:
    summary = dataclasses.replace(SUMMARY, single=None, exhaustive=None, optimal=None)
    assert Page(report_page(summary, [GO], [], [])).text.count("not claimed") == 3


def test_words_are_escaped() -> None:
    word = dataclasses.replace(GO, lemma="<script>x</script>", leaves=(Leaf(("<i>", "$a"), 1.0),))
    assert "script" not in Page(report_page(SUMMARY, [word], [], [])).tags


def test_written_where_asked(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new" / "r.html", SUMMARY, [GO], PANELS, [])
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert report_page(SUMMARY, [GO], PANELS, []) == path.read_text(encoding="utf-8")
