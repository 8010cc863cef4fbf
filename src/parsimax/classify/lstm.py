"""LSTMs, and what audits ask of them: gradients of inputs alone, for many rows at once.

Torch's own backward on a CPU computes the gradients of the weights too, whether or not anybody
wants them, and walks through all steps even if only one state has a gradient. An audit needs as
many backwards as a text has states, and needs neither.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# With fewer rows than this, steps are so short that one call for all of them is faster.
_ROWS = 16


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
        only_inputs = torch.is_grad_enabled() and x.requires_grad and len(x) >= _ROWS
        weights = list(self.parameters())
        if only_inputs and not any(weight.requires_grad for weight in weights):
            w_in, w_hidden, bias_in, bias_hidden = weights
            bias = bias_in + bias_hidden
            found: Tensor = _InputGradients.apply(x, w_in, w_hidden, bias)  # type: ignore[no-untyped-call]
            return found
        states: Tensor = self(x)[0]
        return states

    def _on_gpu(self, x: Tensor) -> Tensor:
        """CuDNN rounds to TF32 if it may, and then a result depends on the rest of its batch."""
        cudnn = torch.backends.cudnn
        with cudnn.flags(enabled=True, deterministic=cudnn.deterministic, allow_tf32=False):
            states: Tensor = self(x)[0]
        return states


class _InputGradients(torch.autograd.Function):
    """States of an LSTM whose weights are constants.

    With gates i, f, g, o and cells c_t = f c_{t−1} + i g, states h_t = o tanh(c_t), the gradients
    of the gates' scores are those of c_t or h_t times factors that no gradient changes. They are
    computed once, and each of many backwards takes five operations a step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_in: Tensor, w_hidden: Tensor, bias: Tensor) -> Tensor:
        rows, steps, _ = x.shape
        size = w_hidden.shape[1]
        gates = torch.nn.functional.linear(x.transpose(0, 1), w_in, bias)  # (L, B, 4 H)
        cells = gates.new_empty(steps, rows, size)
        states = gates.new_empty(steps, rows, size)
        h = c = gates.new_zeros(rows, size)
        turned = w_hidden.t()
        for gate, cell, state in zip(gates, cells, states, strict=True):
            gate.addmm_(h, turned)
            i, f, g, o = gate.chunk(4, -1)
            gate[:, : 2 * size].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=cell).addcmul_(i, g)
            torch.tanh(cell, out=state).mul_(o)
            h, c = state, cell
        i, f, g, o = gates.chunk(4, -1)
        bent = cells.tanh()
        before = torch.cat([cells.new_zeros(1, rows, size), cells[:-1]])
        factors = torch.cat(
            [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)], -1
        )
        to_cell = o * (1 - bent * bent)
        ctx.save_for_backward(factors, to_cell, f.contiguous(), w_in, w_hidden)
        return states.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        factors, to_cell, forget, w_in, w_hidden = ctx.saved_tensors
        steps, rows, size = to_cell.shape
        # what comes after the last state with a gradient does not matter to it
        asked = (grad != 0).any(-1).any(0).nonzero()
        last = int(asked[-1]) + 1 if len(asked) else 0
        wanted = grad[:, :last].transpose(0, 1).contiguous()
        scores = factors.new_empty(last, rows, 4 * size)
        dh = dc = grad.new_zeros(rows, size)
        for t in range(last - 1, -1, -1):
            dh = wanted[t] if t == last - 1 else torch.addmm(wanted[t], scores[t + 1], w_hidden)
            dc = torch.addcmul(dc, dh, to_cell[t])
            factor, score = factors[t].view(rows, 4, size), scores[t].view(rows, 4, size)
            torch.mul(dc[:, None], factor[:, :3], out=score[:, :3])
            torch.mul(dh, factor[:, 3], out=score[:, 3])
            dc = dc * forget[t]
        inputs = grad.new_zeros(rows, steps, w_in.shape[1])
        if last:
            inputs[:, :last] = (scores @ w_in).transpose(0, 1)
        return inputs, None, None, None
