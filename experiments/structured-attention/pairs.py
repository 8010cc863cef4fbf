"""Pairs of sentences with a label, from JSON lines: reading, vocabulary, batches."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LABELS = ("entailment", "neutral", "contradiction")
PAD, UNKNOWN = 0, 1


@dataclass(frozen=True)
class Pair:
    """A premise, a hypothesis, and how the second follows from the first."""

    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class Batch:
    """Pairs as numbers, padded at the end; lengths say where."""

    premise: Tensor  # (B, n)
    hypothesis: Tensor  # (B, m)
    premise_mask: Tensor  # (B, n), True where there is a word
    hypothesis_mask: Tensor  # (B, m)
    label: Tensor  # (B,)


def read_pairs(path: Path) -> list[Pair]:
    """Every line of a ``.jsonl.xz`` or ``.jsonl`` file, in lower case."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        Pair(
            tuple(row["premise"].lower().split()),
            tuple(row["hypothesis"].lower().split()),
            LABELS.index(row["label"]),
        )
        for row in rows
    ]


def split(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair]]:
    """The last ``share`` of the premises, with all their pairs, apart from the others."""
    premises = list(dict.fromkeys(pair.premise for pair in pairs))
    held = set(premises[round(len(premises) * (1 - share)) :])
    return [p for p in pairs if p.premise not in held], [p for p in pairs if p.premise in held]


def number_words(pairs: Sequence[Pair], least: int) -> dict[str, int]:
    """Words that occur ``least`` times or more, from 2 up, the most frequent first."""
    counts = Counter(word for pair in pairs for word in (*pair.premise, *pair.hypothesis))
    kept = [word for word, count in counts.most_common() if count >= least]
    return {word: number for number, word in enumerate(kept, 2)}


def make_batch(pairs: Sequence[Pair], words: dict[str, int]) -> Batch:
    """Numbers for words."""
    sides = []
    for texts in ([pair.premise for pair in pairs], [pair.hypothesis for pair in pairs]):
        numbers = torch.full((len(pairs), max(map(len, texts))), PAD)
        for row, text in enumerate(texts):
            numbers[row, : len(text)] = torch.tensor([words.get(w, UNKNOWN) for w in text])
        sides.append(numbers)
    premise, hypothesis = sides
    labels = torch.tensor([pair.label for pair in pairs])
    return Batch(premise, hypothesis, premise != PAD, hypothesis != PAD, labels)


def batches(
    pairs: Sequence[Pair], words: dict[str, int], size: int, generator: torch.Generator | None
) -> Iterator[Batch]:
    """Batches of similar lengths, in random order if there is a generator."""
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i].premise), i))
    if generator is not None:  # sentences of similar length, but not always the same together
        blocks = range(0, len(order), 16 * size)
        shuffled = []
        for start in blocks:
            block = order[start : start + 16 * size]
            shuffled += [block[i] for i in torch.randperm(len(block), generator=generator).tolist()]
        order = shuffled
    starts = list(range(0, len(order), size))
    if generator is not None:
        starts = [starts[i] for i in torch.randperm(len(starts), generator=generator).tolist()]
    for start in starts:
        yield make_batch([pairs[i] for i in order[start : start + size]], words)
