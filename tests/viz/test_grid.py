"""Attention grids: exactly the weights above zero are outlined."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from parsimax.viz.grid import attention_figure

WEIGHTS = [[1.0, 0.0, 0.0], [0.0, 0.999999, 1e-6]]


def test_nonzeros_are_outlined_however_small() -> None:
    svg = ET.fromstring(
        attention_figure(WEIGHTS, ["<tag:PST>", "a", "b"], ["c", "<eos>"], name="g")
    )
    boxes = list(svg.iter("rect"))
    outlined = [b for b in boxes if b.get("class") == "nonzero"]
    assert len(outlined) == 3
    assert all("stroke: var(--accent)" in b.get("style", "") for b in outlined)
    dots = [b for b in boxes if b.get("class") == "zero"]
    assert len(dots) == 3
    assert not any("stroke" in b.get("style", "") for b in dots)
    assert "3 of 6 weights are above zero" in svg.get("aria-label", "")
    texts = [t.text for t in svg.iter("text")]
    assert texts == ["PST", "a", "b", "c", "⏎"]


@pytest.mark.parametrize("source", [["a"], ["a", "b", "c", "d"]])
def test_shape_is_checked(source: list[str]) -> None:
    with pytest.raises(ValueError, match=f"expected 2 rows .* of {len(source)} .source., got 2"):
        attention_figure(WEIGHTS, source, ["c", "d"], name="g")
