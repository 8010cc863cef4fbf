"""Encoders: vectors of words to hidden states, one for each word.

All take ``(x, mask)`` with the words of a text at its beginning (:class:`Compact` sees to that),
and no text depends on the others of its batch.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax._core.auditable import Pull
from parsimax.attention import attention
from parsimax.mappings import Softmax, parse

from .config import BiLSTMSettings, TransformerSettings
from .lstm import LSTM
from .lstm_pull import BiLSTMPull
from .transformer_pull import TransformerPull


class BiLSTM(nn.Module):
    """Bidirectional LSTMs without packing, which is slow on a CPU.

    Padding at the end cannot reach the words before it. For the other direction each text is turned
    around within its own length, so that its padding is at the end again.
    """

    def __init__(self, size: int, settings: BiLSTMSettings) -> None:
        super().__init__()
        self.size = 2 * settings.hidden
        self.dropout = settings.dropout
        inputs = [size, *[self.size] * (settings.layers - 1)]
        self.forwards = nn.ModuleList(LSTM(n, settings.hidden) for n in inputs)
        self.backwards = nn.ModuleList(LSTM(n, settings.hidden) for n in inputs)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, E) to (B, L, 2 hidden): forward states, then backward ones; zero at padding."""
        steps = torch.arange(x.shape[1], device=x.device)
        turned = (mask.sum(1, keepdim=True) - 1 - steps) % x.shape[1]  # padding goes anywhere
        for number, (forward, backward) in enumerate(
            zip(self.forwards, self.backwards, strict=True)
        ):
            x = F.dropout(x, self.dropout, self.training and number > 0)
            ahead = forward.states(x)  # type: ignore[operator]
            back = backward.states(_take(x, turned))  # type: ignore[operator]
            x = torch.cat([ahead, _take(back, turned)], -1)
        return x.masked_fill(~mask.unsqueeze(-1), 0.0)

    pulls = True

    def pull(self, x: Tensor) -> Pull:
        """Texts of one length (B, n, E), and the way back from single states."""
        pairs = zip(self.forwards, self.backwards, strict=True)
        return BiLSTMPull([(cast(LSTM, a), cast(LSTM, b)) for a, b in pairs], x)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of each text (B, L, E) by number (B, L)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


class Transformer(nn.Module):
    """Self-attention with sinusoidal positions; each part is normalised before (Xiong et al. 2020).

    Vectors of another size than the layers' are projected first.
    """

    def __init__(self, size: int, settings: TransformerSettings) -> None:
        super().__init__()
        self.size = settings.dim
        self.dropout = settings.dropout
        self.project = nn.Identity() if size == self.size else nn.Linear(size, self.size)
        self.layers = nn.ModuleList(TransformerLayer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(self.size)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, E) to (B, L, dim), zero at padding."""
        x = self.project(x)
        x = F.dropout(x + _positions(x), self.dropout, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        states: Tensor = self.norm(x)
        return states.masked_fill(~mask.unsqueeze(-1), 0.0)

    @property
    def pulls(self) -> bool:
        """Whether the way back is known in closed form."""
        mappings = [layer.mapping for layer in self.layers]
        return all(isinstance(mapping, Softmax) for mapping in mappings)

    def pull(self, x: Tensor) -> Pull:
        """Texts of one length (B, n, E), and the way back from single states."""
        positions = _positions(x.new_empty(x.shape[1], self.size))
        layers = [cast(TransformerLayer, layer) for layer in self.layers]
        return TransformerPull(self.project, layers, self.norm, x, positions)


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward part."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.heads, self.dropout = settings.heads, settings.dropout
        self.mapping = parse(settings.attention)
        dim = settings.dim
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.grow, self.shrink = (
            nn.Linear(dim, settings.feedforward),
            nn.Linear(settings.feedforward, dim),
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, dim) to the same."""
        batch, length, dim = x.shape
        parts = self.project(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = mask[:, None, None, :]
        context = attention(q, k, v, seen, mapping=self.mapping)
        x = x + self._drop(self.out(context.transpose(1, 2).reshape(batch, length, dim)))
        inner = self._drop(F.relu(self.grow(self.feedforward_norm(x))))
        return x + self._drop(self.shrink(inner))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def _positions(x: Tensor) -> Tensor:
    """Sines and cosines (Vaswani et al. 2017, Section 3.5) for (B, L, dim)."""
    length, dim = x.shape[-2:]
    half = (dim + 1) // 2
    number = torch.arange(half, device=x.device, dtype=torch.float64)
    angle = torch.arange(length, device=x.device, dtype=torch.float64)[:, None] * torch.exp(
        number * (-math.log(1e4) / half)
    )
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :dim].to(x.dtype)


class Compact(nn.Module):
    """An encoder to which a position without a token is not there, wherever it is.

    Words move together before the inner encoder reads them, and its states move back. So
    masking a word is the same as removing it.

    Args:
        inner: The encoder.
        size: Of the vectors it reads.
        boundaries: Whether it reads a learned vector before the first word and after the last;
            they have no state of their own outside.
    """

    def __init__(self, inner: BiLSTM | Transformer, size: int, boundaries: bool) -> None:
        super().__init__()
        self.inner = inner
        self.size = inner.size
        self.edges = nn.Parameter(torch.randn(2, size)) if boundaries else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, E) to (B, L, H); zero where there is no token."""
        begin = mask.long().cumprod(1).bool()
        if bool((begin == mask).all()):
            return self._bounded(x, mask)
        order = (~mask).long().argsort(dim=1, stable=True)
        back = order.argsort(dim=1)
        return _take(self._bounded(_take(x, order), mask.gather(1, order)), back)

    def _bounded(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.edges is None:
            return self.inner(x, mask)  # type: ignore[no-any-return]
        batch = x.shape[0]
        first, last = self.edges.to(x.dtype)
        wide = torch.cat([first.expand(batch, 1, -1), x, x.new_zeros(batch, 1, x.shape[-1])], 1)
        end = F.one_hot(mask.sum(1) + 1, wide.shape[1]).bool()
        wide = torch.where(end.unsqueeze(-1), last, wide)
        steps = torch.arange(wide.shape[1], device=x.device)
        within = steps <= mask.sum(1, keepdim=True) + 1
        states: Tensor = self.inner(wide, within)
        return states[:, 1:-1].masked_fill(~mask.unsqueeze(-1), 0.0)

    @property
    def pulls(self) -> bool:
        """Whether there is a way back without autograd."""
        return self.inner.pulls

    def pull(self, x: Tensor) -> Pull:
        """Texts of one length (B, n, E) without padding, and the way back from single states."""
        if self.edges is None:
            return self.inner.pull(x)
        edges = self.edges.to(x.dtype).expand(len(x), 2, -1)
        return _Within(self.inner.pull(torch.cat([edges[:, :1], x, edges[:, 1:]], 1)))


class _Within:
    """The way through an encoder that reads one vector more on both sides."""

    def __init__(self, whole: Pull) -> None:
        self._whole = whole
        self.states = whole.states[:, 1:-1]

    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        return self._whole(at + 1, vectors)[:, :, 1:-1]


def build(settings: BiLSTMSettings | TransformerSettings, size: int, boundaries: bool) -> Compact:
    """The encoder that settings describe, for vectors of a size."""
    if isinstance(settings, BiLSTMSettings):
        return Compact(BiLSTM(size, settings), size, boundaries)
    return Compact(Transformer(size, settings), size, boundaries)
