"""The demo page: self-contained, complete, and honest about zeros."""

import re
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

import parsimax as px
from parsimax.viz import demo_page
from parsimax.viz.family import CURVE_ALPHAS
from parsimax.viz.notes import NOTES, note_for
from parsimax.viz.sentence import DEFAULT_SENTENCE, score_sentence
from parsimax.viz.strips import Strip, strips


class Page(HTMLParser):
    """Collects what the tests ask about: tags with their attributes, ids, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


@pytest.fixture(scope="module")
def html() -> str:
    return demo_page()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.fixture(scope="module")
def members() -> list[Strip]:
    return strips(score_sentence(DEFAULT_SENTENCE))


def test_nothing_is_fetched(html: str, page: Page) -> None:
    assert not re.search(r"https?:|//[a-z]", html)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert page.values("src") == []
    assert all(value.startswith("#") for value in page.values("href"))
    assert not {tag for tag, _, _ in page.attributes} & {"script", "link", "iframe", "img"}


def test_every_registered_mapping_is_drawn_and_explained(page: Page, members: list[Strip]) -> None:
    assert {strip.name for strip in members} == set(px.mappings.registry())
    for strip in members:
        assert "".join(strip.lines) == strip.label
        assert set(strip.lines) <= set(page.text)
    for name in px.mappings.registry():
        assert name in page.text  # the heading of its explanation
        assert note_for(name).text


def test_every_word_and_every_curve_is_named(page: Page) -> None:
    for word in DEFAULT_SENTENCE.split():
        assert word in page.text
    for alpha in CURVE_ALPHAS:
        assert any(text.startswith(f"α = {alpha:g}") for text in page.text)


def test_exactly_the_zeros_are_marked(page: Page, members: list[Strip]) -> None:
    zeros = sum(int((strip.probabilities == 0).sum()) for strip in members)
    marks = [value for value in page.values("id") if value.startswith("strips-zero-")]
    assert zeros > 0
    assert len(marks) == zeros
    (softmax,) = (strip for strip in members if strip.name == "softmax")
    assert softmax.support == len(softmax.probabilities)


def test_strips_are_distributions(members: list[Strip]) -> None:
    for strip in members:
        total = float(strip.label.split("k=")[1].rstrip(")")) if strip.name == "budget" else 1.0
        assert strip.probabilities.sum() == pytest.approx(total, abs=1e-9)
        assert (strip.probabilities >= 0).all()


def test_ids_are_unique_and_references_resolve(html: str, page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r"url\(#([^)]+)\)", html)) | {v[1:] for v in page.values("href")}
    assert referred <= set(ids)


def test_no_stand_in_colour_is_left(html: str) -> None:
    assert "#0101" not in html
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", html))
    defined = set(re.findall(r"--([a-z0-9-]+):", html))
    assert used <= defined


def test_the_same_page_each_time(html: str) -> None:
    assert demo_page() == html


def test_matplotlib_is_left_as_it_was() -> None:
    before = dict(mpl.rcParams)
    demo_page("two words")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    "sentence",
    [
        "<script>alert(1)</script> & more",
        "$5 $6 a_b \\frac {x} %s ${style}",
        "猫 は いる",
        "same same same",
        "extraordinarily counterintuitive misrepresentations",
        " ".join(["word"] * 24),
    ],
)
def test_any_words_are_safe(sentence: str) -> None:
    page = Page(demo_page(sentence))
    assert "script" not in {tag for tag, _, _ in page.attributes}
    assert any(sentence in text for text in page.text)


@pytest.mark.parametrize("count", [0, 1, 25])
def test_number_of_words(count: int) -> None:
    with pytest.raises(ValueError, match=f"sentence: expected 2 to 24 words, got {count}"):
        demo_page(" ".join(["word"] * count))


def test_scores_are_standardised() -> None:
    scores = score_sentence("rare letters jinx quizzes and plain ones do not").scores
    assert sum(scores) == pytest.approx(0, abs=1e-12)
    assert sum(score**2 for score in scores) / len(scores) == pytest.approx(1)


def test_notes_speak_of_registered_mappings_only() -> None:
    assert set(NOTES) <= set(px.mappings.registry())
