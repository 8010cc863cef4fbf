"""Symbols and their numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from .symbols import NAMES, UNK


class Vocabulary:
    """Symbols by number and numbers by symbol; the first are always :data:`symbols.NAMES`.

    >>> vocabulary = Vocabulary(["a", "b"])
    >>> len(vocabulary), vocabulary.index("b"), vocabulary.index("z"), vocabulary.symbols([4, 5])
    (6, 5, 3, ('a', 'b'))
    """

    def __init__(self, symbols: Iterable[str]) -> None:
        listed = tuple(symbols)
        if listed[: len(NAMES)] != NAMES:
            listed = NAMES + listed
        self._symbols = listed
        self._index = {symbol: number for number, symbol in enumerate(listed)}
        if len(self._index) != len(listed):
            seen: set[str] = set()
            twice = next(s for s in listed if s in seen or seen.add(s))  # type: ignore[func-returns-value]
            raise ValueError(
                f"symbols must differ from each other and from {NAMES}, got {twice!r} twice"
            )
        # text that looks like a name, such as <eos>, is not one
        self.of_text: Mapping[str, int] = {
            symbol: number for symbol, number in self._index.items() if number >= len(NAMES)
        }

    @classmethod
    def of_counts(
        cls,
        counts: Mapping[str, int],
        *,
        size: int | None = None,
        min_count: int = 1,
        always: Iterable[str] = (),
    ) -> Vocabulary:
        """The most frequent symbols first; equally frequent ones in the order of their characters.

        Args:
            counts: how often each symbol was seen.
            size: of the whole vocabulary at most, with the names it begins with.
            min_count: symbols seen less often are left out.
            always: symbols that are kept and come first.
        """
        kept = list(dict.fromkeys(always))
        named = {*NAMES, *kept}
        rest = [s for s, n in counts.items() if n >= min_count and s not in named]
        rest.sort(key=lambda symbol: (-counts[symbol], symbol))
        if size is not None:
            room = size - len(NAMES) - len(kept)
            if room < 1:
                raise ValueError(
                    f"size of a vocabulary must leave room for text: {len(NAMES) + len(kept)} "
                    f"symbols are needed before the first of it, got size={size}"
                )
            rest = rest[:room]
        return cls(NAMES + tuple(kept) + tuple(rest))

    def __len__(self) -> int:
        return len(self._symbols)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._symbols == other._symbols

    def __hash__(self) -> int:
        return hash(self._symbols)

    def index(self, symbol: str) -> int:
        """The number of a symbol; that of ``<unk>`` if it is not in the vocabulary."""
        return self._index.get(symbol, UNK)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        """Numbers of symbols that come from text, where ``<eos>`` is not the end but unknown."""
        get = self.of_text.get
        return [get(symbol, UNK) for symbol in symbols]

    def symbols(self, ids: Iterable[int] | None = None) -> tuple[str, ...]:
        """The symbols of some numbers, or all."""
        if ids is None:
            return self._symbols
        listed = [int(number) for number in ids]
        for number in listed:
            if not 0 <= number < len(self._symbols):
                raise ValueError(
                    f"ids must lie in [0, {len(self._symbols) - 1}], the vocabulary's numbers, "
                    f"got {number}"
                )
        return tuple(self._symbols[number] for number in listed)

    @property
    def fingerprint(self) -> str:
        """A hash of the symbols in their order."""
        return hashlib.sha256(json.dumps(self._symbols).encode()).hexdigest()

    def to_json(self) -> list[str]:
        """The symbols, as JSON has them."""
        return list(self._symbols)

    @classmethod
    def from_json(cls, symbols: Sequence[str]) -> Vocabulary:
        """What :meth:`to_json` gave."""
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise TypeError("a vocabulary must be a list of text")
        if tuple(symbols[: len(NAMES)]) != NAMES:
            raise ValueError(
                f"a vocabulary begins with {NAMES}, and this one begins with "
                f"{tuple(symbols[: len(NAMES)])}"
            )
        return cls(symbols)
