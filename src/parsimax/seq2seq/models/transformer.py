"""The Transformer of Vaswani et al. (2017), adaptively sparse as in Correia et al. (2019).

Self-attention of the encoder, attention of the decoder on the encoder (the context), and causal
self-attention of the decoder each have their own mapping, or one learned alpha a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import PAD

from .base import Measures, Seq2Seq
from .embedding import embeddings
from .heads import Heads
from .measuring import measures
from .output import OutputLayer
from .positions import positions
from .settings import TransformerSettings

Pair = tuple[Tensor, Tensor]  # keys and values (N, heads, L, E)


class TransformerState(NamedTuple):
    """A prefix: its length, keys and values of the source and of the prefix in each layer."""

    length: int
    seen: Tensor  # (N, 1, 1, S), True where the source has a symbol
    source: tuple[Pair, ...]
    prefix: tuple[Pair, ...]


class _Residual(nn.Module):
    """What surrounds each part of a layer: the norm, before or after, and the sum."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.dim)
        self.before, self.dropout = settings.norm == "pre", settings.dropout

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        if self.before:
            return x + F.dropout(part(self.norm(x)), self.dropout, self.training)
        y: Tensor = self.norm(x + F.dropout(part(x), self.dropout, self.training))
        return y


class _FeedForward(nn.Module):
    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.into = nn.Linear(settings.dim, settings.feedforward)
        self.out = nn.Linear(settings.feedforward, settings.dim)
        self.dropout = settings.dropout

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(F.dropout(F.relu(self.into(x)), self.dropout, self.training))
        return y


class _EncoderLayer(nn.Module):
    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = Heads(settings, settings.encoder_attention)
        self.feedforward = _FeedForward(settings)
        self.around = nn.ModuleList(_Residual(settings) for _ in range(2))

    def forward(self, x: Tensor, seen: Tensor, looked: list[Tensor] | None = None) -> Tensor:
        x = self.around[0](
            x, lambda y: self.attention(y, self.attention.keys(y), seen=seen, looked=looked)
        )
        y: Tensor = self.around[1](x, self.feedforward)
        return y


class _DecoderLayer(nn.Module):
    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.attention = Heads(settings, settings.decoder_attention)
        self.context = Heads(settings, settings.context_attention)
        self.feedforward = _FeedForward(settings)
        self.around = nn.ModuleList(_Residual(settings) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        source: Pair,
        seen: Tensor,
        prefix: Pair | None = None,
        looked: tuple[list[Tensor] | None, list[Tensor] | None] = (None, None),
    ) -> tuple[Tensor, Pair]:
        """The layer's output, and keys and values of all symbols up to here."""
        pairs: list[Pair] = []

        def attend(y: Tensor) -> Tensor:
            keys = self.attention.keys(y)
            if prefix is not None:
                keys = torch.cat([prefix[0], keys[0]], 2), torch.cat([prefix[1], keys[1]], 2)
            pairs.append(keys)
            # one symbol more than the prefix sees everything; several see what precedes them
            out: Tensor = self.attention(y, keys, causal=y.shape[1] > 1, looked=looked[0])
            return out

        x = self.around[0](x, attend)
        x = self.around[1](x, lambda y: self.context(y, source, seen=seen, looked=looked[1]))
        return self.around[2](x, self.feedforward), pairs[0]


class Transformer(Seq2Seq[TransformerState]):
    """A Transformer from settings and two vocabulary sizes."""

    def __init__(self, settings: TransformerSettings, source_size: int, target_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.source_size, self.vocabulary_size = source_size, target_size
        self.source_embedding, self.target_embedding = embeddings(
            settings.dim, source_size, target_size, settings.share_embeddings
        )
        self.encoder = nn.ModuleList(
            _EncoderLayer(settings) for _ in range(settings.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            _DecoderLayer(settings) for _ in range(settings.decoder_layers)
        )
        last = settings.norm == "pre"  # what a layer leaves un-normed is normed at the end
        self.encoder_norm = nn.LayerNorm(settings.dim) if last else nn.Identity()
        self.decoder_norm = nn.LayerNorm(settings.dim) if last else nn.Identity()
        tied = self.target_embedding if settings.tie_output else None
        self.output = OutputLayer(settings.dim, target_size, settings.output, tied)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Glorot's uniform for matrices; embeddings of unit length once they are scaled."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.settings.dim**-0.5)
                module.weight[PAD] = 0.0

    # --- encoder and decoder ---------------------------------------------------------------------

    def _embed(self, table: nn.Embedding, symbols: Tensor, first: int = 0) -> Tensor:
        x = table(symbols) * self.settings.dim**0.5
        x = x + positions(first, symbols.shape[1], x)
        return F.dropout(x, self.settings.dropout, self.training)

    def _encode(
        self, source: Tensor, lengths: Tensor, looked: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """States (B, S, dim), and where there are symbols (B, 1, 1, S)."""
        places = torch.arange(source.shape[1], device=source.device)
        seen = (places < lengths[:, None])[:, None, None]
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, seen, looked)
        return self.encoder_norm(x), seen

    def _decode(
        self,
        state: TransformerState,
        symbols: Tensor,
        looked: tuple[list[Tensor] | None, list[Tensor] | None] = (None, None),
    ) -> tuple[Tensor, TransformerState]:
        """Outputs (N, L, dim) for these symbols after the prefix, and the state after them."""
        x = self._embed(self.target_embedding, symbols, state.length)
        pairs = []
        for number, layer in enumerate(self.decoder):
            prefix = state.prefix[number] if state.prefix else None
            x, pair = layer(x, state.source[number], state.seen, prefix, looked)
            pairs.append(pair)
        after = state._replace(length=state.length + symbols.shape[1], prefix=tuple(pairs))
        return self.decoder_norm(x), after

    def _unroll(self, batch: Batch, looked: dict[str, list[Tensor]] | None = None) -> Tensor:
        """Outputs (B, T, dim) under teacher forcing.

        The lists in ``looked`` receive the weights of each layer; of a kind without a list, no
        weights are kept.
        """
        into = (looked or {}).get
        state = self._start(batch.source, batch.source_lengths, into("encoder"))
        return self._decode(state, batch.decoder_input, (into("decoder"), into("context")))[0]

    def _start(
        self, source: Tensor, lengths: Tensor, looked: list[Tensor] | None
    ) -> TransformerState:
        memory, seen = self._encode(source, lengths, looked)
        pairs = tuple(heads.keys(memory) for heads in self._heads()["context"])
        return TransformerState(0, seen, pairs, ())

    # --- what a model offers ---------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        """The loss, summed over all target symbols that are not padding."""
        assert batch.target is not None
        return self.output.loss(self._unroll(batch), batch.target)

    def measure(self, batch: Batch, epsilon: float = 1e-6) -> Measures:
        """Sums over the batch, under teacher forcing."""
        looked: dict[str, list[Tensor]] = {"context": []}  # weights of the others are not needed
        hidden = self._unroll(batch, looked)
        return measures(batch, hidden, torch.cat(looked["context"], 1), self.output, epsilon)

    def attention(self, batch: Batch) -> dict[str, Tensor]:
        """``encoder`` (B, layer, head, S, S), ``context`` and ``decoder``."""
        looked: dict[str, list[Tensor]] = {"encoder": [], "context": [], "decoder": []}
        self._unroll(batch, looked)
        return {kind: torch.stack(weights, 1) for kind, weights in looked.items()}

    def alphas(self) -> dict[str, Tensor]:
        """(layer, head) for each kind of attention that learns them."""
        learned = {
            kind: [heads.weighing.learned() for heads in layers if heads.weighing.learned]
            for kind, layers in self._heads().items()
        }
        return {kind: torch.stack(each).detach() for kind, each in learned.items() if each}

    def _heads(self) -> dict[str, list[Heads]]:
        encoder: list[Any] = list(self.encoder)
        decoder: list[Any] = list(self.decoder)
        return {
            "encoder": [layer.attention for layer in encoder],
            "context": [layer.context for layer in decoder],
            "decoder": [layer.attention for layer in decoder],
        }

    def start(self, source: Tensor, source_lengths: Tensor) -> TransformerState:
        """The state before the first symbol."""
        return self._start(source, source_lengths, None)

    def step(self, state: TransformerState, previous: Tensor) -> tuple[Tensor, TransformerState]:
        """Probabilities of what follows ``previous``, and the next state."""
        hidden, state = self._decode(state, previous[:, None])
        return self.output.probabilities(hidden[:, 0]), state

    def select(self, state: TransformerState, rows: Tensor) -> TransformerState:
        """The state of these rows, in this order."""

        def pick(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
            return tuple((k.index_select(0, rows), v.index_select(0, rows)) for k, v in pairs)

        seen = state.seen.index_select(0, rows)
        return TransformerState(state.length, seen, pick(state.source), pick(state.prefix))
