"""Heads that look from an interrogative word to the question mark (Correia et al. 2019, 5.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.records import AttentionRecord

from .checking import Sentence
from .measuring import by_module
from .relations import RelationMeasure
from .scores import Head, HeadScores
from .words import Marks, Word, words

QUESTION_MARKS = frozenset("?？؟\u037e")

_INTERROGATIVES = {
    "en": "who whom whose what which when where why how",
    "de": "wer wen wem wessen was welche welcher welches welchen welchem wann wo wohin woher warum "
    "weshalb wieso wie wieviel wofür womit wozu worüber worauf",
    "fr": "qui que quoi quel quelle quels quelles quand où pourquoi comment combien lequel "
    "laquelle lesquels lesquelles",
    "es": "quién quiénes qué cuál cuáles cuándo dónde adónde cómo cuánto cuánta cuántos cuántas",
    "ro": "cine ce care când unde cum cât câtă câți câte cui",
    "ja": "何 誰 いつ どこ なぜ どう どの どれ どんな いくつ いくら",
}
INTERROGATIVES = {code: frozenset(words.split()) for code, words in _INTERROGATIVES.items()}


@dataclass(frozen=True)
class Interrogation:
    """How surely each head of a self-attention goes from an interrogative word to the "?".

    Args:
        module: which kind of attention.
        questions: mean weight on question marks, of interrogative words in sentences that have
            one further on.
        statements: mean weight on the last token, of interrogative words in sentences without a
            question mark: what tells a head that knows questions from one that looks at the end.
    """

    module: str
    questions: HeadScores
    statements: HeadScores

    def ranking(self, count: int | None = None) -> list[tuple[Head, float]]:
        """Heads by their weight on question marks."""
        return self.questions.ranking(count)


def interrogatives_of(language: str | Collection[str]) -> frozenset[str]:
    """Interrogative words: of a language by its code, or those that are given."""
    if not isinstance(language, str):
        return frozenset(word.casefold() for word in language)
    if language not in INTERROGATIVES:
        raise ValueError(
            f"language: expected one of {', '.join(INTERROGATIVES)}, or a collection of "
            f"interrogative words, got {language!r}"
        )
    return INTERROGATIVES[language]


def interrogative_words(
    record: AttentionRecord, interrogatives: Collection[str], marks: Marks = "auto"
) -> list[Word]:
    """The interrogative words of a sentence, however many pieces they have."""
    return [word for word in words(record.tokens, marks) if word.text.casefold() in interrogatives]


def question_marks(record: AttentionRecord, marks: Marks = "auto") -> list[int]:
    """Where the question marks of a sentence stand."""
    return [word.start for word in words(record.tokens, marks) if set(word.text) <= QUESTION_MARKS]


class InterrogationMeasure:
    """Sums of weights on question marks, and on the ends of statements."""

    def __init__(self, module: str, interrogatives: Collection[str], marks: Marks = "auto") -> None:
        self.module = module
        self._questions = RelationMeasure(
            module, lambda record: asks(record, interrogatives, marks, question=True)
        )
        self._statements = RelationMeasure(
            module, lambda record: asks(record, interrogatives, marks, question=False)
        )

    def add(self, sentence: Sentence) -> None:
        """Take one sentence in."""
        self._questions.add(sentence)
        self._statements.add(sentence)

    def result(self) -> Interrogation:
        """The scores so far."""
        return Interrogation(self.module, self._questions.result(), self._statements.result())


def asks(
    record: AttentionRecord, interrogatives: Collection[str], marks: Marks, *, question: bool
) -> Tensor:
    """The relation of interrogative words to question marks, or to the end of a statement."""
    found = torch.zeros(
        len(record.query_tokens), len(record.tokens), dtype=torch.bool, device="cpu"
    )
    ends = question_marks(record, marks)
    if bool(ends) != question:
        return found
    if not question:
        last = words(record.tokens, marks)[-1:]
        ends = [word.stop - 1 for word in last]
    for word in interrogative_words(record, interrogatives, marks):
        for end in ends:
            if end >= word.stop:
                found[word.start : word.stop, end] = True
    return found


def interrogation(
    records: Iterable[AttentionRecord],
    language: str | Collection[str] = "en",
    marks: Marks = "auto",
) -> dict[str, Interrogation]:
    """Scores of every head of self-attention, by module.

    Args:
        records: of one model; those of attention to other sentences are passed over.
        language: code of a language whose interrogative words are known, or those words.
        marks: how pieces of words are marked.
    """
    asked = interrogatives_of(language)
    own = (record for record in records if record.self_attention)
    return by_module(own, lambda module: InterrogationMeasure(module, asked, marks))
