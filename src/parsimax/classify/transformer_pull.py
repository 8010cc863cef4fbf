"""Gradients of single states of Transformer encoders in their inputs, without a graph.

Above the last self-attention a state has a gradient at its own position only. Through that
attention its gradient in the values of position j is a weight times one vector for each head, and
likewise in the keys: a few products for all positions instead of the whole layer. Layers below have
gradients everywhere. There activations are shared by all states, each matrix product is one for
all of them, and results are written where the last ones were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from .encoders import TransformerLayer

# Positions of states in one go: enough for products at full speed, few enough for a cache.
_ROWS = 1024


class TransformerPull:
    """The way of some texts of one length through a Transformer with softmax, and back.

    Args:
        project: From vectors to the size of the layers.
        layers: The layers.
        norm: After the last one.
        x: The texts' vectors (B, n, E).
        positions: What is added to them behind the projection, (n, d).
    """

    def __init__(
        self,
        project: nn.Module,
        layers: Sequence[TransformerLayer],
        norm: nn.LayerNorm,
        x: Tensor,
        positions: Tensor,
    ) -> None:
        self._project = project.weight if isinstance(project, nn.Linear) else None
        self._tapes = []
        x = project(x) + positions
        for layer in layers:
            self._tapes.append(_Tape(layer, x))
            x = self._tapes[-1].states
        self._norm, self._gain = _Norm(norm, x), norm.weight
        self.states = self._norm.out  # (B, n, d)

    def __call__(self, at: Tensor, vectors: Tensor) -> Tensor:
        """Gradients (B, P, n, E) of ⟨v, h_p⟩ for states p in ``at`` (P,), v (B, P, d)."""
        batch, length, _ = self.states.shape
        size = self.states.shape[-1] if self._project is None else self._project.shape[1]
        found = vectors.new_empty(batch, length, len(at), size)
        portion = max(1, _ROWS // (batch * length))
        space = _Space(vectors)
        for first in range(0, len(at), portion):
            part = slice(first, first + portion)
            grad = self._pull(at[part], vectors[:, part], space)
            found[:, :, part] = grad if self._project is None else grad @ self._project
        return found.transpose(1, 2)

    def _pull(self, at: Tensor, vectors: Tensor, space: _Space) -> Tensor:
        gained = vectors * self._gain
        grad = self._norm.back(gained - gained.mean(-1, keepdim=True), at)
        grad = self._tapes[-1].pull_one(at, grad)
        for tape in reversed(self._tapes[:-1]):
            tape.pull(grad, space)
        return grad


class _Norm:
    """What layer normalisation was like at x (B, n, d), and its transposed derivative there.

    The gain is left to the weights around it, and so is taking the mean off a gradient.
    """

    def __init__(self, norm: nn.LayerNorm, x: Tensor) -> None:
        centred = x - x.mean(-1, keepdim=True)
        self.scale = (centred.square().mean(-1, keepdim=True) + norm.eps).rsqrt()  # (B, n, 1)
        self.unit = centred * self.scale
        self.out = self.unit * norm.weight + norm.bias

    def back(self, grad: Tensor, at: Tensor) -> Tensor:
        """From a centred gradient (B, P, d), at one position for each state."""
        unit = self.unit[:, at]
        along = (grad * unit).mean(-1, keepdim=True)
        return torch.addcmul(grad, unit, along, value=-1) * self.scale[:, at]


class _Reader:
    """A linear layer that reads what a norm puts out, as gradients go back through both.

    Args:
        linear: The layer, of weight (m, d).
        norm: The norm before it.
        x: What the norm read, (B, n, d).
    """

    def __init__(self, linear: nn.Linear, norm: nn.LayerNorm, x: Tensor) -> None:
        self.norm = _Norm(norm, x)
        self.out = linear(self.norm.out)
        gained = linear.weight * norm.weight
        self.weight = gained - gained.mean(-1, keepdim=True)  # gradients it gives have mean zero

    def add_back(self, grad: Tensor, outs: Tensor, space: _Space) -> None:
        """Add to ``grad`` (B n, P, d) what ``outs`` (B n, P, m), scaled already, lead to."""
        unit = self.norm.unit.flatten(0, 1).unsqueeze(1)
        back, product = space("back", *grad.shape), space("product", *grad.shape)
        torch.mm(outs.view(-1, outs.shape[-1]), self.weight, out=back.view(-1, back.shape[-1]))
        along = torch.mul(back, unit, out=product).mean(-1, keepdim=True)
        grad += back.addcmul_(unit, along, value=-1)


class _Space:
    """Memory that is used again: fresh memory costs more time than filling it."""

    def __init__(self, like: Tensor) -> None:
        self._like, self._held = like, dict[str, Tensor]()

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of some shape that holds anything."""
        size = 1
        for n in shape:
            size *= n
        if name not in self._held or self._held[name].numel() < size:
            self._held[name] = self._like.new_empty(size)
        return self._held[name][:size].view(shape)


class _Tape:
    """One layer that ran over texts (B, n, d)."""

    def __init__(self, layer: TransformerLayer, x: Tensor) -> None:
        batch, length, dim = x.shape
        self._heads, self._size = layer.heads, dim // layer.heads
        self._project = _Reader(layer.project, layer.attention_norm, x)
        parts = self._project.out.view(batch, length, 3, self._heads, self._size)
        q, k, v = parts.permute(2, 0, 3, 1, 4).contiguous().unbind(0)  # (B, h, n, s)
        self._q, self._k, self._v = q * self._size**-0.5, k, v
        self._weights = (self._q @ k.mT).softmax(-1)
        self._context = self._weights @ v
        y = x + layer.out(self._context.transpose(1, 2).reshape(batch, length, dim))
        self._grow = _Reader(layer.grow, layer.feedforward_norm, y)
        self._open = (self._grow.out > 0).to(x.dtype)  # (B, n, f)
        self._w_shrink, self._w_out = layer.shrink.weight, layer.out.weight
        self.states = y + layer.shrink(F.relu(self._grow.out))

    def pull_one(self, at: Tensor, grad: Tensor) -> Tensor:
        """Gradients (B, n, P, d) in the layer's inputs from (B, P, d) at positions ``at``."""
        batch, count, dim = grad.shape
        inner = (grad @ self._w_shrink) * self._open[:, at]
        grad = grad + self._grow.norm.back(inner @ self._grow.weight, at)
        split = (grad @ self._w_out).view(batch, count, self._heads, self._size).transpose(1, 2)
        weights, queries = self._weights[:, :, at], self._q[:, :, at]  # (B, h, P, n), (B, h, P, s)
        mean = (split * self._context[:, :, at]).sum(-1, keepdim=True)
        scores = (split @ self._v.mT - mean) * weights
        # a head adds to every position a number times a vector that is the same for all of them
        w_q, w_k, w_v = self._project.weight.view(3, self._heads, self._size, dim)
        numbers = torch.cat([weights, scores], 1).permute(0, 2, 3, 1)  # (B, P, n, 2 h)
        vectors = torch.cat([split @ w_v, queries @ w_k], 1).transpose(1, 2)  # (B, P, 2 h, d)
        found = (numbers @ vectors).transpose(1, 2).contiguous()
        each = torch.arange(count, device=at.device)
        found[:, at, each] += ((scores @ self._k) @ w_q).sum(1) * self._size**-0.5
        norm = self._project.norm
        along = found @ (norm.unit / -dim).unsqueeze(-1)
        found.addcmul_(along, norm.unit.unsqueeze(2)).mul_(norm.scale.unsqueeze(2))
        found[:, at, each] += grad
        return found

    def pull(self, grad: Tensor, space: _Space) -> None:
        """Gradients (B, n, P, d) of all states become those of the layer's inputs, in place."""
        batch, length, count, dim = grad.shape
        heads, size = self._heads, self._size
        grad = grad.flatten(0, 1)
        rows = grad.view(-1, dim)
        inner = space("inner", batch * length, count, self._w_shrink.shape[1])
        torch.mm(rows, self._w_shrink, out=inner.view(len(rows), -1))
        inner *= (self._open * self._grow.norm.scale).flatten(0, 1).unsqueeze(1)
        self._grow.add_back(grad, inner, space)

        mixed = space("mixed", batch, length, count, heads, size)
        torch.mm(rows, self._w_out, out=mixed.view(-1, dim))
        split = space("split", batch * heads, length, count, size)
        split.view(batch, heads, length, count, size).copy_(mixed.permute(0, 3, 1, 2, 4))
        q, k, v, weights, context = (
            part.flatten(0, 1) for part in (self._q, self._k, self._v, self._weights, self._context)
        )
        scores = space("scores", batch * heads, length, count, length)
        torch.bmm(split.flatten(1, 2), v.mT, out=scores.flatten(1, 2))
        scores -= split @ context.unsqueeze(-1)
        scores *= weights.unsqueeze(2)

        parts = space("parts", batch, length, count, 3, heads, size)
        scale = self._project.norm.scale[..., None, None]
        one = space("one", batch, heads, length, count, size)
        flat = one.view(batch * heads, -1, size)
        ordered = one.permute(0, 2, 3, 1, 4)
        torch.bmm(scores.flatten(1, 2), k, out=flat)
        torch.mul(ordered, scale * size**-0.5, out=parts[:, :, :, 0])
        torch.bmm(scores.flatten(2).mT, q, out=flat)  # states before positions
        by_state = one.view(batch, heads, count, length, size).permute(0, 3, 2, 1, 4)
        torch.mul(by_state, scale, out=parts[:, :, :, 1])
        torch.bmm(weights.mT, split.flatten(2), out=one.view(batch * heads, length, -1))
        torch.mul(ordered, scale, out=parts[:, :, :, 2])
        self._project.add_back(grad, parts.view(batch * length, count, -1), space)
