"""Gradients of single states of recurrent encoders in their inputs, all states in one walk.

With gates i, f, g, o and cells c_t = f c_{t−1} + i g, states h_t = o tanh(c_t), the gradients of
the gates' scores are those of c_t or h_t times factors that no gradient changes. They are computed
once for a text. Then its states walk back together: at step t those from t on take part, and the
step is one matrix product for all of them, where a backward of its own for each is a product of a
matrix and a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .lstm import LSTM


@dataclass(frozen=True)
class _Tape:
    """What a walk needs of D layers that ran over B texts of one length, each in its own time."""

    factors: Tensor  # (n, D, 1, B, 4, H): from gradients of cells, for o of states, to the scores'
    to_cell: Tensor  # (n, D, 1, B, H): from the gradient of states to that of cells
    forget: Tensor  # (n, D, 1, B, H): from that of cells to that of the cells before
    w_in: Tensor  # (D, 4 H, E)
    w_hidden: Tensor  # (D, 4 H, H)

    def only(self, d: int) -> _Tape:
        """Of one of the layers."""
        part = slice(d, d + 1)
        return _Tape(
            self.factors[:, part],
            self.to_cell[:, part],
            self.forget[:, part],
            self.w_in[part],
            self.w_hidden[part],
        )


class BiLSTMPull:
    """The way of some texts of one length through a bidirectional encoder, and back.

    Args:
        layers: Of each layer the one that reads ahead and the one that reads from the end.
        x: The texts' vectors (B, n, E).
    """

    def __init__(self, layers: Sequence[tuple[LSTM, LSTM]], x: Tensor) -> None:
        self._tapes = []
        for pair in layers:
            inputs = (x, x.flip(1))
            states = tuple(layer(part)[0] for layer, part in zip(pair, inputs, strict=True))
            self._tapes.append(_tape(pair, inputs, states))
            x = torch.cat([states[0], states[1].flip(1)], -1)
        self.states = x  # (B, n, 2 H)

    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        """Gradients (B, P, n, E) of ⟨v, h_p⟩ for states p in ``at`` (P,), v (B, P, 2 H)."""
        order = at.argsort()
        if not torch.equal(order, torch.arange(len(at), device=at.device)):
            return self(at[order], vectors[:, order])[:, order.argsort()]
        ahead, behind = vectors.transpose(0, 1).chunk(2, -1)  # (P, B, H)
        start = torch.stack([ahead, behind.flip(0)])
        times = torch.stack([at, self.states.shape[1] - 1 - at.flip(0)])  # ascending, both
        top = self._tapes[-1]
        if torch.equal(times[0], times[1]):  # both directions in one
            found = _walk(top, times[0], start)
        else:
            each = [_walk(top.only(d), times[d], start[d : d + 1]) for d in (0, 1)]
            found = torch.cat(each, 1)
        whole = found[:, 0] + found[:, 1].flip(0, 1)  # (n, P, B, E)
        for tape in reversed(self._tapes[:-1]):
            ahead, behind = whole.chunk(2, -1)
            found = _walk_all(tape, torch.stack([ahead, behind.flip(0)], 1))
            whole = found[:, 0] + found[:, 1].flip(0)
        return whole.permute(2, 1, 0, 3)


def _tape(pair: tuple[LSTM, LSTM], inputs: tuple[Tensor, ...], states: tuple[Tensor, ...]) -> _Tape:
    """``inputs`` (B, n, E) and ``states`` (B, n, H) of both, each in the order of reading."""
    scores = []
    for layer, x, h in zip(pair, inputs, states, strict=True):
        w_in, w_hidden, bias_in, bias_hidden = layer.parameters()
        # the states are known, so that the gates of all steps are one product
        gates = F.linear(x, w_in, bias_in + bias_hidden)
        gates[:, 1:] += F.linear(h[:, :-1], w_hidden)
        scores.append(gates)
    i, f, g, o = torch.stack(scores).permute(2, 0, 1, 3).contiguous().chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()  # (n, D, B, H)
    cells = i * g
    for step in range(1, len(cells)):
        cells[step].addcmul_(f[step], cells[step - 1])
    earlier = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    bent = cells.tanh()
    factors = [g * i * (1 - i), earlier * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)]
    weights = [list(layer.parameters()) for layer in pair]
    return _Tape(
        torch.stack(factors, -2).unsqueeze(2),
        (o * (1 - bent * bent)).unsqueeze(2),
        f.unsqueeze(2),
        torch.stack([w[0] for w in weights]),
        torch.stack([w[1] for w in weights]),
    )


def _walk(tape: _Tape, times: Tensor, start: Tensor) -> Tensor:
    """Gradients (n, D, P, B, E) of states at ascending ``times``, from ``start`` (D, P, B, H)."""
    steps = len(tape.factors)
    found = start.new_zeros(steps, *start.shape[:3], tape.w_in.shape[-1])
    walk = _Walk(tape, start.clone(), found)
    first = torch.searchsorted(times, torch.arange(steps, device=times.device)).tolist()
    for t in range(int(times[-1]), -1, -1):
        walk.step(t, first[t])
    return found


def _walk_all(tape: _Tape, grads: Tensor) -> Tensor:
    """The same from gradients (n, D, P, B, H) of all states."""
    found = grads.new_empty(*grads.shape[:4], tape.w_in.shape[-1])
    walk = _Walk(tape, torch.zeros_like(grads[0]), found)
    for t in range(len(grads) - 1, -1, -1):
        walk.dh += grads[t]
        walk.step(t, 0)
    return found


class _Walk:
    """Gradients of states on their way back, (D, P, B, H).

    Those of a state that has not had its turn stay where they start.
    """

    def __init__(self, tape: _Tape, dh: Tensor, found: Tensor) -> None:
        self._tape, self._found, self.dh = tape, found, dh
        self._dc = torch.zeros_like(dh)
        self._scores = dh.new_empty(*dh.shape[:3], 4, dh.shape[-1])

    def step(self, t: int, first: int) -> None:
        """From step t to the one before, for all states from number ``first`` on."""
        dh, dc, scores = self.dh[:, first:], self._dc[:, first:], self._scores[:, first:]
        factors = self._tape.factors[t]
        dc.addcmul_(dh, self._tape.to_cell[t])
        torch.mul(dc.unsqueeze(-2), factors[..., :3, :], out=scores[..., :3, :])
        torch.mul(dh, factors[..., 3, :], out=scores[..., 3, :])
        dc.mul_(self._tape.forget[t])
        rows = scores.flatten(3).flatten(1, 2)
        torch.bmm(rows, self._tape.w_hidden, out=dh.flatten(1, 2))
        torch.bmm(rows, self._tape.w_in, out=self._found[t, :, first:].flatten(1, 2))
