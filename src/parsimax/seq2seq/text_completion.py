"""How a text may go on that somebody is typing, and that may end inside a word or a piece of one.

Of a text there are many sequences of pieces: ``ma`` begins ``▁mat``, ``▁ma t`` and ``▁m an``. The
probability of a text is the sum over all sequences that begin with it, so all of them are followed
that the model gives probability; under a dense model, the most probable.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .data.symbols import BOS, EOS, NAMES, UNK
from .data.textcodec import TextCodec
from .search import Stepper, complete
from .search.inputs import check_shape, evaluating, faults, raise_faults

_WIDTH = 256  # readings of a text that are followed at once


@dataclass(frozen=True)
class NextText:
    """What may follow a text.

    Args:
        token: the symbol, or of one that the text ends in, the rest.
        text: what it adds to the text; nothing if it is the end.
        probability: given the text before.
    """

    token: str
    text: str
    probability: float


@dataclass(frozen=True)
class TextCompletion:
    """How a text may go on.

    Args:
        next: what may follow, the most probable first; together they have all probability unless
            ``exhaustive`` is False or ``top`` cut them.
        forced: the tokens that follow in any case; of several readings, their common text.
        forced_text: what they add.
        ended: nothing but the end comes after the forced run.
        after: what may follow the forced run; empty if it ended, or if readings part there.
        possible: the text has positive probability, in whatever pieces; None if that is not known,
            because not every reading was followed. If it is not True, the rest is what the model
            says after the text as it would have been cut in training.
        exhaustive: every reading of positive probability was followed.
        log_probability: of all outputs that begin with the text.
    """

    next: tuple[NextText, ...]
    forced: tuple[str, ...]
    forced_text: str
    ended: bool
    after: tuple[NextText, ...]
    possible: bool | None
    exhaustive: bool
    log_probability: float


@dataclass(frozen=True)
class _Reading:
    """Symbols whose text begins with what was typed, and what the last one has beyond it."""

    symbols: tuple[int, ...]
    log_probability: float
    rest: str


class TextCompleter:
    """Completes texts with one model.

    Args:
        stepper: a model, or an ensemble.
        codec: its text side.
        device: where the model is.
        top: what may follow is listed up to this many.
        max_forced: symbols that a forced run may have.
    """

    def __init__(
        self,
        stepper: Stepper[Any],
        codec: TextCodec,
        device: torch.device | str = "cpu",
        *,
        top: int | None = None,
        max_forced: int = 200,
    ) -> None:
        self.stepper, self.codec, self.device = stepper, codec, device
        self.top, self.max_forced = top, max_forced
        join = codec.target_segmentation.join
        names = codec.target_vocabulary.symbols()
        # A symbol adds the same text wherever it stands, but for the first one.
        before = len(join(["a"]))
        self._first = [join([name]) for name in names]
        self._later = [join(["a", name])[before:] for name in names]
        self._sorted = tuple(
            sorted((table[number], number) for number in codec.target_vocabulary.of_text.values())
            for table in (self._first, self._later)
        )
        self._longest = max(map(len, self._later))

    def normal(self, text: str) -> str:
        """The text as joined symbols would have it."""
        kind = self.codec.target_segmentation.kind
        if kind == "words":
            ended = " " if text[-1:].isspace() and text.strip() else ""
            return " ".join(text.split()) + ended
        return text.replace("▁", " ") if kind == "bpe" else text

    def complete(self, source: Sequence[int], text: str) -> TextCompletion:
        """How a text may go on.

        Args:
            source: symbols of the source.
            text: what was typed so far. White space at its end says that the word has ended;
                otherwise the word may still be growing.

        Raises:
            ValueError: the vocabulary cannot spell the text.
        """
        text = self.normal(text)
        readings, exhaustive = self._readings(source, text)
        if readings:
            return self._continue(source, readings, exhaustive)
        self._check_spelling(text)
        possible = False if exhaustive else None
        symbols = self.codec.encode_target(text)
        if UNK in symbols:  # a word that only begins one
            return TextCompletion((), (), "", False, (), possible, exhaustive, -math.inf)
        said = self.complete_symbols(source, symbols)
        return replace(said, possible=possible, exhaustive=exhaustive, log_probability=-math.inf)

    def complete_symbols(self, source: Sequence[int], symbols: Sequence[int]) -> TextCompletion:
        """How symbols may go on, of which the last is whole: no other reading is looked for."""
        return self._continue(source, [_Reading(tuple(symbols), 0.0, "")], True)

    # --- readings ---------------------------------------------------------------------------------

    def _matches(self, wanted: str, first: bool) -> Iterator[tuple[int, str]]:
        """Symbols whose text begins the wanted one, or begins with it."""
        table = self._sorted[0 if first else 1]
        for length in range(min(len(wanted), self._longest + 1)):
            place = bisect_left(table, (wanted[:length], -1))
            while place < len(table) and table[place][0] == wanted[:length]:
                yield table[place][1], table[place][0]
                place += 1
        place = bisect_left(table, (wanted, -1))
        while place < len(table) and table[place][0].startswith(wanted):
            yield table[place][1], table[place][0]
            place += 1

    @torch.no_grad()
    def _readings(self, source: Sequence[int], text: str) -> tuple[list[_Reading], bool]:
        """The sequences whose last symbol reaches the text's end, and whether these are all."""
        if not text:
            return [_Reading((), 0.0, "")], True
        found: list[_Reading] = []
        exhaustive = True
        live: list[tuple[tuple[int, ...], float, int]] = [((), 0.0, 0)]
        previous = [BOS]
        with evaluating(self.stepper):
            state = self.stepper.start(
                torch.tensor([list(source)], device=self.device),
                torch.tensor([len(source)], device=self.device),
            )
            while live:
                said = torch.tensor(previous, device=self.device)
                table, state = self.stepper.step(state, said)
                check_shape(table, len(live), self.stepper.vocabulary_size)
                raise_faults(faults(table, table.amax(1)).tolist(), len(live[0][0]))
                grown: list[tuple[tuple[int, ...], float, int, int]] = []
                for row, (symbols, score, at) in enumerate(live):
                    wanted = text[at:]
                    options = list(self._matches(wanted, not symbols))
                    chosen = table[row, [number for number, _ in options]].double().tolist()
                    for (number, adds), p in zip(options, chosen, strict=True):
                        if p <= 0:
                            continue
                        longer, sum_ = (*symbols, number), score + math.log(min(p, 1.0))
                        if len(adds) >= len(wanted):
                            found.append(_Reading(longer, sum_, adds[len(wanted) :]))
                        else:
                            grown.append((longer, sum_, at + len(adds), row))
                if len(grown) > _WIDTH:
                    grown.sort(key=lambda item: -item[1])
                    del grown[_WIDTH:]
                    exhaustive = False
                live = [(longer, score, at) for longer, score, at, _ in grown]
                previous = [item[0][-1] for item in grown]
                if grown:
                    rows = torch.tensor([item[3] for item in grown], device=self.device)
                    state = self.stepper.select(state, rows)
        found.sort(key=lambda reading: -reading.log_probability)
        return found[:_WIDTH], exhaustive and len(found) <= _WIDTH

    def _check_spelling(self, text: str) -> None:
        """Every character must be in some symbol that fits."""
        reached, far = {(0, True)}, 0
        waiting = [(0, True)]
        while waiting:
            at, first = waiting.pop()
            far = max(far, at)
            for _, adds in self._matches(text[at:], first):
                if at + len(adds) >= len(text):
                    return
                place = (at + len(adds), False)
                if place not in reached:
                    reached.add(place)
                    waiting.append(place)
        what = text[far]
        if self.codec.target_segmentation.kind == "words":
            what = text[text.rfind(" ", 0, far + 1) + 1 :].split(maxsplit=1)[0]
        raise ValueError(f"prefix: expected symbols that the model can say, got {what!r}")

    # --- what follows them ------------------------------------------------------------------------

    def _continue(
        self, source: Sequence[int], readings: Sequence[_Reading], exhaustive: bool
    ) -> TextCompletion:
        highest = max(reading.log_probability for reading in readings)
        weights = [math.exp(reading.log_probability - highest) for reading in readings]
        total = math.fsum(weights)
        one = len(readings) == 1
        following: dict[tuple[str, str], float] = {}
        runs: list[tuple[str, bool]] = []
        forced: tuple[str, ...] = ()
        after: tuple[NextText, ...] = ()
        possible, score = True, highest + math.log(total)
        # Within a symbol its rest follows, whatever comes then: one choice is enough to see.
        tops = {"": self.top if one else None}
        for rest in sorted({reading.rest for reading in readings}):
            same = [k for k, reading in enumerate(readings) if reading.rest == rest]
            completions = complete(
                self.stepper,
                torch.tensor([list(source)] * len(same), device=self.device),
                torch.tensor([len(source)] * len(same), device=self.device),
                [readings[k].symbols for k in same],
                top=tops.get(rest, self.top or 20),
                max_forced=self.max_forced,
            )
            for k, found in zip(same, completions, strict=True):
                share = weights[k] / total
                symbols = readings[k].symbols
                if rest:
                    steps = [(self._rest_name(rest), rest, 1.0)]
                else:
                    steps = [
                        (*self._shown(n.symbol, not symbols), n.probability) for n in found.next
                    ]
                for name, adds, p in steps:
                    following[name, adds] = following.get((name, adds), 0.0) + share * p
                tokens = [
                    self._shown(symbol, not symbols and i == 0)
                    for i, symbol in enumerate(found.forced)
                ]
                runs.append((rest + "".join(adds for _, adds in tokens), found.ended))
                if one:
                    possible, score = found.possible, found.log_probability
                    start = (self._rest_name(rest),) if rest else ()
                    forced = start + tuple(name for name, _ in tokens)
                    begun = bool(symbols or found.forced)
                    after = tuple(
                        NextText(*self._shown(n.symbol, not begun), n.probability)
                        for n in found.after
                    )
        listed = tuple(
            NextText(name, adds, p)
            for (name, adds), p in sorted(following.items(), key=lambda item: -item[1])
        )
        common = _common([text for text, _ in runs])
        if not one and common:
            forced = (self._rest_name(common),)
        ended = all(end and text == common for text, end in runs)
        if not one and not common and not ended:
            after = listed[: self.top]
        return TextCompletion(
            listed[: self.top], forced, common, ended, after, possible, exhaustive, score
        )  # fmt: skip

    def _shown(self, symbol: int, first: bool) -> tuple[str, str]:
        """The name of a symbol, and what it adds to the text."""
        name = self.codec.target_vocabulary.symbols([symbol])[0]
        if symbol == EOS:
            return NAMES[EOS], ""
        return name, (self._first if first else self._later)[symbol]

    def _rest_name(self, rest: str) -> str:
        """Text as the segmentation's symbols are written."""
        return rest.replace(" ", "▁") if self.codec.target_segmentation.kind == "bpe" else rest


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    least, most = min(texts), max(texts)  # all others lie between, and share what these share
    same = (k for k, (a, b) in enumerate(zip(least, most, strict=False)) if a != b)
    return least[: next(same, min(len(least), len(most)))]
