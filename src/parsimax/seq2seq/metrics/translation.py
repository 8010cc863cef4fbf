"""BLEU and chrF as sacrebleu computes them, with the signature that says which they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

_BLEU_ORDER = 4


@dataclass(frozen=True)
class TranslationScore:
    """A score from 0 to 100 and sacrebleu's signature of how it was computed."""

    score: float
    signature: str


def bleu(
    outputs: Sequence[str], references: Sequence[str], *, tokenize: str | None = None
) -> TranslationScore | None:
    """Corpus BLEU; None if no reference has four words, where it would be 0 by definition.

    Args:
        outputs: text as a reader would have it, without subword marks.
        references: one for each output.
        tokenize: a tokenizer of sacrebleu, such as ``13a`` (its default), ``char`` or ``zh``.
    """
    _check(outputs, references)
    metric = _metric(tokenize)
    if all(len(metric.tokenizer(reference).split()) < _BLEU_ORDER for reference in references):
        return None
    return _score(metric, outputs, references)


def check_tokenizer(tokenize: str | None) -> None:
    """Notice early what would only fail when everything is done.

    Raises:
        ValueError: sacrebleu does not know the tokenizer or cannot load it.
        ModuleNotFoundError: sacrebleu is not installed.
    """
    _metric(tokenize)


def _metric(tokenize: str | None) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(tokenize=tokenize)
    except Exception as error:
        # sacrebleu raises its own kinds for a tokenizer it does not know or cannot load.
        names = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(
            f"tokenize: sacrebleu cannot use {tokenize!r} ({error}); it has {names}"
        ) from error


def chrf(outputs: Sequence[str], references: Sequence[str]) -> TranslationScore:
    """Corpus chrF2: character n-grams up to six."""
    from sacrebleu.metrics.chrf import CHRF

    _check(outputs, references)
    return _score(CHRF(), outputs, references)


def _check(outputs: Sequence[str], references: Sequence[str]) -> None:
    if len(outputs) != len(references) or not outputs:
        raise ValueError(
            "outputs, references: expected one length above 0, "
            f"got {len(outputs)} and {len(references)}"
        )


def _score(metric: object, outputs: Sequence[str], references: Sequence[str]) -> TranslationScore:
    result = metric.corpus_score(list(outputs), [list(references)])  # type: ignore[attr-defined]
    signature = str(metric.get_signature())  # type: ignore[attr-defined]
    return TranslationScore(float(result.score), signature)
