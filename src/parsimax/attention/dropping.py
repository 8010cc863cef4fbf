"""Dropout of weights that are computed twice: each tile has its seed, and drops the same again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dropping:
    """Which weights are dropped with probability ``p``; ``seed`` is that of the first tile."""

    p: float
    seed: int

    def factors(self, tile: int, like: Tensor) -> Tensor:
        """0 for what is dropped, 1 / (1 - p) for the rest, in the shape of a tile's weights."""
        if self.p >= 1:
            return torch.zeros_like(like)
        if like.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "dropout of so many weights cannot be captured in a CUDA graph, which would drop "
                "the same ones on every replay; set dropout_p=0"
            )
        generator = torch.Generator(like.device).manual_seed(self.seed + tile)
        # in one piece: which number goes where depends on the strides
        kept = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        kept.bernoulli_(1 - self.p, generator=generator)
        return kept.div_(1 - self.p)


def draw(p: float) -> Dropping | None:
    """Anew for each call, and the same after the same ``torch.manual_seed``."""
    if p == 0:
        return None
    return Dropping(p, int(torch.randint(1 << 62, (), device="cpu")))
