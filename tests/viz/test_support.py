"""The strip of what may come next: forced runs are joined, the given symbol is always there."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from parsimax.viz.support import Step, runs, support_figure


def forced(symbol: str) -> Step:
    return Step(((symbol, 1.0),), symbol)


CHOICE = Step((("e", 0.7), ("n", 0.3)), "n")


def test_runs() -> None:
    steps = [forced("a"), forced("b"), CHOICE, CHOICE, forced("c")]
    assert [[s.given for s in run] for run in runs(steps)] == [["a", "b"], ["n"], ["n"], ["c"]]


def test_one_possible_symbol_that_was_not_given_is_no_run() -> None:
    other = Step((("a", 1.0),), "b")
    assert [len(run) for run in runs([forced("x"), other, forced("y")])] == [1, 1, 1]
    texts = text_of(support_figure([other], name="s"))
    assert texts == ["a", "100 %", "b", "0"]


def text_of(svg: str) -> list[str | None]:
    return [element.text for element in ET.fromstring(svg).iter("text")]


def test_given_symbol_is_bold_and_others_are_not() -> None:
    svg = ET.fromstring(support_figure([CHOICE], name="s"))
    bold = [t.text for t in svg.iter("text") if "700" in t.get("style", "")]
    assert bold == ["n"]


def test_long_lists_are_cut_and_counted() -> None:
    step = Step(tuple((f"w{i}", (20 - i) / 210) for i in range(20)), "w19")
    texts = text_of(support_figure([step], name="s", most=5, joiner=" "))
    assert "w19" in texts
    assert "15 more" in texts


def test_words_of_a_run_are_joined() -> None:
    assert "tree of" in text_of(
        support_figure([forced("tree"), forced("of")], name="s", joiner=" ")
    )


def test_no_steps() -> None:
    with pytest.raises(ValueError, match="at least one"):
        support_figure([], name="s")
