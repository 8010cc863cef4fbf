"""A bidirectional LSTM encoder that needs no packing.

Packed sequences want their lengths on the host, which rules out CUDA graphs, and are slow on a
CPU. Instead every layer reads one input more, which is 1 at padding. Its weights close the input
gate and open the forget gate there, so that padding leaves the cell as it is: the forward direction
ends with the cell of the last symbol, and the backward one, which meets the padding first, still
has its zeros when it comes to the sentence. A saturated gate has gradient zero, so nothing is
learned in that column; weight decay would still shrink it, so it is set anew in training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CLOSED = 1e4  # sigmoid(-1e4) is 0 and sigmoid(1e4) is 1, in every precision


class Encoded(NamedTuple):
    """States (B, S, hidden) of the last layer, and each layer's final h and c (B, hidden)."""

    states: Tensor
    hidden: list[Tensor]
    cells: list[Tensor]


class BiLSTM(nn.Module):
    """Layers of bidirectional LSTMs with dropout between them.

    Args:
        size: Of the inputs.
        hidden: Of the outputs; each direction has half.
        layers: How many.
        dropout: Between the layers.
    """

    padding: Tensor

    def __init__(self, size: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        if hidden % 2:
            raise ValueError(f"hidden must be even, half for each direction, got {hidden}")
        self.dropout = dropout
        self.layers = nn.ModuleList(
            nn.LSTM(
                (size if layer == 0 else hidden) + 1,
                hidden // 2,
                batch_first=True,
                bidirectional=True,
            )
            for layer in range(layers)
        )
        gates = torch.tensor([-_CLOSED, _CLOSED, 0.0, 0.0])  # into, forget, cell, out
        self.register_buffer("padding", gates.repeat_interleave(hidden // 2), persistent=False)
        self.reset_padding()

    @torch.no_grad()
    def reset_padding(self) -> None:
        """Set the weights of the input that marks padding; call it after any initialisation."""
        for layer in self.layers:
            for name, weight in layer.named_parameters():
                if name.startswith("weight_ih"):
                    weight[:, -1].copy_(self.padding)

    def forward(self, x: Tensor, lengths: Tensor) -> Encoded:
        """Read ``x`` (B, S, size), of which each row has its own length."""
        if self.training:
            self.reset_padding()
        steps = torch.arange(x.shape[1], device=x.device)
        padding = (steps >= lengths[:, None]).to(x.dtype).unsqueeze(-1)
        last = (lengths - 1).view(-1, 1, 1)
        hidden, cells = [], []
        for number, layer in enumerate(self.layers):
            if number > 0:
                x = F.dropout(x, self.dropout, self.training)
            x, (_, c) = self._exactly(layer, torch.cat([x, padding.to(x.dtype)], -1))
            half = x.shape[-1] // 2
            at_end = x[..., :half].gather(1, last.expand(-1, 1, half)).squeeze(1)
            hidden.append(torch.cat([at_end, x[:, 0, half:]], -1))
            cells.append(torch.cat([c[0], c[1]], -1))
        return Encoded(x, hidden, cells)

    def _exactly(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """cuDNN rounds to TF32 if it may; what is not training must not depend on the batch."""
        if self.training or x.device.type != "cuda":
            return layer(x)  # type: ignore[no-any-return]
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            return layer(x)  # type: ignore[no-any-return]
