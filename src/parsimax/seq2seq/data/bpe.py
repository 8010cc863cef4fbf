"""Pieces of words by byte pair encoding, of the ``tokenizers`` library.

A space becomes ``▁`` and goes to the front of the word after it, as does one before the text;
punctuation stands alone. Joined pieces therefore give back the text, spaces and all, but for
characters that were not seen in training, which become ``<unk>``, and for a ``▁`` of the text,
which becomes a space.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .symbols import NAMES, UNK

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MARK = "▁"


class BPE:
    """Pieces that were learned from text; :func:`learn` makes one."""

    kind = "bpe"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        numbers = tokenizer.get_vocab(with_added_tokens=False)
        self._names = {number: piece for piece, number in numbers.items()}

    @property
    def pieces(self) -> tuple[str, ...]:
        """All there are: characters first, then what was merged, in the order it was learned."""
        listed = (self._names[number] for number in sorted(self._names))
        return tuple(piece for piece in listed if piece != NAMES[UNK])

    def split(self, text: str) -> list[str]:
        """The pieces of a text."""
        return self.split_many([text])[0]

    def split_many(self, texts: Sequence[str]) -> list[list[str]]:
        """The pieces of each text."""
        _say_forks_are_safe()
        encoded = self._tokenizer.encode_batch_fast(list(texts))  # it has numbers, not pieces
        return [[self._names[number] for number in one.ids] for one in encoded]

    def join(self, symbols: Iterable[str]) -> str:
        """The text of pieces."""
        return "".join(symbols).replace(_MARK, " ").removeprefix(" ")

    def to_json(self) -> dict[str, Any]:
        """The kind, and the tokenizer as its library writes it."""
        return {"kind": self.kind, "tokenizer": json.loads(self._tokenizer.to_str())}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> BPE:
        """What :meth:`to_json` gave."""
        return cls(_library().Tokenizer.from_str(json.dumps(saved["tokenizer"])))


def learn(
    texts: Iterable[str], size: int, *, min_count: int = 2, alphabet: int | None = None
) -> BPE:
    """Learn pieces from texts, which are gone through once.

    Args:
        texts: what to learn from.
        size: of the vocabulary, with the four symbols that every vocabulary begins with. There
            are fewer when the texts have no more pairs to merge.
        min_count: pairs seen less often are not merged.
        alphabet: how many different characters to keep, the most frequent; all if None.
    """
    library = _library()
    _say_forks_are_safe()
    if alphabet is not None and not 0 < alphabet <= size - len(NAMES):
        raise ValueError(
            f"alphabet must be at least 1 and leave room in size={size}, got {alphabet}"
        )
    tokenizer = library.Tokenizer(library.models.BPE(unk_token=NAMES[UNK]))
    tokenizer.normalizer = library.normalizers.Sequence(
        [library.normalizers.Replace(" ", _MARK), library.normalizers.Prepend(_MARK)]
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(
        [
            library.pre_tokenizers.Metaspace(_MARK, prepend_scheme="never", split=True),
            library.pre_tokenizers.Punctuation("isolated"),
        ]
    )
    limit = {} if alphabet is None else {"limit_alphabet": alphabet}
    trainer = library.trainers.BpeTrainer(
        vocab_size=size - len(NAMES) + 1,
        min_frequency=min_count,
        special_tokens=[NAMES[UNK]],
        show_progress=False,
        **limit,
    )
    tokenizer.train_from_iterator(_in_lists(texts), trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = []  # or "<unk>" in a text would be cut out before all else
    learned = BPE.from_json({"kind": "bpe", "tokenizer": saved})
    characters = sum(len(piece) == 1 for piece in learned.pieces)
    if len(learned.pieces) + len(NAMES) > size:
        raise ValueError(
            f"size={size} has no room for the {characters:,} different characters of the text; "
            f"make it larger than {characters + len(NAMES):,}, or keep only the most frequent "
            "characters with alphabet"
        )
    return learned


def _in_lists(texts: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    """The library is faster when given many texts at once."""
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == size:
            yield chunk
            chunk = []
    yield chunk


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError(
            "segmentation 'bpe' needs the package tokenizers, which is not installed; "
            "install parsimax[train]"
        ) from error
    return tokenizers


def _say_forks_are_safe() -> None:
    """Data workers, forked later, split no text: spare the user the library's warning."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
