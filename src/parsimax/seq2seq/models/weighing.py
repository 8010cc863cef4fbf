"""From a setting's text to attention weights: a mapping, or entmax with a learned alpha a head."""

from __future__ import annotations

from torch import Tensor, nn

from parsimax.attention import AdaptiveAlpha
from parsimax.mappings import Mapping, entmax, parse

from .settings import LEARNED


def is_learned(text: str) -> bool:
    """Whether the text asks for a learned alpha."""
    return text.replace(" ", "") == LEARNED


class Weighing(nn.Module):
    """Scores (..., heads, Lq, Lk) to weights; masked scores are -inf.

    >>> Weighing("sparsemax", 4)
    Weighing(sparsemax)
    """

    def __init__(self, text: str, heads: int) -> None:
        super().__init__()
        self.learned = AdaptiveAlpha(heads) if is_learned(text) else None
        self.mapping: Mapping | None = None if is_learned(text) else parse(text)

    def forward(self, scores: Tensor) -> Tensor:
        """Weights, zero wherever a score is -inf."""
        if self.learned is not None:
            return entmax(scores, self.learned()[:, None, None])
        assert self.mapping is not None
        return self.mapping(scores)

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return "" if self.mapping is None else str(self.mapping)
