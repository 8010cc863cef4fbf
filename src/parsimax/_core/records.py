"""Small immutable results that pass from one layer to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class AttentionOutput(NamedTuple):
    """What an attention module returns: the context vectors, and the weights if asked for."""

    context: Tensor
    weights: Tensor | None


@dataclass(frozen=True)
class AttentionRecord:
    """Attention of one sentence as analysis reads it; ``weights`` is (layer, head, Lq, Lk)."""

    tokens: tuple[str, ...]
    weights: Tensor
    module: str
