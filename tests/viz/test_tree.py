"""The tree of hypotheses: probabilities that are those of the sequences, and runs joined."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsimax.viz.tree import Branch, Leaf, grow, tree_figure

DRAW = [Leaf(tuple("drawed"), 0.664), Leaf(tuple("drawn"), 0.322), Leaf(tuple("draw"), 0.014)]


def paths(branch: Branch) -> dict[tuple[str, ...], float]:
    """Sequences and the product of the branches' probabilities on the way to them."""
    if branch.leaf is not None:
        return {branch.symbols: branch.probability}
    found = {}
    for child in branch.children:
        for symbols, p in paths(child).items():
            found[branch.symbols + symbols] = branch.probability * p
    return found


def test_figure_one_of_the_paper() -> None:
    root = grow(DRAW)
    assert root.symbols == tuple("draw")  # a run without a choice
    assert [(c.symbols, c.probability) for c in root.children] == [
        (tuple("ed"), pytest.approx(0.664)),
        (("n",), pytest.approx(0.322)),
        ((), pytest.approx(0.014)),
    ]


@given(
    st.dictionaries(
        st.text("ab", max_size=5).map(tuple), st.floats(0.01, 1), min_size=1, max_size=9
    )
)
def test_products_along_the_branches_are_the_probabilities(
    sequences: dict[tuple[str, ...], float],
) -> None:
    total = math.fsum(sequences.values())
    leaves = [Leaf(s, p / total) for s, p in sequences.items()]
    found = paths(grow(leaves))
    assert found.keys() == sequences.keys()
    for leaf in leaves:
        assert found[leaf.symbols] == pytest.approx(leaf.probability)


def test_hidden_sequences_still_count() -> None:
    leaves = [Leaf((c,), p) for c, p in zip("abcd", [0.4, 0.3, 0.2, 0.1], strict=True)]
    root = grow(leaves, most=2)
    assert [c.probability for c in root.children] == pytest.approx([0.4, 0.3])
    texts = text_of(tree_figure(leaves, name="t", most=2))
    assert any("2 more with 30.0 % together" in text for text in texts)


def test_what_was_not_followed_is_said() -> None:
    texts = text_of(tree_figure([Leaf(("a",), 0.75)], name="t"))
    assert any("25.0 % is on sequences that were not followed" in text for text in texts)
    assert not any("not followed" in text for text in text_of(tree_figure(DRAW, name="t")))


def text_of(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def test_picture() -> None:
    svg = tree_figure(DRAW, name="draw", gold=tuple("drawn"))
    texts = text_of(svg)
    assert texts.count("66.4 %") == 2  # on its branch and beside its word
    assert "drawed" in texts
    assert texts.count("✓") == 1
    assert "draw" in texts  # the run in one box
    assert ET.fromstring(svg).get("aria-label", "").startswith("Tree of hypotheses: drawed 66.4 %")


def test_any_symbols_are_safe() -> None:
    leaves = [Leaf(("<b>", "&", "<space>"), 0.5), Leaf(("猫", '"', "$x"), 0.5)]
    root = ET.fromstring(tree_figure(leaves, name="x"))
    assert {element.tag for element in root.iter()} <= {"svg", "text", "rect", "polyline"}


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ([], "at least one"),
        ([Leaf(("a",), 0.0)], "positive"),
        ([Leaf(("a",), 0.5), Leaf(("a",), 0.5)], "each sequence once"),
    ],
)
def test_bad_leaves(leaves: list[Leaf], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grow(leaves)
