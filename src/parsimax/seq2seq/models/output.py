"""The output layer: one mapping, and with it its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax._core.dtypes import working
from parsimax.losses import entmax_loss, fenchel_young_loss, linear_entmax_loss
from parsimax.mappings import Budget, Entmax, Mapping, Softmax, Sparsemax, parse
from parsimax.seq2seq.data.symbols import FIRST_SAID, PAD

_SCORES = 1 << 29  # more than these are not held at once: in float32 they take 2 GiB


def refusal(mapping: str | Mapping) -> str | None:
    """Why a mapping cannot be the output of a model, or None if it can.

    A text that is no mapping at all is left to :func:`parsimax.mappings.parse`.
    """
    if isinstance(mapping, str) and "learned" in mapping.replace(" ", "").split("alpha=")[-1]:
        return (
            f"the output mapping must have a fixed parameter, got {mapping!r}: a loss that is "
            "minimised over alpha only grows alpha; use e.g. entmax(alpha=1.5)"
        )
    if isinstance(parse(mapping), Budget):
        return (
            f"the output mapping must give probabilities, got {str(mapping)!r}: its weights sum to "
            "k, each at most 1, so they are no distribution of the next symbol; use e.g. sparsemax"
        )
    return None


class OutputLayer(nn.Module):
    """Scores of the next symbol, their probabilities, and the loss that belongs to the mapping.

    Its rows begin at the first symbol that can be said, so padding and the beginning of a sentence
    never have any probability.

    Args:
        hidden: Size of the vectors it reads.
        vocabulary_size: Of the target.
        mapping: Text or value, with a number as its parameter. An alpha that is learned is refused:
            the loss would fall with growing alpha whatever the scores.
        tied: An embedding (vocabulary_size, hidden) whose rows are the weights, or None.
    """

    def __init__(
        self,
        hidden: int,
        vocabulary_size: int,
        mapping: str | Mapping,
        tied: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        if vocabulary_size <= FIRST_SAID:
            raise ValueError(f"vocabulary_size must exceed {FIRST_SAID}, got {vocabulary_size}")
        if why := refusal(mapping):
            raise ValueError(why)
        self.mapping = parse(mapping)
        self.vocabulary_size = vocabulary_size
        said = vocabulary_size - FIRST_SAID
        self.tied = tied
        if tied is None:
            self.own_weight = nn.Parameter(torch.empty(said, hidden))
            nn.init.xavier_uniform_(self.own_weight)
        self.bias = nn.Parameter(torch.zeros(said))

    @property
    def weight(self) -> Tensor:
        """(symbols that can be said, hidden)."""
        return self.own_weight if self.tied is None else self.tied.weight[FIRST_SAID:]

    @property
    def alpha(self) -> float | None:
        """The alpha of the entmax that the mapping is, if it is one."""
        if isinstance(self.mapping, Softmax):
            return 1.0
        if isinstance(self.mapping, Sparsemax):
            return 2.0
        return float(self.mapping.alpha) if isinstance(self.mapping, Entmax) else None

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., symbols that can be said)."""
        return F.linear(hidden, self.weight, self.bias)

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Summed over the targets (B, T) that are not padding; ``hidden`` is (B, T, hidden)."""
        rows, index = hidden.flatten(0, 1), target.flatten() - FIRST_SAID
        ignored = PAD - FIRST_SAID
        alpha = self.alpha
        if alpha == 1.0:
            return F.cross_entropy(
                working(self.scores(rows)), index, ignore_index=ignored, reduction="sum"
            )
        if alpha is None:
            return fenchel_young_loss(
                self.scores(rows), index, self.mapping, ignore_index=ignored, reduction="sum"
            )
        if len(rows) * len(self.bias) > _SCORES:
            return linear_entmax_loss(
                rows, self.weight, index, self.bias, alpha, ignore_index=ignored, reduction="sum"
            )
        return entmax_loss(self.scores(rows), index, alpha, ignore_index=ignored, reduction="sum")

    def probabilities(self, hidden: Tensor) -> Tensor:
        """(..., vocabulary_size) in at least float32, zero for what cannot be said."""
        return F.pad(self.mapping(working(self.scores(hidden))), (FIRST_SAID, 0))

    def extra_repr(self) -> str:
        """Shown in ``print(module)``."""
        return f"{self.vocabulary_size}, mapping={self.mapping}"
