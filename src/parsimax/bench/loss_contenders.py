"""Who takes part in ``parsimax bench loss``, and on what: a linear layer, or logits that exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import parsimax.losses as px
from parsimax.bench.contenders import present

OURS, PLAIN, PEER = "linear_entmax_loss", "entmax_loss(F.linear)", "F.cross_entropy(F.linear)"
OURS_ON_LOGITS, PEER_ON_LOGITS = "entmax_loss", "F.cross_entropy"


class Sizes(NamedTuple):
    """Of an output layer."""

    tokens: int
    hidden: int
    words: int


@dataclass(frozen=True)
class Layer:
    """Hidden states (N, D), weights (V, D) and targets (N,)."""

    hidden: Tensor
    weight: Tensor
    target: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What has a gradient."""
        return self.hidden, self.weight

    def logits(self) -> Logits:
        """The same task with the logits at hand, rounded to the dtype of the layer."""
        z = F.linear(self.hidden.detach(), self.weight.detach())
        return Logits(z.requires_grad_(), self.target)


@dataclass(frozen=True)
class Logits:
    """Logits (N, V) and targets (N,)."""

    z: Tensor
    target: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What has a gradient."""
        return (self.z,)


OnLayer = Callable[[Layer], Tensor]
OnLogits = Callable[[Logits], Tensor]


def layer(
    sizes: Sizes, std: float = 1.0, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Layer:
    """Logits of this standard deviation, and targets at random."""
    tokens, hidden, words = sizes
    generator = torch.Generator(device).manual_seed(0)
    rows = torch.randn(tokens, hidden, generator=generator, device=device)
    weight = torch.randn(words, hidden, generator=generator, device=device)
    weight *= std / math.sqrt(hidden)
    target = torch.randint(0, words, (tokens,), generator=generator, device=device)
    return Layer(rows.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target)


def on_layer(alpha: float, *, peers: bool = False, half: bool = False) -> dict[str, OnLayer]:
    """Ours without the logits, ours with them, the cross-entropy of torch, and other packages."""
    losses: dict[str, OnLayer] = {
        OURS: lambda x: px.linear_entmax_loss(x.hidden, x.weight, x.target, alpha=alpha),
        PLAIN: lambda x: px.entmax_loss(F.linear(x.hidden, x.weight), x.target, alpha),
        PEER: lambda x: F.cross_entropy(F.linear(x.hidden, x.weight), x.target),
    }
    if peers:
        for name, loss in _entmax(alpha, half).items():
            losses[f"{name}(F.linear)"] = _after_linear(loss)
    return losses


def _after_linear(loss: Callable[[Tensor, Tensor], Tensor]) -> OnLayer:
    return lambda x: loss(F.linear(x.hidden, x.weight), x.target)


def _given(loss: Callable[[Tensor, Tensor], Tensor]) -> OnLogits:
    return lambda x: loss(x.z, x.target)


def on_logits(alpha: float, *, half: bool = False) -> dict[str, OnLogits]:
    """The same where the logits exist already."""
    return {
        OURS_ON_LOGITS: lambda x: px.entmax_loss(x.z, x.target, alpha),
        PEER_ON_LOGITS: lambda x: F.cross_entropy(x.z, x.target),
        **{name: _given(loss) for name, loss in _entmax(alpha, half).items()},
    }


def _entmax(alpha: float, half: bool) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    if not present("entmax") or alpha == 1:
        return {}
    name, loss = _entmax_loss(alpha)
    if not half:
        return {name: loss}
    # In half precision it is wrong; the second is how to use it there.
    return {name: loss, f"{name}, float32 inside": lambda z, y: loss(z.float(), y)}


def _entmax_loss(alpha: float) -> tuple[str, Callable[[Tensor, Tensor], Tensor]]:
    import entmax

    if alpha == 1.5:
        return "entmax.entmax15_loss", lambda z, y: entmax.entmax15_loss(z, y).mean()
    if alpha == 2:
        return "entmax.sparsemax_loss", lambda z, y: entmax.sparsemax_loss(z, y).mean()
    values: dict[Any, Tensor] = {}  # by device and dtype: a copy in every call would wait for it

    def bisect(z: Tensor, y: Tensor) -> Tensor:
        key = z.device, z.dtype
        if key not in values:
            values[key] = torch.tensor(alpha, dtype=z.dtype, device=z.device)
        loss: Tensor = entmax.entmax_bisect_loss(z, y, alpha=values[key])
        return loss.mean()

    return "entmax.entmax_bisect_loss", bisect
