"""An entailment model: embed both sentences, align them jointly, compare, decide.

After the decomposable attention model of Parikh, Täckström, Das & Uszkoreit (2016), with the
attention as an option. Everything the model knows of one sentence's relation to the other passes
through the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pairs import LABELS, PAD, Batch
from torch import Tensor, nn

import parsimax as px
from parsimax.attention.structured import Alignment

ATTENTIONS = ("softmax", "matching", "monotone", "sequence")


@dataclass(frozen=True)
class Sizes:
    """Of the model."""

    embedding: int = 100
    hidden: int = 100
    dropout: float = 0.4


class SoftmaxAlignment(nn.Module):
    """Each word attends on its own, in both directions: the baseline, not one structure."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, size))

    def align(self, query: Tensor, memory: Tensor, mask: Tensor, query_mask: Tensor) -> Alignment:
        """What a structured alignment gives, with no structures."""
        scores = (query @ self.weight) @ memory.mT
        weights = px.softmax(scores, mask=mask.unsqueeze(1))
        back = px.softmax(scores, dim=1, mask=query_mask.unsqueeze(2))
        none = torch.zeros(len(query), 0)
        shown = weights * query_mask.unsqueeze(2)
        zeros = torch.zeros(len(query))
        return Alignment(
            weights @ memory,
            back.mT @ query,
            shown,
            none.reshape(len(query), 0, *scores.shape[1:]),
            none,
            zeros,
            zeros == 0,
        )


class Entailment(nn.Module):
    """Scores of the labels for pairs of sentences."""

    def __init__(self, words: int, attention: str, sizes: Sizes) -> None:
        super().__init__()
        size = sizes.hidden
        self.embedding = nn.Embedding(words, sizes.embedding, padding_idx=PAD)
        self.encoder = nn.Linear(sizes.embedding, size)
        self.attention: SoftmaxAlignment | px.nn.StructuredAttention = (
            SoftmaxAlignment(size)
            if attention == "softmax"
            else px.nn.StructuredAttention(size, size, structure=attention)
        )
        # a word attends to words like itself, to begin with
        nn.init.eye_(self.attention.weight)
        # dropout comes after the comparison, so that equal words are equal
        self.compare = nn.Sequential(
            nn.Linear(4 * size, size), nn.ReLU(), nn.Dropout(sizes.dropout)
        )
        self.decide = nn.Sequential(
            nn.Dropout(sizes.dropout),
            nn.Linear(4 * size, size),
            nn.ReLU(),
            nn.Linear(size, len(LABELS)),
        )

    def forward(self, batch: Batch) -> tuple[Tensor, Alignment]:
        """(logits (B, labels), the alignment they rest on)."""
        premise, hypothesis = self._encode(batch)
        found = self.attention.align(hypothesis, premise, batch.premise_mask, batch.hypothesis_mask)
        sides = [
            self._pool(hypothesis, found.context, batch.hypothesis_mask),
            self._pool(premise, found.memory_context, batch.premise_mask),
        ]
        logits: Tensor = self.decide(torch.cat(sides, -1))
        return logits, found

    def _encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        first, second = (
            self.encoder(self.embedding(words)).tanh()
            for words in (batch.premise, batch.hypothesis)
        )
        return first, second

    def _pool(self, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        """Compare each word with what it is aligned to; mean and maximum over the sentence."""
        compared = self.compare(torch.cat([own, other, own * other, (own - other).abs()], -1))
        compared = compared * mask.unsqueeze(-1)
        mean = compared.sum(1) / mask.sum(1, keepdim=True)
        return torch.cat([mean, compared.amax(1)], -1)
