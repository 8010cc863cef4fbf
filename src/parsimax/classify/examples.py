r"""Labelled texts from JSON lines or tables.

A line is ``{"text": "a fine film", "label": 1}``, in which the text may also be a list of tokens,
or ``label TAB text``. A table whose first line names its columns, ``label`` and ``text`` or
``sentence``, may have them in any order. Files may be plain or compressed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parsimax._runs import files
from parsimax._runs.bad_rows import BadRow, BadRows, DataError

Format = Literal["auto", "json", "tsv"]

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_TEXT_COLUMNS = ("text", "sentence")


@dataclass(frozen=True)
class Example:
    """A text as tokens, its label as it is written, and where it stands."""

    words: tuple[str, ...]
    label: str | None
    path: str
    line: int


@dataclass(frozen=True)
class Examples:
    """What files hold, and what of it was left out."""

    examples: tuple[Example, ...]
    skipped: int = 0  # rows that cannot be read
    too_short: int = 0
    too_long: int = 0

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def remarks(self) -> str:
        """What was left out, for a person; empty if nothing was."""
        counts = (
            (self.skipped, "bad rows"),
            (self.too_short, "too short"),
            (self.too_long, "too long"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in counts if count)

    def left_out(self) -> dict[str, int]:
        """The same as counts by name."""
        return {
            "bad_rows": self.skipped,
            "too_short": self.too_short,
            "too_long": self.too_long,
        }


@dataclass(frozen=True)
class Tokenizer:
    """From a text to tokens.

    >>> Tokenizer("words", lowercase=True)("It's fine, isn't it?")
    ("it's", 'fine', ',', "isn't", 'it', '?')
    """

    tokens: Literal["whitespace", "words"] = "whitespace"
    lowercase: bool = False

    def __call__(self, text: str) -> tuple[str, ...]:
        """The tokens of a text."""
        text = text.lower() if self.lowercase else text
        return tuple(text.split() if self.tokens == "whitespace" else _WORD.findall(text))


def read(
    paths: Iterable[str | Path],
    tokenizer: Tokenizer | None = None,
    *,
    format: Format = "auto",
    min_length: int = 1,
    max_length: int | None = None,
    too_long: Literal["drop", "cut"] = "drop",
    labelled: bool = True,
    skip_bad: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Examples:
    """Read all texts of some files.

    Args:
        paths: Files, folders or globs.
        tokenizer: How texts become tokens; by default at white space.
        format: Of every file, or ``auto``, by its first line.
        min_length: Texts of fewer tokens are left out and counted.
        max_length: Longer ones are left out and counted, or cut.
        too_long: Which of both.
        labelled: Whether a row without a label is bad.
        skip_bad: Count rows that cannot be read; otherwise they are an error that lists them.
        progress: Told how many rows there were so far.
    """
    tokenize = tokenizer or Tokenizer()
    bad, kept, short, long, rows = BadRows(), [], 0, 0, 0
    for path in files.find(paths):
        for row in _rows(path, format, tokenize, labelled):
            rows += 1
            if progress is not None and rows % 1000 == 0:
                progress(rows)
            if isinstance(row, BadRow):
                bad.add(row)
            elif len(row.words) < min_length:
                short += 1
            elif max_length is not None and len(row.words) > max_length:
                if too_long == "cut":
                    kept.append(Example(row.words[:max_length], row.label, row.path, row.line))
                else:
                    long += 1
            else:
                kept.append(row)
    if bad.count and not skip_bad:
        raise bad.error()
    return Examples(tuple(kept), bad.count, short, long)


def check_some(found: Examples, what: str) -> None:
    """Refuse an empty set.

    Raises:
        DataError: there is no text, with what became of the rows.
    """
    if not found.examples:
        raise DataError(f"{what} has no text left: {found.remarks() or 'the files are empty'}")


def _rows(
    path: Path, format: Format, tokenize: Tokenizer, labelled: bool
) -> Iterator[Example | BadRow]:
    parse: Callable[[str], tuple[object, object]] | None = None
    for number, line in files.read_lines(path):
        if isinstance(line, BadRow):
            yield line
            continue
        if not line.strip():
            continue  # such as the last line of many files
        if parse is None:
            kind = format if format != "auto" else _guess(line)
            columns = _header(line) if kind == "tsv" else None
            parse = _json if kind == "json" else _table(*(columns or (0, 1)))
            if columns is not None:
                continue
        try:
            text, label = parse(line)
            yield Example(_tokens(text, tokenize), _label(label, labelled), str(path), number)
        except ValueError as error:
            yield BadRow(str(path), number, str(error))


def _guess(line: str) -> Literal["json", "tsv"]:
    return "json" if line.lstrip().startswith("{") else "tsv"


def _header(line: str) -> tuple[int, int] | None:
    """Where label and text stand, if the line names them."""
    names = [name.strip().lower() for name in line.split("\t")]
    texts = [name for name in _TEXT_COLUMNS if name in names]
    return (names.index("label"), names.index(texts[0])) if texts and "label" in names else None


def _json(line: str) -> tuple[object, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(row, dict) or "text" not in row:
        raise ValueError('expected an object such as {"text": "a fine film", "label": 1}')
    return row["text"], row.get("label")


def _table(label: int, text: int) -> Callable[[str], tuple[object, object]]:
    def parse(line: str) -> tuple[object, object]:
        columns = line.split("\t")
        if len(columns) <= max(label, text):
            raise ValueError(f"expected 'label TAB text', got {len(columns)} column")
        if (label, text) == (0, 1) and len(columns) > 2:
            raise ValueError(f"expected 'label TAB text', got {len(columns)} columns")
        return columns[text], columns[label]

    return parse


def _tokens(text: object, tokenize: Tokenizer) -> tuple[str, ...]:
    if isinstance(text, str):
        return tokenize(text)
    if isinstance(text, list) and all(isinstance(token, str) for token in text):
        return tuple(token.lower() if tokenize.lowercase else token for token in text)
    raise ValueError(f"text must be a string or a list of tokens, got {_shown(text)}")


def _label(label: object, labelled: bool) -> str | None:
    if isinstance(label, str):
        label = label.strip()
    if label is None or label == "":
        if labelled:
            raise ValueError("the text has no label")
        return None
    if isinstance(label, int | str) and not isinstance(label, bool):
        return str(label)
    raise ValueError(f"label must be a whole number or a name, got {_shown(label)}")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def label_names(examples: Sequence[Example]) -> tuple[str, ...]:
    """All labels, as numbers in their order if all are numbers.

    >>> label_names([Example((), label, "", 0) for label in ("10", "9", "9")])
    ('9', '10')
    """
    names = {example.label for example in examples if example.label is not None}
    try:
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(names))
