"""From text to symbols and back: characters, words or pieces of words.

A character is a code point, and a space the symbol ``<space>``. Words are what stands between white
space, which comes back as single spaces. Neither they nor pieces of words change the text
otherwise: no case is folded and nothing is normalised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

SPACE = "<space>"
KINDS = ("characters", "words", "bpe")


class Segmentation(Protocol):
    """Turns text into symbols and symbols into text."""

    @property
    def kind(self) -> str:
        """One of :data:`KINDS`."""

    def split(self, text: str) -> list[str]:
        """The symbols of a text."""

    def split_many(self, texts: Sequence[str]) -> list[list[str]]:
        """The symbols of each text; where there are many this is faster than one by one."""

    def join(self, symbols: Iterable[str]) -> str:
        """The text of symbols."""

    def to_json(self) -> dict[str, Any]:
        """All there is to know, as JSON has it; :func:`from_json` reads it."""


class Characters:
    """Every code point is a symbol.

    >>> Characters().split("an e")
    ['a', 'n', '<space>', 'e']
    """

    kind = "characters"

    def split(self, text: str) -> list[str]:
        """The characters of a text."""
        return [SPACE if c == " " else c for c in text] if " " in text else list(text)

    def split_many(self, texts: Sequence[str]) -> list[list[str]]:
        """The characters of each text."""
        return [self.split(text) for text in texts]

    def join(self, symbols: Iterable[str]) -> str:
        """The text of characters."""
        return "".join([" " if symbol == SPACE else symbol for symbol in symbols])

    def to_json(self) -> dict[str, Any]:
        """Only what kind it is."""
        return {"kind": self.kind}


class Words:
    """What stands between white space is a symbol.

    >>> Words().split("a man , a plan")
    ['a', 'man', ',', 'a', 'plan']
    """

    kind = "words"

    def split(self, text: str) -> list[str]:
        """The words of a text."""
        return text.split()

    def split_many(self, texts: Sequence[str]) -> list[list[str]]:
        """The words of each text."""
        return [text.split() for text in texts]

    def join(self, symbols: Iterable[str]) -> str:
        """Words with single spaces between them."""
        return " ".join(symbols)

    def to_json(self) -> dict[str, Any]:
        """Only what kind it is."""
        return {"kind": self.kind}


def from_json(saved: dict[str, Any]) -> Segmentation:
    """What a segmentation's ``to_json`` gave."""
    if not isinstance(saved, dict):
        raise TypeError(f"a segmentation must be an object, got {type(saved).__name__}")
    kind = saved.get("kind")
    if kind == "characters":
        return Characters()
    if kind == "words":
        return Words()
    if kind == "bpe":
        from .bpe import BPE

        return BPE.from_json(saved)
    raise ValueError(f"kind of a segmentation must be one of {', '.join(KINDS)}, got {kind!r}")
