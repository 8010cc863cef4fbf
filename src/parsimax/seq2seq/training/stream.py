"""Batches in their order, epoch after epoch, in the portions of one optimiser step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from parsimax._runs.errors import TrainingError
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import PAD


@dataclass(frozen=True)
class Work:
    """What one step of the optimiser sees, and where that stands in the data.

    The numbers were counted on the host before the batches went to a device, so that nobody has to
    wait for the device to know them.
    """

    batches: tuple[Batch, ...]
    epoch: int
    consumed: int  # batches of the epoch, with these
    ends_epoch: bool
    sentences: int  # of this process
    tokens: int  # target symbols of this process
    indices: tuple[Tensor, ...]  # of the sentences, on the host

    def to(self, device: torch.device) -> Work:
        """The same on a device."""
        return replace(self, batches=tuple(b.to(device, non_blocking=True) for b in self.batches))


@dataclass
class Stream:
    """All work from a position on, to the end of the last epoch.

    One endless loader instead of one loader an epoch, because the position then is ours alone:
    fetching ahead, which Lightning and the workers do, moves nothing that a checkpoint holds.

    Args:
        batches_of: The batches of an epoch after the first ones were skipped.
        accumulate: Batches a step; the last step of an epoch takes what is left.
        epoch: Where to begin.
        consumed: Batches of that epoch that were used before.
        epochs: How many there are; None for no end.
    """

    batches_of: Callable[[int, int], Iterable[Batch]]
    accumulate: int
    epoch: int = 0
    consumed: int = 0
    epochs: int | None = None

    def __iter__(self) -> Iterator[Work]:
        epoch, consumed = self.epoch, self.consumed
        while self.epochs is None or epoch < self.epochs:
            batches = iter(self.batches_of(epoch, consumed))
            batch = next(batches, None)
            if batch is None and consumed == 0:
                raise TrainingError("there is no training data; look at data.train")
            group: list[Batch] = []
            while batch is not None:
                group.append(batch)
                consumed += 1
                batch = next(batches, None)
                if batch is None or len(group) == self.accumulate:
                    yield _work(group, epoch, consumed, batch is None)
                    group = []
            epoch, consumed = epoch + 1, 0


def _work(group: list[Batch], epoch: int, consumed: int, ends_epoch: bool) -> Work:
    sentences = tokens = 0
    for batch in group:
        assert batch.target is not None
        said = batch.target != PAD
        sentences += int(said[:, 0].sum())  # a row of padding alone is nobody's
        tokens += int(said.sum())
    return Work(
        batches=tuple(group),
        epoch=epoch,
        consumed=consumed,
        ends_epoch=ends_epoch,
        sentences=sentences,
        tokens=tokens,
        indices=tuple(batch.index for batch in group),
    )
