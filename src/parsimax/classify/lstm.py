"""One layer of a recurrent encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LSTM(nn.LSTM):
    """One layer, one direction, always in training mode.

    It has no dropout of its own, so that its mode changes no number. But in evaluation mode cuDNN
    keeps nothing for a backward pass and then refuses it, and audits need gradients.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def train(self, mode: bool = True) -> LSTM:
        """Do nothing."""
        return self

    def states(self, x: Tensor) -> Tensor:
        """(B, L, E) to (B, L, H)."""
        if x.device.type == "cuda":
            return self._on_gpu(x)
        states: Tensor = self(x)[0]
        return states

    def _on_gpu(self, x: Tensor) -> Tensor:
        """CuDNN rounds to TF32 if it may, and then a result depends on the rest of its batch."""
        cudnn = torch.backends.cudnn
        with cudnn.flags(enabled=True, deterministic=cudnn.deterministic, allow_tf32=False):
            states: Tensor = self(x)[0]
        return states
