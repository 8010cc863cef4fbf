"""Texts of similar length together, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parsimax._runs.bad_rows import BadRow, BadRows

from .examples import Example
from .vocabulary import PAD, Vocabulary

_NOISE = 0.1  # of its length, by which a text may be taken for a shorter or longer one


@dataclass(frozen=True)
class Batch:
    """Some texts.

    Args:
        tokens: (B, L), filled up with padding.
        mask: (B, L), True where there is a token.
        labels: (B,), -1 where a text has none.
        rows: Which texts these are.
    """

    tokens: Tensor
    mask: Tensor
    labels: Tensor
    rows: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return Batch(
            self.tokens.to(device, non_blocking=True),
            self.mask.to(device, non_blocking=True),
            self.labels.to(device, non_blocking=True),
            self.rows,
        )


@dataclass(frozen=True)
class Encoded:
    """Texts as numbers, with their labels (-1 for none)."""

    texts: tuple[Tensor, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, rows: Sequence[int]) -> Batch:
        """The texts of some rows."""
        chosen = [self.texts[row] for row in rows]
        tokens = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(text) for text in chosen])
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        return Batch(tokens, mask, self.labels[list(rows)], tuple(rows))


def encode(examples: Sequence[Example], vocabulary: Vocabulary) -> Encoded:
    """Texts and labels as numbers.

    Raises:
        DataError: labels that the vocabulary does not have, with their lines.
    """
    bad, texts, labels = BadRows(), [], []
    for example in examples:
        try:
            labels.append(-1 if example.label is None else vocabulary.label(example.label))
        except ValueError as error:
            bad.add(BadRow(example.path, example.line, str(error)))
        texts.append(torch.tensor(vocabulary.encode(example.words), dtype=torch.long))
    if bad.count:
        raise bad.error()
    return Encoded(tuple(texts), torch.tensor(labels, dtype=torch.long))


def shuffled(data: Encoded, size: int, random: np.random.Generator) -> Iterator[Batch]:
    """All texts once, in batches of similar length that come in random order.

    Lengths are compared with some noise, so that no two epochs have the same batches.
    """
    lengths = np.array([len(text) for text in data.texts], dtype=np.float64)
    noisy = lengths * random.uniform(1 - _NOISE, 1 + _NOISE, len(lengths))
    order = np.argsort(noisy + random.uniform(0, 1, len(lengths)), kind="stable")
    starts = np.arange(0, len(order), size)
    for start in random.permutation(starts):
        yield data.batch(order[start : start + size].tolist())


def in_order(data: Encoded, size: int) -> Iterator[Batch]:
    """All texts once, the shortest first; results do not depend on the size."""
    order = sorted(range(len(data)), key=lambda row: len(data.texts[row]))
    for start in range(0, len(order), size):
        yield data.batch(order[start : start + size])
