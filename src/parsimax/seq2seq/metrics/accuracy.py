"""Word accuracy: the share of outputs that equal the reference, and its mean over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GroupAccuracy:
    """Right outputs of one group, such as a language."""

    sentences: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of right outputs."""
        return self.right / self.sentences


@dataclass(frozen=True)
class Accuracy:
    """Word accuracy: every group counts alike in ``macro``, every sentence in ``micro``."""

    macro: float
    micro: float
    groups: dict[str, GroupAccuracy]


def word_accuracy(
    outputs: Sequence[str | None], references: Sequence[str], groups: Sequence[str]
) -> Accuracy:
    """Compare outputs with references, letter for letter.

    Args:
        outputs: None where there is no output, or none that ended; it is wrong.
        references: what would be right.
        groups: the group of each, such as its language.

    >>> accuracy = word_accuracy(["a", "b", "x"], ["a", "b", "c"], ["one", "one", "two"])
    >>> accuracy.macro, round(accuracy.micro, 3)
    (0.5, 0.667)
    """
    if not len(outputs) == len(references) == len(groups):
        raise ValueError(
            "outputs, references, groups: expected one length, "
            f"got {len(outputs)}, {len(references)} and {len(groups)}"
        )
    if not outputs:
        raise ValueError("outputs: expected at least one, got none; is the data file empty?")
    sentences: dict[str, int] = {}
    right: dict[str, int] = {}
    for output, reference, group in zip(outputs, references, groups, strict=True):
        sentences[group] = sentences.get(group, 0) + 1
        right[group] = right.get(group, 0) + (output == reference)
    found = {group: GroupAccuracy(sentences[group], right[group]) for group in sorted(sentences)}
    return Accuracy(
        macro=sum(group.accuracy for group in found.values()) / len(found),
        micro=sum(right.values()) / len(outputs),
        groups=found,
    )
