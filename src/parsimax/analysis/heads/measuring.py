"""Measures go over records once and keep sums, so that a corpus need not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from parsimax._core.records import AttentionRecord

from .checking import Sentence, sentences

Result_co = TypeVar("Result_co", covariant=True)


class Measure(Protocol[Result_co]):
    """Sums over the sentences of one module."""

    def add(self, sentence: Sentence) -> None:
        """Take one more sentence in."""

    def result(self) -> Result_co:
        """What was measured so far."""


def by_module(
    records: Iterable[AttentionRecord], make: Callable[[str], Measure[Result_co]]
) -> dict[str, Result_co]:
    """One result for each module that occurs, in the order they occur."""
    measures: dict[str, Measure[Result_co]] = {}
    for sentence in sentences(records):
        module = sentence.record.module
        if module not in measures:
            measures[module] = make(module)
        measures[module].add(sentence)
    return {module: measure.result() for module, measure in measures.items()}
