"""Words and labels, and their numbers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from parsimax._runs.bad_rows import DataError
from parsimax._runs.facts import replace

PAD, UNKNOWN = 0, 1
NAMES = ("<pad>", "<unk>")  # what the first two numbers stand for; no word of a text is one of them


@dataclass(frozen=True)
class Vocabulary:
    """Words from number 2 on, after padding and the unknown word; labels from number 0 on.

    >>> vocabulary = Vocabulary(("film", "fine"), ("bad", "good"))
    >>> vocabulary.encode(["a", "fine", "film"]), vocabulary.label("good")
    ([1, 3, 2], 1)
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(
        cls,
        texts: Iterable[Sequence[str]],
        labels: Sequence[str],
        *,
        min_documents: int = 1,
        max_words: int | None = None,
    ) -> Vocabulary:
        """The words of some texts, those of the most texts first.

        Args:
            texts: The training texts, as tokens.
            labels: Names of the classes.
            min_documents: A word of fewer texts is unknown.
            max_words: At most so many words.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(set(text))
        kept = [word for word, count in counts.items() if count >= min_documents]
        kept.sort(key=lambda word: (-counts[word], word))
        return cls(tuple(kept[:max_words]), tuple(labels))

    def __len__(self) -> int:
        return len(NAMES) + len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words, start=len(NAMES))}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words."""
        get = self.index.get
        return [get(word, UNKNOWN) for word in words]

    def label(self, name: str) -> int:
        """The number of a label.

        Raises:
            ValueError: it is not one of this vocabulary's.
        """
        try:
            return self.labels.index(name)
        except ValueError:
            listed = ", ".join(self.labels[:20])
            raise ValueError(f"label {name!r} is none of the model's, which are {listed}") from None

    def word(self, number: int) -> str:
        """The word of a number."""
        return NAMES[number] if number < len(NAMES) else self.words[number - len(NAMES)]

    @property
    def fingerprint(self) -> str:
        """A hash of words and labels in their order."""
        return hashlib.sha256(json.dumps([self.words, self.labels]).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        values = {"labels": self.labels, "words": self.words}
        replace(path, json.dumps(values, ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """What :meth:`save` wrote."""
        try:
            values: Any = json.loads(path.read_text(encoding="utf-8"))
            return cls(tuple(values["words"]), tuple(values["labels"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a vocabulary that parsimax wrote: {error}") from error
