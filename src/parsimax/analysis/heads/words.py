"""From pieces of words back to words: which tokens belong together, by the marks they carry."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parsimax._core.validation import check_choice

Marks = Literal["auto", "none", "▁", "Ġ", "##", "@@", "~", "</w>"]

_STARTS = ("▁", "Ġ")  # on the first piece of a word
_GOES_ON = ("@@", "~")  # on every piece but the last
_ENDS = "</w>"  # on the last piece
_INNER = "##"  # on every piece but the first
_MARKS = ("auto", "none", *_STARTS, _INNER, *_GOES_ON, _ENDS)

# What joins two parts of one word when nothing stands between them.
_HYPHENS = frozenset("-‐‑")
_APOSTROPHES = frozenset("'’")

_SPECIAL = re.compile(r"<(?!/w>)[^<>\s]+>|\[[A-Z]+[0-9]*\]")


@dataclass(frozen=True)
class Word:
    """Tokens that make up one word, one behind the other, and its text without marks."""

    start: int
    stop: int
    text: str

    def __len__(self) -> int:
        return self.stop - self.start


def is_special(token: str) -> bool:
    """Whether a token is no text: ``<eos>``, ``[CLS]``, ``</s>``, ``<lang:de>`` and the like."""
    return _SPECIAL.fullmatch(token) is not None


def find_marks(tokens: Sequence[str]) -> Marks:
    """The marks that tokens carry, or ``none`` if none is known."""
    text = [token for token in tokens if not is_special(token)]
    for mark in _STARTS:
        if any(token.startswith(mark) for token in text):
            return mark  # type: ignore[return-value]
    if any(token.startswith(_INNER) and len(token) > 2 for token in text):
        return "##"
    for mark in (*_GOES_ON, _ENDS):
        if any(token.endswith(mark) and len(token) > len(mark) for token in text):
            return mark  # type: ignore[return-value]
    return "none"


def words(tokens: Sequence[str], marks: Marks = "auto") -> list[Word]:
    """Words of a sentence; special tokens belong to none.

    Punctuation is a word of its own, but a hyphen or an apostrophe inside a word is part of it.

    Args:
        tokens: of a sentence.
        marks: how pieces are marked: ``▁`` or ``Ġ`` before the first of a word, ``##`` before
            all others, ``@@`` or ``~`` after all but the last, ``</w>`` after the last; ``none``
            if each token is a word. ``auto`` looks.

    >>> [word.text for word in words(["▁the", "▁bal", "lo", "on", "s", ",", "▁well", "-", "lit"])]
    ['the', 'balloons', ',', 'well-lit']
    """
    check_choice(marks, "marks", _MARKS)
    known = find_marks(tokens) if marks == "auto" else marks
    joined: list[Word] = []
    glued = [_glued(tokens, place, known) for place in range(len(tokens))]
    for place, token in enumerate(tokens):
        if is_special(token):
            continue
        text = bare(token, known)
        last = joined[-1] if joined else None
        goes_on = (
            last is not None
            and last.stop == place
            and glued[place]
            and not (_punctuation(text) and not _inside(tokens, place, glued, known))
            and not (_punctuation(last.text[-1:]) and not _joins(last.text))
        )
        if goes_on and last is not None:
            joined[-1] = Word(last.start, place + 1, last.text + text)
        else:
            joined.append(Word(place, place + 1, text))
    return joined


def bare(token: str, marks: Marks = "auto") -> str:
    """A token without its marks."""
    known = find_marks([token]) if marks == "auto" else marks
    if known in (*_STARTS, _INNER):
        return token.removeprefix(known)
    if known in (*_GOES_ON, _ENDS):
        return token.removesuffix(known)
    return token


def _glued(tokens: Sequence[str], place: int, marks: Marks) -> bool:
    """Whether no space stands between a token and the one before it."""
    if place == 0:
        return False
    before, token = tokens[place - 1], tokens[place]
    if is_special(before) or is_special(token):
        return False
    if marks in _STARTS:
        return not token.startswith(marks)
    if marks == _INNER:
        # Punctuation is cut off without a mark, so nothing tells "well-lit" from "well - lit".
        return token.startswith(_INNER) or token in _HYPHENS or before in _HYPHENS
    if marks in _GOES_ON:
        return before.endswith(marks) and len(before) > len(marks)
    if marks == _ENDS:
        return not before.endswith(_ENDS)
    return False


def _inside(tokens: Sequence[str], place: int, glued: Sequence[bool], marks: Marks) -> bool:
    """Whether a hyphen or an apostrophe has letters of the same word on both sides."""
    text = bare(tokens[place], marks)
    if not set(text) <= _HYPHENS | _APOSTROPHES:
        return False
    after = place + 1
    return (
        glued[place]
        and after < len(tokens)
        and glued[after]
        and not _punctuation(bare(tokens[after], marks))
    )


def _joins(text: str) -> bool:
    """Whether a word's last sign is one that joins, with letters before it."""
    return len(text) > 1 and text[-1] in _HYPHENS | _APOSTROPHES


def _punctuation(text: str) -> bool:
    return bool(text) and all(unicodedata.category(sign)[0] in "PS" for sign in text)
