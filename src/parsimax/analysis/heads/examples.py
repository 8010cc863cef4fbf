"""Sentences that show what a head does: typical ones, not the best there are.

While records go by, a few short sentences of each kind are kept. When it is known which heads stand
out, each is shown on the sentence whose score is nearest to the head's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .interrogation import asks, interrogative_words, question_marks
from .merging import word_scores
from .scores import Head
from .words import Marks, words

Kind = Literal["before", "same", "after", "merging", "question", "statement", "denser", "sparser"]

_SHORTEST, _LONGEST = 4, 16  # tokens of a sentence that is worth looking at
_SIMILAR = 1  # tokens by which sentences of similar length may differ


@dataclass(frozen=True)
class Example:
    """One head on one sentence.

    Args:
        kind: what it is an example of.
        head: which head.
        tokens: keys; and ``queries``, the tokens that attend.
        weights: (Lq, Lk).
        score: of this sentence.
        mean: of all sentences, where there is such a mean.
    """

    kind: Kind
    head: Head
    tokens: tuple[str, ...]
    queries: tuple[str, ...]
    weights: Tensor = field(repr=False)
    score: float
    mean: float | None = None


class Pool:
    """Short sentences of one module: any, with words of several pieces, questions, statements."""

    def __init__(self, interrogatives: Collection[str], marks: Marks = "auto", most: int = 60):
        self._interrogatives, self._marks, self._most = interrogatives, marks, most
        self._kept: dict[str, list[AttentionRecord]] = {}

    def add(self, sentence: Sentence) -> None:
        """Keep a sentence if it may become an example."""
        record = sentence.record
        if not _SHORTEST <= len(record.tokens) <= _LONGEST:
            return
        self._keep("any", record)
        if not record.self_attention:
            return
        if sum(len(word) > 1 for word in words(record.tokens, self._marks)) >= 2:
            self._keep("pieces", record)
        if interrogative_words(record, self._interrogatives, self._marks):
            asked = bool(question_marks(record, self._marks))
            self._keep("question" if asked else "statement", record)

    def _keep(self, kind: str, record: AttentionRecord) -> None:
        kept = self._kept.setdefault(kind, [])
        if len(kept) < self._most:
            kept.append(record)

    def positional(self, kind: Kind, head: Head, offset: int, mean: float) -> Example | None:
        """A head that looks at an offset, on a typical sentence."""
        return self._typical(
            "any", kind, head, mean, lambda record: _diagonal_mean(record, head, offset)
        )

    def merging(self, head: Head, mean: float) -> Example | None:
        """A head that merges pieces, on a typical sentence that has some."""

        def score(record: AttentionRecord) -> float:
            found = [
                float(each[head.layer, head.head])
                for word, each in word_scores(record, self._marks)
                if len(word) > 1
            ]
            return sum(found) / len(found)

        return self._typical("pieces", "merging", head, mean, score)

    def asking(self, head: Head, mean: float, *, question: bool) -> Example | None:
        """A head that looks for question marks, on a typical question or on a statement."""

        def score(record: AttentionRecord) -> float:
            relation = asks(record, self._interrogatives, self._marks, question=question)
            if not relation.any():
                return float("nan")
            weights = record.weights[head.layer, head.head].double()
            return float((weights * relation).sum() / relation.any(-1).sum())

        kind: Kind = "question" if question else "statement"
        return self._typical(kind, kind, head, mean, score)

    def contrast(self, module: str, means: Tensor) -> tuple[Example, Example] | None:
        """The head whose density differs most between two sentences of similar length, on both.

        Args:
            module: of the head.
            means: (layer, head), density over all sentences.
        """
        records = self._kept.get("any", [])
        if len(records) < 2:
            return None
        lengths = torch.tensor([len(record.tokens) for record in records], device="cpu")
        shares = torch.stack([_densities(record) for record in records])  # (n, layer, head)
        similar = (lengths[:, None] - lengths[None]).abs() <= _SIMILAR
        best, found = 0.0, None
        for layer in range(shares.shape[1]):
            for head in range(shares.shape[2]):
                each = shares[:, layer, head]
                apart = torch.where(similar, each[:, None] - each[None], 0.0)
                if float(apart.max()) > best:
                    best = float(apart.max())
                    found = (Head(module, layer, head), int(apart.argmax()))
        if found is None:
            return None
        head_found, place = found
        dense, sparse = divmod(place, len(records))
        mean = float(means[head_found.layer, head_found.head])
        return tuple(  # type: ignore[return-value]
            _example(
                kind,  # type: ignore[arg-type]
                head_found,
                records[row],
                float(shares[row, head_found.layer, head_found.head]),
                mean,
            )
            for kind, row in (("denser", dense), ("sparser", sparse))
        )

    def _typical(
        self,
        kept: str,
        kind: Kind,
        head: Head,
        mean: float,
        score: Callable[[AttentionRecord], float],
    ) -> Example | None:
        scored = [(score(record), record) for record in self._kept.get(kept, [])]
        scored = [(value, record) for value, record in scored if value == value]
        if not scored:
            return None
        value, record = min(scored, key=lambda pair: abs(pair[0] - mean))
        return _example(kind, head, record, value, mean)


def _example(
    kind: Kind, head: Head, record: AttentionRecord, score: float, mean: float | None
) -> Example:
    return Example(
        kind=kind,
        head=head,
        tokens=record.tokens,
        queries=record.query_tokens,
        weights=record.weights[head.layer, head.head].clone(),
        score=score,
        mean=mean,
    )


def _diagonal_mean(record: AttentionRecord, head: Head, offset: int) -> float:
    return float(record.weights[head.layer, head.head].double().diagonal(offset).mean())


def _densities(record: AttentionRecord) -> Tensor:
    """(layer, head) of one sentence."""
    assert record.allowed is not None  # every record that was checked says so
    visible = record.allowed.sum(-1).clamp(min=1)
    return ((record.weights > 0).sum(-1).double() / visible).mean(-1)
