r"""The recurrent model of Peters, Niculae & Martins (2019), Section 2, after Luong et al. (2015).

A bidirectional LSTM reads the source. The decoder, an LSTM with input feeding, asks at each step

.. math:: z_j = s_t^\top W^{(z)} h_j, \quad c_t = \sum_j \Pi(z)_j h_j, \quad
    o_t = \tanh(W^{(o)} [s_t; c_t])

and the output layer turns :math:`o_t` into a distribution over the next symbol. With a fertility,
a source symbol is used up by the attention it receives (see :mod:`parsimax.attention.fertility`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parsimax._core.dtypes import working
from parsimax.attention.fertility import fertility_weights, read_bounded
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.symbols import PAD

from .base import Measures, Seq2Seq
from .embedding import embeddings
from .encoder import BiLSTM
from .measuring import measures
from .output import OutputLayer
from .settings import RNNSettings
from .weighing import Weighing


class Memory(NamedTuple):
    """What the decoder looks at: values (B, S, H), keys (B, H, S), and 0 or -inf (B, 1, S).

    With fertility the last of S is the sink.
    """

    values: Tensor
    keys: Tensor
    hidden_places: Tensor


class RNNState(NamedTuple):
    """A prefix: what the decoder looks at, h and c of each layer, and the last output.

    With fertility also what is left of it for each source symbol, (B, 1, S - 1).
    """

    memory: Memory
    hidden: tuple[Tensor, ...]
    cells: tuple[Tensor, ...]
    feed: Tensor
    left: Tensor | None = None


class RNN(Seq2Seq[RNNState]):
    """A sequence-to-sequence model from settings and two vocabulary sizes."""

    def __init__(self, settings: RNNSettings, source_size: int, target_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.source_size, self.vocabulary_size = source_size, target_size
        size, hidden = settings.embedding, settings.hidden
        self.source_embedding, self.target_embedding = embeddings(
            size, source_size, target_size, settings.share_embeddings
        )
        self.encoder = BiLSTM(size, hidden, settings.encoder_layers, settings.dropout)
        self.cells = nn.ModuleList(
            nn.LSTMCell(size + hidden if layer == 0 else hidden, hidden)
            for layer in range(settings.decoder_layers)
        )
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.sink = settings.fertility is not None
        if self.sink:
            _, self._bounded = read_bounded(settings.attention)
            self.sink_state = nn.Parameter(torch.empty(hidden))
        self.weighing = Weighing(settings.attention, heads=1)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.output = OutputLayer(hidden, target_size, settings.output)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Uniform between -init and init, but for a learned alpha and what stands for padding."""
        for name, parameter in self.named_parameters():
            if not name.startswith("weighing."):
                parameter.uniform_(-self.settings.init, self.settings.init)
        self.encoder.reset_padding()
        self.source_embedding.weight[PAD] = 0.0
        self.target_embedding.weight[PAD] = 0.0

    # --- the decoder -----------------------------------------------------------------------------

    def start(self, source: Tensor, source_lengths: Tensor) -> RNNState:
        """The state before the first symbol."""
        encoded = self.encoder(self.source_embedding(source), source_lengths)
        places = torch.arange(source.shape[1], device=source.device) >= source_lengths[:, None]
        blocked = torch.zeros_like(places, dtype=torch.float32).masked_fill(places, -torch.inf)
        states, blocked = encoded.states, blocked.to(encoded.states.dtype)[:, None]
        left = None
        if self.settings.fertility is not None:
            left = torch.full_like(working(blocked), self.settings.fertility)
            last = self.sink_state.to(states.dtype).expand(len(states), 1, -1)
            states, blocked = torch.cat([states, last], 1), F.pad(blocked, (0, 1))
        memory = Memory(states, self.score(states).mT, blocked)
        top = len(encoded.hidden) - 1
        layers = [min(layer, top) for layer in range(len(self.cells))]
        hidden = tuple(encoded.hidden[layer] for layer in layers)
        cells = tuple(encoded.cells[layer] for layer in layers)
        return RNNState(memory, hidden, cells, torch.zeros_like(hidden[-1]), left)

    def _advance(self, state: RNNState, embedded: Tensor) -> tuple[Tensor, RNNState]:
        """One step: the weights of attention (B, 1, S), and the state, whose feed is the output."""
        x = torch.cat([embedded, state.feed], -1)
        hidden, cells = [], []
        for number, cell in enumerate(self.cells):
            if number > 0:
                x = F.dropout(x, self.settings.dropout, self.training)
            x, c = cell(x, (state.hidden[number], state.cells[number]))
            hidden.append(x)
            cells.append(c)
        memory = state.memory
        scores = torch.baddbmm(memory.hidden_places, x.unsqueeze(1), memory.keys)
        weights, left = self._weigh(scores, state.left)
        context = torch.bmm(weights.to(memory.values.dtype), memory.values).squeeze(1)
        feed = torch.tanh(self.combine(torch.cat([x, context], -1)))
        feed = F.dropout(feed, self.settings.dropout, self.training)
        return weights, RNNState(memory, tuple(hidden), tuple(cells), feed, left)

    def _weigh(self, scores: Tensor, left: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights, and what is left of fertility."""
        if left is None:
            return self.weighing(scores), None
        return fertility_weights(scores, left, self._bounded, self.settings.exhaustion, sink=True)

    def _unroll(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Outputs (B, T, hidden) under teacher forcing, and the weights of each step."""
        state = self.start(batch.source, batch.source_lengths)
        outputs, weights = [], []
        for embedded in self.target_embedding(batch.decoder_input).unbind(1):
            looked, state = self._advance(state, embedded)
            outputs.append(state.feed)
            weights.append(looked)
        return torch.stack(outputs, 1), weights

    # --- what a model offers ---------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        """The loss, summed over all target symbols that are not padding."""
        assert batch.target is not None
        return self.output.loss(self._unroll(batch)[0], batch.target)

    def measure(self, batch: Batch, epsilon: float = 1e-6) -> Measures:
        """Sums over the batch, under teacher forcing."""
        hidden, steps = self._unroll(batch)
        weights = torch.stack(steps, 2)[..., : batch.source.shape[1]]  # not the sink
        return measures(batch, hidden, weights, self.output, epsilon)

    def attention(self, batch: Batch) -> dict[str, Tensor]:
        """``context``: (B, 1, 1, T, S), or S + 1 with the sink last."""
        return {"context": torch.stack(self._unroll(batch)[1], 2).unsqueeze(1)}

    def alphas(self) -> dict[str, Tensor]:
        """``context``: (1, 1), if it is learned."""
        learned = self.weighing.learned
        return {} if learned is None else {"context": learned().detach()[None]}

    def step(self, state: RNNState, previous: Tensor) -> tuple[Tensor, RNNState]:
        """Probabilities of what follows ``previous``, and the next state."""
        _, state = self._advance(state, self.target_embedding(previous))
        return self.output.probabilities(state.feed), state

    def select(self, state: RNNState, rows: Tensor) -> RNNState:
        """The state of these rows, in this order."""

        def pick(x: Tensor) -> Tensor:
            return x.index_select(0, rows)

        return RNNState(
            Memory(*map(pick, state.memory)),
            tuple(map(pick, state.hidden)),
            tuple(map(pick, state.cells)),
            pick(state.feed),
            None if state.left is None else pick(state.left),
        )
