"""Words and their scores, for pictures that need no trained model."""

import math
from dataclasses import dataclass
from string import ascii_lowercase

DEFAULT_SENTENCE = "the pilot of the plane saw a storm above the quiet bay"
MIN_WORDS, MAX_WORDS = 2, 24
_LONGEST_LABEL = 12

# How often each letter, from a to z, occurs in English text, in percent.
_FREQUENCIES = """
    8.17 1.29 2.78 4.25 12.70 2.23 2.02 6.09 6.97 0.15 0.77 4.03 2.41
    6.75 7.51 1.93 0.10 5.99 6.33 9.06 2.76 0.98 2.36 0.15 1.97 0.07
"""
_LETTER_PERCENT = dict(zip(ascii_lowercase, map(float, _FREQUENCIES.split()), strict=True))
_OTHER_PERCENT = 1.0  # a letter that English does not have


@dataclass(frozen=True)
class ScoredSentence:
    """A sentence and one score a word, the input of every mapping on the page."""

    words: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The words, cut where a picture would have no room for them."""
        longest = _LONGEST_LABEL
        return tuple(w if len(w) <= longest else w[: longest - 1] + "…" for w in self.words)


def score_sentence(sentence: str) -> ScoredSentence:
    """Score each word by the information of its letters, scaled to mean 0 and deviation 1.

    The information of a letter is −log₂ of its frequency in English, so long words of rare letters
    score high and short common words score low: a stand-in for the scores of a trained model that
    anyone can recompute.

    >>> scored = score_sentence("the quick fox")
    >>> max(zip(scored.scores, scored.words))[1]
    'quick'

    Raises:
        ValueError: the sentence has fewer than 2 or more than 24 words.
    """
    words = tuple(sentence.split())
    if not MIN_WORDS <= len(words) <= MAX_WORDS:
        raise ValueError(
            f"sentence: expected {MIN_WORDS} to {MAX_WORDS} words, got {len(words)}: {sentence!r}"
        )
    bits = [_information(word) for word in words]
    mean = math.fsum(bits) / len(bits)
    deviation = math.sqrt(math.fsum((b - mean) ** 2 for b in bits) / len(bits))
    scale = deviation if deviation > 0 else 1.0
    return ScoredSentence(words, tuple((b - mean) / scale for b in bits))


def _information(word: str) -> float:
    """Bits in the letters of a word; signs and digits carry none."""
    letters = [letter for letter in word.lower() if letter.isalpha()]
    percents = [_LETTER_PERCENT.get(letter, _OTHER_PERCENT) for letter in letters]
    return math.fsum(-math.log2(percent / 100) for percent in percents)


def score_pairs(sentence: ScoredSentence) -> tuple[tuple[float, ...], ...]:
    """Scores (word that reads, word that is read): a word looks around itself, and at rich words.

    Like the scores of the words, a stand-in for a model that anyone can recompute: the score of the
    word that is read, plus 3 at the reader's own place, a little less around it.
    """
    return tuple(
        tuple(
            score / 2 + 3 / (1 + ((reader - place) / 2) ** 2)
            for place, score in enumerate(sentence.scores)
        )
        for reader in range(len(sentence.words))
    )
