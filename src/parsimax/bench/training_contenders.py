"""Sequence models for the benchmark of training: ours, and the same with torch's own softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import EOS, UNK
from parsimax.seq2seq.models import ModelSettings, RNNSettings, Seq2Seq, TransformerSettings, build
from parsimax.seq2seq.models.heads import Heads
from parsimax.seq2seq.models.settings import LEARNED

TORCH = "torch: softmax, cross_entropy"
ENTMAX = "parsimax: 1.5-entmax"
LEARNS = "parsimax: learned alpha, 1.5-entmax"
LEARNS_DENSE = "parsimax: learned alpha, softmax"

_FIXED = "entmax(alpha=1.5)"
# contender -> (attention, output)
CHOICES = {
    TORCH: ("softmax", "softmax"),
    ENTMAX: (_FIXED, _FIXED),
    LEARNS: (LEARNED, _FIXED),
    LEARNS_DENSE: (LEARNED, "softmax"),
}


class _Softmax(nn.Module):
    learned = None

    def forward(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1)


class _TorchHeads(nn.Module):
    """The same projections around torch's fused attention."""

    def __init__(self, heads: Heads) -> None:
        super().__init__()
        self.heads = heads
        self.keys = heads.keys

    def forward(
        self,
        x: Tensor,
        keys: tuple[Tensor, Tensor],
        *,
        seen: Tensor | None = None,
        causal: bool = False,
        looked: None = None,
    ) -> Tensor:
        heads = self.heads
        q, (k, v) = heads._split(heads.query(x)), keys
        context = F.scaled_dot_product_attention(q, k, v, seen, 0.0, causal)
        out: Tensor = heads.out(context.transpose(1, 2).flatten(2))
        return out


def model(contender: str, settings: ModelSettings, sizes: tuple[int, int]) -> Seq2Seq[Any]:
    """The contender's model, from the same seed."""
    attention, output = CHOICES[contender]
    if isinstance(settings, RNNSettings):
        settings = replace(settings, attention=attention, output=output)
    else:
        settings = replace(
            settings,
            encoder_attention=attention,
            context_attention=attention,
            decoder_attention=attention,
            output=output,
        )
    torch.manual_seed(0)
    made: Any = build(settings, *sizes)
    if contender == TORCH:
        if isinstance(settings, RNNSettings):
            made.weighing = _Softmax()
        else:
            for layer in made.encoder:
                layer.attention = _TorchHeads(layer.attention)
            for layer in made.decoder:
                layer.attention = _TorchHeads(layer.attention)
                layer.context = _TorchHeads(layer.context)
    return made  # type: ignore[no-any-return]


def batches(
    count: int, sentences: Callable[[int], int], lengths: tuple[int, int], sizes: tuple[int, int]
) -> list[Batch]:
    """Sentences of random symbols, each batch of about one length, as bucketing makes them.

    Args:
        count: How many batches.
        sentences: How many sentences a batch of this target length has.
        lengths: The shortest and the longest target.
        sizes: Of the two vocabularies.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    result = []
    for number in range(count):
        longest = lengths[0] + (lengths[1] - lengths[0]) * number // max(count - 1, 1)
        rows = sentences(longest)
        source, target = draw(UNK, sizes[0], rows, longest + 2), draw(UNK, sizes[1], rows, longest)
        source_lengths, target_lengths = (
            torch.cat([torch.tensor([n]), draw(max(n - 3, 1), n + 1, rows - 1)])
            for n in (longest + 2, longest)
        )
        source = source.masked_fill(torch.arange(longest + 2) >= source_lengths[:, None], 0)
        place = torch.arange(longest)
        target = target.masked_fill(place == target_lengths[:, None] - 1, EOS)
        target = target.masked_fill(place >= target_lengths[:, None], 0)
        result.append(Batch(source, source_lengths, target, torch.arange(rows)))
    return result


INFLECTION = RNNSettings()
TRANSFORMER = TransformerSettings()
SMALL_TRANSFORMER = TransformerSettings(
    dim=256, heads=4, encoder_layers=3, decoder_layers=3, feedforward=1024
)
