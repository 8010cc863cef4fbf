"""Side by side: every panel is its mapping, and exactly the weights above zero are outlined."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
import torch

import parsimax as px
from parsimax.viz.panels import MAPPINGS, panels_figure
from parsimax.viz.sentence import score_pairs, score_sentence

SENTENCE = score_sentence("the pilot of the plane saw a storm")


def test_each_panel_shows_what_its_mapping_gives() -> None:
    scores = score_pairs(SENTENCE)
    svg = ET.fromstring(panels_figure(scores, SENTENCE.words, SENTENCE.words))
    z = torch.tensor(scores, dtype=torch.float64)
    expected = [int((px.mappings.parse(text)(z) > 0).sum()) for text in MAPPINGS]
    assert expected[0] == 64 > expected[1] > 0
    outlined = [box for box in svg.iter("rect") if box.get("class") == "nonzero"]
    assert len(outlined) == sum(expected)
    assert all("stroke: var(--accent)" in box.get("style", "") for box in outlined)
    texts = ["".join(text.itertext()) for text in svg.iter("text")]
    for text, count in zip(MAPPINGS, expected, strict=True):
        assert text in texts
        assert f"{count} of 64 above zero" in texts
        assert f"{text}: {count} of 64 above zero" in svg.get("aria-label", "")
    assert texts.count("pilot") == 3 + 1, "once over each panel, once beside the first"


def test_the_panels_do_not_overlap() -> None:
    svg = ET.fromstring(panels_figure([[0.0, 0.0]], ["a", "b"], ["c"], mappings=["softmax"] * 2))
    left = sorted({float(box.get("x", "0")) for box in svg.iter("rect")})
    assert len(left) == 4
    assert left[2] - left[1] > 26


@pytest.mark.parametrize("source", [["a"], ["a", "b", "c"]])
def test_shape_is_checked(source: list[str]) -> None:
    with pytest.raises(ValueError, match=f"scores: expected 1 rows .* of {len(source)} .source."):
        panels_figure([[0.0, 0.0]], source, ["c"])
    with pytest.raises(ValueError, match="mappings: expected at least one"):
        panels_figure([[0.0, 0.0]], ["a", "b"], ["c"], mappings=[])
