"""Figure 2: marginals, and every active structure with its probability."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.viz.page import Page

from parsimax.viz.alignment import alignment_figure
from parsimax.viz.figure_page import write_figure_page

STRUCTURES = [
    [[1, 0, 0], [0, 1, 0]],
    [[0, 1, 0], [1, 0, 0]],
    [[0, 0, 1], [0, 1, 0]],
]
PROBABILITIES = [0.25, 0.75, 0.0]
MARGINALS = [[0.25, 0.75, 0.0], [0.75, 0.25, 0.0]]
ROWS, COLUMNS = ["a", "b"], ["c", "d", "e"]


def draw(**options) -> ET.Element:
    return ET.fromstring(
        alignment_figure(MARGINALS, STRUCTURES, PROBABILITIES, ROWS, COLUMNS, **options)
    )


def boxes(svg: ET.Element, css: str) -> list[ET.Element]:
    return [box for box in svg.iter("rect") if box.get("class") == css]


def test_active_structures_come_with_their_probability_the_largest_first():
    svg = draw()
    said = [t.text for t in svg.iter("text") if t.get("class") == "probability"]
    assert said == ["75.0 %", "25.0 %"]
    assert len(boxes(svg, "nonzero")) == 4 + 2 + 2  # marginals, and two structures of two cells
    assert "4 of 6 weights are above zero, from 2 structures" in svg.get("aria-label", "")
    # the first small grid is the likelier structure: its first row's cell lies further right
    first, second, *_ = boxes(svg, "nonzero")[4:]
    assert float(first.get("x", 0)) > float(second.get("x", 0))


def test_what_is_not_drawn_is_said():
    svg = draw(most=1)
    texts = [t.text for t in svg.iter("text")]
    assert "and 1 more, 25.0 % together" in texts
    assert len(boxes(svg, "nonzero")) == 4 + 2


def test_structures_continue_on_the_next_line():
    def heights(svg: ET.Element) -> set[str | None]:
        return {t.get("y") for t in svg.iter("text") if t.get("class") == "probability"}

    assert len(heights(draw())) == 1
    assert len(heights(draw(width=100))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"marginals": [[1.0, 0.0]]}, "marginals: expected 2 rows of 3, got 1 rows of"),
        ({"structures": [[[1, 0], [0, 1]]] * 3}, "structures: expected 2 rows of 3, got 2 rows of"),
        ({"probabilities": [1.0]}, "structures and probabilities must be as many, got 3 and 1"),
    ],
)
def test_shapes_are_checked(change, message):
    arguments = {
        "marginals": MARGINALS,
        "structures": STRUCTURES,
        "probabilities": PROBABILITIES,
        "rows": ROWS,
        "columns": COLUMNS,
    }
    with pytest.raises(ValueError, match=message):
        alignment_figure(**{**arguments, **change})


def test_a_page_holds_all_it_shows(tmp_path: Path):
    picture = alignment_figure(MARGINALS, STRUCTURES, PROBABILITIES, ROWS, COLUMNS)
    path = write_figure_page(
        tmp_path / "new" / "page.html",
        [("a < b", picture)],
        title="parsimax: t",
        heading="h & h",
        lede="l",
    )
    page = Page(path.read_text(encoding="utf-8"))
    assert {"a < b", "h & h"} <= set(page.text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.tags.count("svg") == 1
