"""Word accuracy: macro and micro differ exactly as the groups' sizes say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsimax.seq2seq.metrics.accuracy import word_accuracy


def test_macro_counts_groups_and_micro_sentences() -> None:
    outputs = ["a"] * 9 + ["x", "x"]
    references = ["a"] * 11
    groups = ["big"] * 9 + ["small"] * 2
    accuracy = word_accuracy(outputs, references, groups)
    assert accuracy.macro == 0.5  # 9 of 9, and 0 of 2
    assert accuracy.micro == 9 / 11
    assert accuracy.groups["small"].sentences == 2
    assert accuracy.groups["small"].accuracy == 0


def test_no_output_is_wrong_even_for_an_empty_reference() -> None:
    assert word_accuracy([None, ""], ["", ""], ["g", "g"]).micro == 0.5


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from("xyz"))))
def test_against_a_loop(rows: list[tuple[str, str, str]]) -> None:
    if not rows:
        with pytest.raises(ValueError, match="expected at least one"):
            word_accuracy([], [], [])
        return
    accuracy = word_accuracy(*map(list, zip(*rows, strict=True)))
    means = []
    for group in {row[2] for row in rows}:
        hits = [a == b for a, b, g in rows if g == group]
        means.append(sum(hits) / len(hits))
    assert accuracy.macro == pytest.approx(sum(means) / len(means))
    assert accuracy.micro == pytest.approx(sum(a == b for a, b, _ in rows) / len(rows))


def test_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="one length, got 1, 2 and 1"):
        word_accuracy(["a"], ["a", "b"], ["g"])
