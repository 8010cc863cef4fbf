"""Batches: which examples go together, and their symbols as tensors.

A batch is so many sentences, or so many tokens. Tokens are counted with their padding on the larger
side: (length of the longest source or target) x (sentences), where a target's length includes
``EOS``. That is what memory follows, so a batch of ``size`` tokens is at most that large.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

from parsimax._core.validation import check_choice

from .batch import Batch
from .corpus import Corpus
from .plan import Plan, Shuffler, by_length, cut_by_sentences, cut_by_tokens
from .symbols import EOS, PAD

_BUCKET = 100


class BatchSampler(Sampler[list[int]]):
    """The batches of an epoch, as lists of indices.

    Shuffled, the examples of an epoch are put in random order, pools of ``bucket`` batches are
    sorted by length so that what is padded together is about equally long (of tokens by the larger
    side, of sentences by the target), and the batches that are cut from them come in random order.
    Not shuffled, they come in the order of the corpus.
    Either way every example comes exactly once an epoch, and the batches depend on the lengths,
    the settings, ``seed`` and the epoch alone. Of each batch, process ``rank`` of ``world`` gets
    ``batch[rank::world]``, which is empty where a batch has too few.

    Args:
        source_lengths: of every example; and ``target_lengths`` likewise, with ``EOS``.
        size: of a batch over all processes.
        unit: ``sentences``, or ``tokens`` with their padding on the larger side.
        seed: of the order; and of the epochs, which all differ.
        shuffle: False for validation.
        bucket: batches that are sorted by length together, at about the mean length; 0 sorts
            nothing. None is 100 if shuffled, else 0.
        rank: of this process; and ``world``, how many there are.
    """

    def __init__(
        self,
        source_lengths: ArrayLike,
        target_lengths: ArrayLike,
        size: int,
        unit: Literal["sentences", "tokens"] = "sentences",
        seed: int = 0,
        shuffle: bool = True,
        bucket: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._source = _lengths(source_lengths, "source_lengths")
        self._target = _lengths(target_lengths, "target_lengths")
        if len(self._source) != len(self._target):
            raise ValueError(
                "source_lengths and target_lengths must be of the same examples, "
                f"got {len(self._source)} and {len(self._target)}"
            )
        self.size = _whole(size, "size", 1)
        self.unit = check_choice(unit, "unit", ("sentences", "tokens"))
        self.seed = _whole(seed, "seed", 0)
        self.shuffle = shuffle
        self.bucket = _whole(
            bucket if bucket is not None else _BUCKET if shuffle else 0, "bucket", 0
        )
        self.world = _whole(world, "world", 1)
        self.rank = _whole(rank, "rank", 0)
        if self.rank >= self.world:
            raise ValueError(f"rank must be less than world={world}, got {rank}")
        if unit == "tokens":
            self._check_longest()
        self.epoch = 0
        self._skipped = 0
        self._planned: tuple[int, Plan] | None = None

    def _check_longest(self) -> None:
        larger = np.maximum(self._source, self._target)
        if not len(larger) or larger.max() <= self.size:
            return
        longest = int(larger.argmax())
        sides = {"source": int(self._source[longest]), "target": int(self._target[longest])}
        side = max(sides, key=sides.__getitem__)
        over = int((larger > self.size).sum())
        raise ValueError(
            f"size={self.size} tokens is less than one sentence needs: the {side} of example "
            f"{longest} has {sides[side]:,} symbols ({over:,} of {len(larger):,} examples are too "
            f"long); make size at least {sides[side]:,}, or leave out long examples with "
            f"max_{side}_length"
        )

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; in one that differs from the last nothing is skipped."""
        epoch = _whole(epoch, "epoch", 0)
        if epoch != self.epoch:
            self.epoch = epoch
            self._skipped = 0

    def skip(self, batches: int) -> None:
        """Leave out the first batches of this epoch, which were consumed before."""
        whole = len(self._plan())
        if not 0 <= _whole(batches, "batches", 0) <= whole:
            raise ValueError(
                f"batches to skip must be at most the {whole} of epoch {self.epoch}, got {batches}"
            )
        self._skipped = batches

    @property
    def batches(self) -> int:
        """How many batches the whole epoch has."""
        return len(self._plan())

    def __len__(self) -> int:
        """How many batches are left after those skipped: as many as iterating gives."""
        return len(self._plan()) - self._skipped

    def __iter__(self) -> Iterator[list[int]]:
        plan = self._plan()
        for number in range(self._skipped, len(plan)):
            yield plan.batch(number)[self.rank :: self.world]

    @property
    def signature(self) -> str:
        """A hash of all that the batches depend on but the epoch.

        To resume in mid-epoch it must be what it was: otherwise the batches are others. ``world``
        is no part of it.
        """
        how = [self.size, self.unit, self.seed, self.shuffle, self.bucket]
        digest = hashlib.sha256(json.dumps(how).encode())
        digest.update(self._source.tobytes())
        digest.update(self._target.tobytes())
        return digest.hexdigest()

    def _plan(self) -> Plan:
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = None  # so that there is never room for two
            self._planned = self.epoch, self._make_plan()
        return self._planned[1]

    def _make_plan(self) -> Plan:
        count = len(self._source)
        shuffler = Shuffler(self.seed, self.epoch)
        order = shuffler.permutation(count) if self.shuffle else np.arange(count, dtype=np.int64)
        # What sets a batch's size, or of sentences the decoder's steps, is to vary least
        tokens = self.unit == "tokens"
        first = np.maximum(self._source, self._target) if tokens else self._target
        if self.bucket:
            order = by_length(order, first, self._source, self._pool())
        if tokens:
            bounds = cut_by_tokens(first[order], self.size)
        else:
            bounds = cut_by_sentences(count, self.size)
        if self.shuffle and self.bucket:
            bounds = bounds[shuffler.permutation(len(bounds))]
        return Plan(order, bounds)

    def _pool(self) -> int:
        """Examples that are sorted together."""
        if self.unit == "sentences":
            return self.bucket * self.size
        mean = float(np.maximum(self._source, self._target).mean()) if len(self._source) else 1.0
        return max(1, round(self.bucket * self.size / max(mean, 1.0)))


def _lengths(values: ArrayLike, name: str) -> NDArray[np.int32]:
    lengths = np.asarray(values)
    if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} must be a row of whole numbers, got {lengths.dtype} of shape {lengths.shape}"
        )
    return lengths.astype(np.int32)


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


# --- tensors --------------------------------------------------------------------------------------


def collate(corpus: Corpus, indices: Sequence[int]) -> Batch:
    """The examples as one padded batch.

    No examples give one row that counts for nothing: its target is padding alone, its index -1.
    """
    if not len(indices):
        return Batch(
            source=torch.full((1, 1), EOS),
            source_lengths=torch.ones(1, dtype=torch.int64),
            target=torch.full((1, 1), PAD),
            index=torch.full((1,), -1),
        )
    rows = np.asarray(indices, dtype=np.int64)
    source, source_lengths = _padded(corpus.source_ids, corpus.source_offsets, rows)
    target, _ = _padded(corpus.target_ids, corpus.target_offsets, rows)
    return Batch(source, source_lengths, target, torch.from_numpy(rows))


def pad(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> Batch:
    """Sentences that are in no corpus, as one padded batch.

    Args:
        sources: numbers of each, at least one.
        targets: numbers of each, with ``EOS``; None if they are not known.
    """
    if not len(sources) or not all(map(len, sources)):
        raise ValueError("sources must be sentences of at least one symbol each, got an empty one")
    if targets is not None and len(targets) != len(sources):
        raise ValueError(f"targets must be one for each source, got {len(targets)}")
    lengths = torch.tensor([len(source) for source in sources])
    target = None if targets is None else _rows(targets)
    return Batch(_rows(sources), lengths, target, torch.arange(len(sources)))


def _rows(sentences: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(s) for s in sentences], batch_first=True, padding_value=PAD)


def _padded(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    begins = offsets[rows]
    lengths = offsets[rows + 1] - begins
    columns = np.arange(lengths.max(), dtype=np.int64)
    inside = columns < lengths[:, None]
    padded = np.full(inside.shape, PAD, dtype=np.int64)
    padded[inside] = ids[(begins[:, None] + columns)[inside]]
    return torch.from_numpy(padded), torch.from_numpy(np.asarray(lengths))


class _Collated(Dataset[Batch]):
    """Gives a loader whole batches, so that an empty one is possible."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitems__(self, indices: list[int]) -> Batch:
        return collate(self._corpus, indices)


def _as_it_is(batch: Any) -> Any:
    return batch


def make_loader(
    corpus: Corpus,
    sampler: BatchSampler,
    workers: int = 0,
    *,
    pin_memory: bool = False,
    prefetch: int = 4,
    persistent: bool = False,
) -> DataLoader[Batch]:
    """Batches of a corpus in the sampler's order, the same whatever the number of workers.

    It takes nothing from torch's random numbers, so that what a model draws does not depend on
    how often a loader was begun.

    Args:
        corpus: the examples.
        sampler: which go together.
        workers: processes that make batches; 0 makes them in this one.
        pin_memory: put batches where a GPU can read them while the host goes on.
        prefetch: batches that each worker makes in advance.
        persistent: keep the workers from epoch to epoch.
    """
    workers = _whole(workers, "workers", 0)
    more: dict[str, Any] = {}
    if workers:
        more = {
            "prefetch_factor": _whole(prefetch, "prefetch", 1),
            "persistent_workers": persistent,
        }
    return DataLoader(
        _Collated(corpus),
        batch_sampler=sampler,
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(sampler.seed),
        **more,
    )
