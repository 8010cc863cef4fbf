"""What a model is given: sentences as numbers, padded to one length."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .symbols import BOS


@dataclass(frozen=True)
class Batch:
    """Sentences of one batch; everything after a sentence's end is ``PAD``.

    Args:
        source: (B, S) symbols, at least one a sentence.
        source_lengths: (B,).
        target: (B, T) symbols that end with ``EOS`` and do not begin with ``BOS``; None if there
            are no targets. A row of padding alone counts for nothing.
        index: (B,) where the sentences stand in their corpus.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor | None
    index: Tensor

    @property
    def decoder_input(self) -> Tensor:
        """The targets moved right by one, behind ``BOS``: what precedes each symbol."""
        assert self.target is not None
        begin = self.target.new_full((len(self.target), 1), BOS)
        return torch.cat([begin, self.target[:, :-1]], 1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on a device."""
        moved = {
            name: x.to(device, non_blocking=non_blocking)
            for name, x in vars(self).items()
            if isinstance(x, Tensor)
        }
        return replace(self, **moved)

    def pin_memory(self) -> Batch:
        """The same batch where a GPU can read it while the host goes on."""
        pinned = {n: x.pin_memory() for n, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **pinned)
