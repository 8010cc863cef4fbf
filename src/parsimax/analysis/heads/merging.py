"""Heads that put the pieces of a word together again (Correia et al. 2019, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .measuring import by_module
from .scores import Head, ranking
from .words import Marks, Word, words


@dataclass(frozen=True)
class Merging:
    """How much each head of a self-attention looks within words.

    A word's score is the largest weight that one of its pieces gives to its other pieces together;
    that of a word of one piece is the weight it gives to itself.

    Args:
        module: which kind of attention.
        score: (layer, head), mean score of all words.
        score_split: (layer, head), mean score of words of several pieces alone. A head that
            always looks at its own token has a high ``score`` and none here.
        within: (layer, head), mean weight of a token on its own word, itself included.
        words: how many there were.
        split: how many of them had several pieces.
    """

    module: str
    score: Tensor
    score_split: Tensor
    within: Tensor
    words: int
    split: int = field(default=0)

    def ranking(self, count: int | None = None) -> list[tuple[Head, float]]:
        """Heads by the mean score of all words."""
        return ranking(self.module, self.score, count)

    def ranking_split(self, count: int | None = None) -> list[tuple[Head, float]]:
        """Heads by the mean score of words of several pieces."""
        return ranking(self.module, self.score_split, count)


class MergingMeasure:
    """Sums over words."""

    def __init__(self, module: str, marks: Marks = "auto") -> None:
        self.module, self._marks = module, marks
        self._single: Tensor | float = 0.0
        self._split: Tensor | float = 0.0
        self._within: Tensor | float = 0.0
        self._words = self._split_words = self._tokens = 0
        self._shape: tuple[int, int] = (0, 0)

    def add(self, sentence: Sentence) -> None:
        """Take one sentence in."""
        self._shape = sentence.shape
        for word in words(sentence.record.tokens, self._marks):
            inside = sentence.weights[..., word.start : word.stop, word.start : word.stop]
            score = _score(inside)
            if len(word) == 1:
                self._single = self._single + score
            else:
                self._split = self._split + score
                self._split_words += 1
            self._within = self._within + inside.sum((-2, -1))
            self._words += 1
            self._tokens += len(word)

    def result(self) -> Merging:
        """The scores so far."""
        return Merging(
            module=self.module,
            score=self._mean(self._single + self._split, self._words),
            score_split=self._mean(self._split, self._split_words),
            within=self._mean(self._within, self._tokens),
            words=self._words,
            split=self._split_words,
        )

    def _mean(self, total: Tensor | float, count: int) -> Tensor:
        if count == 0:
            return torch.full(self._shape, math.nan, dtype=torch.float64, device="cpu")
        return torch.as_tensor(total, dtype=torch.float64, device="cpu").expand(self._shape) / count


def _score(inside: Tensor) -> Tensor:
    """(layer, head) from the weights (layer, head, n, n) among the pieces of a word."""
    own = inside.diagonal(dim1=-2, dim2=-1)
    if inside.shape[-1] == 1:
        return own[..., 0]
    others: Tensor = (inside.sum(-1) - own).clamp(min=0).amax(-1)
    return others


def word_scores(record: AttentionRecord, marks: Marks = "auto") -> list[tuple[Word, Tensor]]:
    """The words of one sentence, and each one's score (layer, head)."""
    weights = record.weights.double()
    return [
        (word, _score(weights[..., word.start : word.stop, word.start : word.stop]))
        for word in words(record.tokens, marks)
    ]


def merging(records: Iterable[AttentionRecord], marks: Marks = "auto") -> dict[str, Merging]:
    """Scores of every head of self-attention, by module.

    Args:
        records: of one model; those of attention to other sentences are passed over.
        marks: how pieces of words are marked, as :func:`parsimax.analysis.heads.words.words` says.
    """
    own = (record for record in records if record.self_attention)
    return by_module(own, lambda module: MergingMeasure(module, marks))
