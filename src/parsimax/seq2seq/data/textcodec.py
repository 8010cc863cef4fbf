"""What a run knows about text: how it is split into symbols, and which symbols there are.

The source of an inflection is its language (``<lang:english>``, if the model is of more than one),
its tags (``<tag:PST>``) and the symbols of the lemma. Everything else is the symbols of its text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from parsimax._core.validation import check_choice, nearest

from . import segmentation
from .readers import ALL, Example, Reader
from .segmentation import KINDS, Segmentation
from .sources import parse_source
from .symbols import BOS, EOS, NAMES, PAD, UNK
from .vocabulary import Vocabulary

Part = TypeVar("Part")

_CHUNK = 4096  # examples that are split at once


@dataclass(frozen=True)
class CodecSettings:
    """How text becomes symbols; plain values, as a config file writes them.

    Args:
        source: ``characters``, ``words`` or ``bpe``; and ``target`` likewise.
        joint: one segmentation and one vocabulary for both sides, which can then share embeddings.
        source_size: of the vocabulary, with the four symbols it begins with: at most for
            characters and words, where None has no limit; as many as there will be for ``bpe``,
            where None is 8,000. With ``joint`` only ``source_size`` counts.
        min_count: symbols that are seen less often are left out, and pairs that are seen less
            often, or only once, are not merged by ``bpe``.
        alphabet: of ``bpe``, how many different characters to keep; all if None.
        sample: of how many examples ``bpe`` is learned, which are evenly spread; None for all.
    """

    source: str = "characters"
    target: str = "characters"
    joint: bool = False
    source_size: int | None = None
    target_size: int | None = None
    min_count: int = 1
    alphabet: int | None = None
    sample: int | None = 1_000_000

    def __post_init__(self) -> None:
        check_choice(self.source, "source", KINDS)
        check_choice(self.target, "target", KINDS)
        if self.joint and self.source != self.target:
            raise ValueError(
                "joint needs the same segmentation for source and target, "
                f"got source={self.source!r} and target={self.target!r}"
            )
        if self.joint and self.target_size not in (None, self.source_size):
            raise ValueError(
                "joint has one vocabulary, whose size is source_size, "
                f"got target_size={self.target_size}"
            )
        for name in ("source_size", "target_size", "min_count", "alphabet", "sample"):
            value = getattr(self, name)
            least = len(NAMES) + 1 if name.endswith("_size") else 1
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )


class Encoded(NamedTuple):
    """An example and its numbers; those of the target are without ``EOS``."""

    example: Example
    source: list[int]
    target: list[int]


class TextCodec:
    """Text to numbers and back. :meth:`learn` makes one from examples, :meth:`load` reads one.

    Args:
        format: of the examples, one of :data:`readers.FORMATS`.
        source: segmentation and vocabulary of the source; and ``target`` likewise. The same pair
            for both means that they are joint.
        languages: those that have a symbol in the source; none if there was only one.
    """

    def __init__(
        self,
        format: str,
        source: tuple[Segmentation, Vocabulary],
        target: tuple[Segmentation, Vocabulary],
        languages: Sequence[str] = (),
    ) -> None:
        self.format = format
        self.source_segmentation, self.source_vocabulary = source
        self.target_segmentation, self.target_vocabulary = target
        self.joint = source[1] is target[1]
        self.languages = tuple(languages)

    @classmethod
    def learn(
        cls,
        reader: Reader,
        settings: CodecSettings | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> TextCodec:
        """Learn vocabularies, and with ``bpe`` the pieces, from examples one at a time.

        Args:
            reader: what to learn from; gone through once, and once more for each side of ``bpe``.
            settings: how.
            progress: is told now and then how many examples were read.
        """
        settings = settings or CodecSettings()
        counts = _Counts(settings)
        for number, example in enumerate(reader, 1):
            counts.add(example)
            if progress and number % _CHUNK == 0:
                progress(number)
        languages = sorted(counts.languages) if reader.format == "inflection" else []
        if len(languages) == 1:
            languages = []
        marks = [_language(name) for name in languages]
        marks += sorted(_tag(tag) for tag, n in counts.tags.items() if n >= settings.min_count)
        step = -(-counts.examples // (settings.sample or counts.examples))
        sources = (example.source for example in islice(reader, 0, None, step))
        targets = (example.target or "" for example in islice(reader, 0, None, step))
        learn = partial(_learn_side, settings)
        if settings.joint:
            texts = chain(sources, targets)
            pair = learn(settings.source, counts.source, texts, settings.source_size, marks)
            return cls(reader.format, pair, pair, languages)
        return cls(
            reader.format,
            learn(settings.source, counts.source, sources, settings.source_size, marks),
            learn(settings.target, counts.target, targets, settings.target_size),
            languages,
        )

    def encode_source(self, source: Example | str) -> list[int]:
        """Numbers of a source; text is read as :mod:`sources` says."""
        example = parse_source(source, self.format) if isinstance(source, str) else source
        if why := self.refusal(example):
            raise ValueError(why)
        text = self.source_segmentation.split(example.source)
        return self._marks(example) + self.source_vocabulary.encode(text)

    def encode_target(self, target: Example | str) -> list[int]:
        """Numbers of a target's text, without ``EOS``."""
        text = target.target if isinstance(target, Example) else target
        if text is None:
            raise ValueError("the example must have a target, got None")
        return self.target_vocabulary.encode(self.target_segmentation.split(text))

    def encode(self, examples: Iterable[Example]) -> Iterator[Encoded]:
        """Each example with its numbers; of many at once, and so faster than one by one."""
        stream = iter(examples)
        while chunk := list(islice(stream, _CHUNK)):
            sources = self.source_segmentation.split_many([e.source for e in chunk])
            targets = self.target_segmentation.split_many([e.target or "" for e in chunk])
            for example, source, target in zip(chunk, sources, targets, strict=True):
                yield Encoded(
                    example,
                    self._marks(example) + self.source_vocabulary.encode(source),
                    self.target_vocabulary.encode(target),
                )

    def decode_target(self, ids: Iterable[int]) -> str:
        """The text of target numbers: up to ``EOS`` if there is one, without padding."""
        return self.target_segmentation.join(self.target_vocabulary.symbols(_spoken(ids)))

    def source_symbols(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The symbols of source numbers."""
        return self.source_vocabulary.symbols(ids)

    def target_symbols(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The symbols of target numbers."""
        return self.target_vocabulary.symbols(ids)

    def refusal(self, example: Example) -> str:
        """Why a source cannot be encoded, or nothing if it can: its language must be known."""
        if not self.languages or example.group in self.languages:
            return ""
        some = ", ".join(self.languages[:5]) + (", ..." if len(self.languages) > 5 else "")
        known = f"the {len(self.languages)} languages of the model ({some})"
        if example.group == ALL:
            return f"the language must be given, one of {known}"
        return f"language {example.group!r} is not among {known}" + nearest(
            example.group, self.languages
        )

    def _marks(self, example: Example) -> list[int]:
        if self.format != "inflection":
            return []
        get = self.source_vocabulary.of_text.get
        marks = [get(_tag(tag), UNK) for tag in example.tags]
        return [get(_language(example.group), UNK), *marks] if self.languages else marks

    # --- files ------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """A hash of everything: codecs of the same fingerprint give the same numbers."""
        return hashlib.sha256(json.dumps(self._parts(), sort_keys=True).encode()).hexdigest()

    def _parts(self) -> dict[str, Any]:
        sides = ["source"] if self.joint else ["source", "target"]
        parts: dict[str, Any] = {
            "codec": {"format": self.format, "joint": self.joint, "languages": self.languages}
        }
        for side in sides:
            parts[f"{side}_segmentation"] = getattr(self, f"{side}_segmentation").to_json()
            parts[f"{side}_vocabulary"] = getattr(self, f"{side}_vocabulary").to_json()
        return parts

    def save(self, folder: str | Path) -> None:
        """Write JSON files into a folder, ``codec.json`` last: without it there is no codec."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = self._parts()
        codec = parts.pop("codec") | {"fingerprint": self.fingerprint}
        for name, part in [*parts.items(), ("codec", codec)]:
            partial = folder / f".{name}.{os.getpid()}.partial"
            partial.write_text(json.dumps(part, ensure_ascii=False, indent=1) + "\n", "utf-8")
            partial.replace(folder / f"{name}.json")

    @classmethod
    def load(cls, folder: str | Path) -> TextCodec:
        """Read what :meth:`save` wrote."""
        folder = Path(folder)
        codec = _part(folder / "codec.json", _check_codec)
        sides = [
            (
                _part(folder / f"{side}_segmentation.json", segmentation.from_json),
                _part(folder / f"{side}_vocabulary.json", Vocabulary.from_json),
            )
            for side in (["source"] if codec["joint"] else ["source", "target"])
        ]
        loaded = cls(codec["format"], sides[0], sides[-1], codec["languages"])
        same = loaded.fingerprint == codec["fingerprint"]
        if not same:
            raise ValueError(
                f"{folder}: the files do not belong together, or were changed: what they say does "
                "not have the fingerprint in codec.json; take them all from the same run"
            )
        return loaded


# what is counted; pieces are learned later
_SPLITS: dict[str, Callable[[str], Iterable[str]]] = {
    "characters": iter,
    "words": str.split,
    "bpe": lambda text: (),
}


class _Counts:
    """How often symbols, tags and languages were seen."""

    def __init__(self, settings: CodecSettings) -> None:
        self.source: Counter[str] = Counter()
        self.target = self.source if settings.joint else Counter[str]()
        self.tags: Counter[str] = Counter()
        self.languages: set[str] = set()
        self.examples = 0
        self._split_source = _SPLITS[settings.source]
        self._split_target = _SPLITS[settings.target]

    def add(self, example: Example) -> None:
        self.source.update(self._split_source(example.source))
        self.target.update(self._split_target(example.target or ""))
        self.tags.update(example.tags)
        self.languages.add(example.group)
        self.examples += 1


def _learn_side(
    settings: CodecSettings,
    kind: str,
    counts: Counter[str],
    texts: Iterable[str],
    size: int | None,
    marks: Sequence[str] = (),
) -> tuple[Segmentation, Vocabulary]:
    if kind == "bpe":
        from .bpe import learn

        size = 8000 if size is None else size
        pieces = learn(
            texts,
            size - len(marks),
            min_count=max(2, settings.min_count),
            alphabet=settings.alphabet,
        )
        kept = [piece for piece in pieces.pieces if piece not in NAMES]
        return pieces, Vocabulary([*NAMES, *marks, *kept])
    if kind == "words":
        vocabulary = Vocabulary.of_counts(
            counts, size=size, min_count=settings.min_count, always=marks
        )
        return segmentation.Words(), vocabulary
    if " " in counts:
        counts[segmentation.SPACE] = counts.pop(" ")
    vocabulary = Vocabulary.of_counts(counts, size=size, min_count=settings.min_count, always=marks)
    return segmentation.Characters(), vocabulary


def _language(name: str) -> str:
    return f"<lang:{name}>"


def _tag(name: str) -> str:
    return f"<tag:{name}>"


def _spoken(ids: Iterable[int]) -> Iterator[int]:
    for number in map(int, ids):
        if number == EOS:
            return
        if number not in (PAD, BOS):
            yield number


def _check_codec(saved: Any) -> dict[str, Any]:
    kinds = {"format": str, "joint": bool, "languages": list, "fingerprint": str}
    if not isinstance(saved, dict):
        raise TypeError(f"expected an object, got {type(saved).__name__}")
    for name, kind in kinds.items():
        if not isinstance(saved[name], kind):
            raise TypeError(f"expected {name} to be a {kind.__name__}, got {saved[name]!r}")
    if not all(isinstance(name, str) for name in saved["languages"]):
        raise TypeError(f"expected the names of languages, got {saved['languages']!r}")
    return saved


def _part(path: Path, build: Callable[[Any], Part]) -> Part:
    """What is made of a file; a damaged one is named."""
    saved = _read_json(path)
    try:
        return build(saved)
    except KeyError as error:
        raise ValueError(f"{path}: {error} is missing; the file was changed") from error
    # the library of the pieces has no kind of its own for what it cannot read
    except Exception as error:
        raise ValueError(
            f"{path} is damaged: {error}; take the codec folder of the run from a copy"
        ) from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"there is no {str(path)!r}; the folder must be one that a codec was saved in"
        ) from error
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(f"{path} is not JSON: {error}") from error
