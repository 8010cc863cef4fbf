"""The gate of the losses: value and gradients of a linear layer's loss, in float64 by chunks.

The gradient of a Fenchel-Young loss in the logits is p - y, and p comes from the oracle of the row
benchmarks, so nothing here is shared with what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parsimax.bench import gate
from parsimax.bench.loss_contenders import Layer, Logits

_CHUNK = 1 << 27  # logits in float64 at once
_KEPT_ROWS = 256  # rows whose gradient in the logits is kept
_HALVINGS = 60  # far more digits than any tolerance here

# Of the loss, relative where it is above one, and of the norm of gradients.
_SLACK = {torch.float64: (1e-10, 1e-9), torch.float32: (2e-6, 1e-5)}
_HALF_SLACK = (1e-2, 1e-2)


@dataclass(frozen=True)
class Exact:
    """What is right for one layer: the mean loss, its gradients, and the mean size of the support.

    ``rows`` are those whose gradient in the logits is in ``logits_grad``.
    """

    loss: float
    hidden_grad: Tensor
    weight_grad: Tensor
    rows: Tensor
    logits_grad: Tensor
    support: float


def exact(layer: Layer, alpha: float, *, rounded: bool = False) -> Exact:
    """Solve in float64; ``rounded`` takes the logits as the dtype of the layer holds them.

    A loss of logits in half precision cannot know what was lost when they were rounded, and is
    compared with what is right for the rounded ones.
    """
    hidden, weight, target = layer.hidden.detach(), layer.weight.detach(), layer.target
    tokens, words = len(hidden), len(weight)
    wide, wide_weight = hidden.double(), weight.double()
    kept = gate.spread(tokens, _KEPT_ROWS).to(hidden.device)
    total, support = 0.0, 0
    hidden_grad, weight_grad = torch.empty_like(wide), torch.zeros_like(wide_weight)
    logits_grad = wide.new_empty(len(kept), words)
    step = max(1, _CHUNK // words)
    for start in range(0, tokens, step):
        part = slice(start, start + step)
        z = F.linear(hidden[part], weight).double() if rounded else wide[part] @ wide_weight.T
        p = gate.oracle(z, alpha, _HALVINGS)
        own = z.gather(1, target[part, None]).squeeze(1)
        total += float(((p * z).sum(-1) - _omega(p, alpha) - own).sum())
        support += int((p > 0).sum())
        p.scatter_add_(1, target[part, None], torch.full_like(own[:, None], -1.0))
        p /= tokens
        hidden_grad[part] = p @ wide_weight
        weight_grad.addmm_(p.T, wide[part])
        here = (kept >= start) & (kept < start + step)
        logits_grad[here] = p[kept[here] - start]
    return Exact(total / tokens, hidden_grad, weight_grad, kept, logits_grad, support / tokens)


def _omega(p: Tensor, alpha: float) -> Tensor:
    if alpha == 1:
        return torch.xlogy(p, p).sum(-1)
    return (p**alpha - p).sum(-1) / (alpha * (alpha - 1))


def refuse(
    loss: Callable[[Any], Tensor], problem: Layer | Logits, want: Exact, tolerance: float = 1.0
) -> str | None:
    """Why this loss may not be timed, or None.

    What a contender raises is a result, too: the others are measured all the same.
    """
    value_slack, slack = _SLACK.get(problem.leaves[0].dtype, _HALF_SLACK)
    try:
        gate.poison(problem.leaves[0])
        got = loss(problem)
        off = abs(float(got.detach()) - want.loss) / max(1.0, want.loss)
        if not off <= value_slack * tolerance:
            return f"off by {off:.0e}"
        grads = torch.autograd.grad(got, problem.leaves)
    except Exception as error:  # noqa: BLE001
        return gate.told(error)
    for grad, right in _pairs(grads, want):
        off = gate.relative(grad, right)
        if not off <= slack * tolerance or not math.isfinite(off):
            return f"gradient off by {off:.0e}"
    if not all(bool(grad.isfinite().all()) for grad in grads):
        return "gradient is not finite"
    return None


def _pairs(grads: tuple[Tensor, ...], want: Exact) -> list[tuple[Tensor, Tensor]]:
    if len(grads) == 1:
        return [(grads[0][want.rows], want.logits_grad)]
    return list(zip(grads, (want.hidden_grad, want.weight_grad), strict=True))
