"""A text classifier that can be taken apart where attention sits.

``decode(h, attend(h, mask), mask)`` with ``h = encode(embed(tokens), mask)`` are the probabilities,
and :meth:`Classifier.forward` computes nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax.losses import entmax_loss, fenchel_young_loss
from parsimax.mappings import Entmax, Softmax, Sparsemax, parse

from . import encoders
from .config import ModelSettings
from .pooling import Pooling
from .vocabulary import PAD

_EMBEDDING = 100  # the size if nothing gives another


class Prediction(NamedTuple):
    """Scores (B, C) of the classes, and the attention weights (B, L)."""

    scores: Tensor
    weights: Tensor


class Classifier(nn.Module):
    """Embedding, encoder, attention, and a linear layer.

    Of two classes the first has score 0, so that the other's score is the log odds if the output
    is softmax: one linear function, as in logistic regression.

    Args:
        settings: What it is made of.
        words: Size of the vocabulary.
        classes: How many.
        vectors: Word vectors (words, size) to begin with.
    """

    def __init__(
        self, settings: ModelSettings, words: int, classes: int, vectors: Tensor | None = None
    ) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"classes must be at least 2, got {classes}")
        size = settings.embedding or (_EMBEDDING if vectors is None else vectors.shape[1])
        if vectors is not None and vectors.shape != (words, size):
            raise ValueError(
                f"vectors must have shape ({words}, {size}): {words} words of "
                f"model.embedding = {size}, got {tuple(vectors.shape)}"
            )
        self.classes = classes
        self.dropout = settings.dropout
        self.embedding = nn.Embedding(words, size, padding_idx=PAD)
        if vectors is not None:
            with torch.no_grad():
                self.embedding.weight.copy_(vectors)
                self.embedding.weight[PAD] = 0.0
        self.embedding.weight.requires_grad_(not settings.freeze_embedding)
        self.encoder = encoders.build(settings.encoder, size, settings.boundaries)
        self.attention = Pooling(settings.attention, self.encoder.size)
        self.out = nn.Linear(self.encoder.size, 1 if classes == 2 else classes)
        self.output = parse(settings.output)

    # --- the pieces ------------------------------------------------------------------------------

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (B, L) to vectors (B, L, E)."""
        x: Tensor = self.embedding(tokens)
        return F.dropout(x, self.dropout, self.training)

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """Vectors to hidden states (B, L, H)."""
        h: Tensor = self.encoder(x, mask)
        return h

    def attend(self, h: Tensor, mask: Tensor) -> Tensor:
        """Hidden states to weights (B, L)."""
        weights: Tensor = self.attention(h, mask)
        return weights

    def scores(self, h: Tensor, weights: Tensor) -> Tensor:
        """Weighted hidden states to the scores of the classes (B, C)."""
        context = (weights.unsqueeze(1) @ h).squeeze(1)
        found: Tensor = self.out(F.dropout(context, self.dropout, self.training))
        return F.pad(found, (1, 0)) if self.classes == 2 else found

    def decode(self, h: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Hidden states and weights to probabilities (B, C)."""
        return self.output(self.scores(h, weights))

    # --- the whole -------------------------------------------------------------------------------

    def forward(self, tokens: Tensor, mask: Tensor) -> Prediction:
        """Scores and attention of some texts."""
        h = self.encode(self.embed(tokens), mask)
        weights = self.attend(h, mask)
        return Prediction(self.scores(h, weights), weights)

    def probabilities(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, C)."""
        return self.output(self(tokens, mask).scores)

    def loss(self, scores: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """The output mapping's own loss, one value a text (B,)."""
        alpha = self._alpha()
        if alpha is None:
            return fenchel_young_loss(
                scores, labels, self.output, weight=class_weights, reduction="none"
            )
        return entmax_loss(scores, labels, alpha, weight=class_weights, reduction="none")

    def _alpha(self) -> float | None:
        if isinstance(self.output, Softmax):
            return 1.0
        if isinstance(self.output, Sparsemax):
            return 2.0
        return float(self.output.alpha) if isinstance(self.output, Entmax) else None
