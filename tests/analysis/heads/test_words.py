"""Pieces of words find each other under each convention."""

from __future__ import annotations

from typing import Any

import pytest

from parsimax.analysis.heads import words
from parsimax.analysis.heads.words import find_marks, is_special

CASES: list[tuple[list[str], list[str]]] = [
    (["▁rules", "▁for", "▁blo", "wing", "▁up", "."], ["rules", "for", "blowing", "up", "."]),
    (["▁a", "▁twenty", "-", "five", "▁-", "▁b"], ["a", "twenty-five", "-", "b"]),
    (["▁don", "'", "t", "▁go", "'", "."], ["don't", "go", "'", "."]),
    (["▁(", "yes", ")", ",", "no"], ["(", "yes", ")", ",", "no"]),
    (["<s>", "The", "Ġbal", "lo", "ons", "!", "</s>"], ["The", "balloons", "!"]),
    (["[CLS]", "em", "##bed", "##ding", "##s", "[SEP]"], ["embeddings"]),
    (["well", "-", "known", "##s", "."], ["well-knowns", "."]),
    (["bal@@", "lo@@", "ons", "fly"], ["balloons", "fly"]),
    (["bal~", "lo~", "ons", "for"], ["balloons", "for"]),
    (["bal", "loon</w>", "up</w>"], ["balloon", "up"]),
    (["each", "is", "one"], ["each", "is", "one"]),
    (["<bos>", "▁a", "<unk>", "b", "<eos>"], ["a", "b"]),
    (["<bos>"], []),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "expected"), CASES)
def test_words(tokens: list[str], expected: list[str]) -> None:
    found = words(tokens)
    assert [word.text for word in found] == expected
    covered = [place for word in found for place in range(word.start, word.stop)]
    assert covered == [place for place, token in enumerate(tokens) if not is_special(token)]


def test_marks_can_be_said() -> None:
    assert find_marks(["a", "b"]) == "none"
    assert find_marks(["~", "a"]) == "none"  # a tilde alone marks nothing
    assert len(words(["▁a", "b"], "none")) == 2
    wrong: Any = "##@"
    with pytest.raises(ValueError, match=r"marks"):
        words(["a"], wrong)
