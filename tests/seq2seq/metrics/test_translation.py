"""BLEU and chrF are sacrebleu's, and say so."""

from __future__ import annotations

import math

import pytest

from parsimax.seq2seq.metrics.translation import bleu, chrf


def test_bleu_by_hand() -> None:
    """One sentence, one word too few: all n-grams match, and only the brevity penalty counts."""
    score = bleu(["a b c d e"], ["a b c d e f"])
    assert score is not None
    assert score.score == pytest.approx(100 * math.exp(1 - 6 / 5), abs=1e-6)
    assert "version:" in score.signature
    assert "tok:13a" in score.signature


def test_tokenizer_is_in_the_signature() -> None:
    score = bleu(["一二三四五"], ["一二三四五"], tokenize="char")
    assert score is not None
    assert score.score == pytest.approx(100)
    assert "tok:char" in score.signature


def test_no_bleu_of_words() -> None:
    assert bleu(["went"], ["went"]) is None


def test_chrf_of_a_copy_and_of_nothing() -> None:
    assert chrf(["went"], ["went"]).score == pytest.approx(100)
    assert chrf([""], ["went"]).score == 0
    assert chrf(["went"], ["went"]).signature.startswith("nrefs:1|")


def test_unknown_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"cannot use 'nonsense'.*it has .*13a"):
        bleu(["a b c d"], ["a b c d"], tokenize="nonsense")


def test_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="got 1 and 2"):
        chrf(["a"], ["a", "b"])
