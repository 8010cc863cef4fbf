r"""Where the support of a row of weights begins, read off its scores and weights.

Every mapping here with one number a row has a threshold: a score receives weight exactly if it is
above. In terms of the tau of each mapping's own formula,

.. math::
    \text{entmax: } p^{\alpha-1} = [(\alpha-1) z - \tau]_+, \quad
    \text{sparsegen: } p = [z / (1-\lambda) - \tau]_+, \quad
    \text{normmax: } (p / \|p\|_\alpha)^{\alpha-1} = [z - \tau]_+, \quad
    \text{budget: } p = \min(1, [z - \tau]_+)

so the largest score of a row and its weight are enough, but for budget, whose largest are at 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from parsimax.mappings.rowmap import Parameter

# (scores, weights, parameter) -> (tau, the score at which weight begins), one for each row
Threshold = Callable[[Tensor, Tensor, Parameter], tuple[Tensor, Tensor]]


def _numbers(parameter: Parameter, like: Tensor) -> Tensor:
    """One for each row, or one for all."""
    if isinstance(parameter, Tensor):
        return parameter.to(like).squeeze(-1) if parameter.ndim else parameter.to(like)
    return like.new_full((), parameter)


def _largest(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return scores.amax(-1), weights.amax(-1)


def _entmax(scores: Tensor, weights: Tensor, alpha: Parameter) -> tuple[Tensor, Tensor]:
    top, p = _largest(scores, weights)
    beta = _numbers(alpha, top) - 1
    power = p**beta
    # at alpha = 1 everything has weight
    return beta * top - power, torch.where(beta > 0, top - power / beta, -torch.inf)


def _sparsegen(scores: Tensor, weights: Tensor, lam: Parameter) -> tuple[Tensor, Tensor]:
    top, p = _largest(scores, weights)
    rest = 1 - _numbers(lam, top)
    return top / rest - p, top - rest * p


def _normmax(scores: Tensor, weights: Tensor, alpha: Parameter) -> tuple[Tensor, Tensor]:
    top, p = _largest(scores, weights)
    order = _numbers(alpha, top)
    # of weights relative to the largest: powers may underflow
    ratio = weights / p.unsqueeze(-1)
    norm = (ratio ** (order.unsqueeze(-1) if order.ndim else order)).sum(-1) ** (1 / order)
    tau = top - norm ** (1 - order)
    return tau, tau


def _budget(scores: Tensor, weights: Tensor, k: Parameter) -> tuple[Tensor, Tensor]:
    free = (weights > 0) & (weights < 1)
    at_one = torch.where(weights >= 1, scores, torch.inf).amin(-1) - 1
    between = torch.where(free, scores - weights, -torch.inf).amax(-1)
    # nothing is between the bounds: the highest tau that leaves the others at 1
    tau = torch.where(free.any(-1), between, torch.minimum(at_one, scores.amax(-1)))
    tau = torch.where(weights.isnan().any(-1), torch.nan, tau)
    return tau, tau


THRESHOLDS: dict[str, Threshold] = {
    "entmax": _entmax,
    "softmax": _entmax,
    "sparsemax": _entmax,
    "sparsegen": _sparsegen,
    "normmax": _normmax,
    "budget": _budget,
}
