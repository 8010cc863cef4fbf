"""Kendall's τ-b in batches, its ceiling under ties, and overlap of the tokens ranked first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checked import DEFAULT_MEMORY

_EXACT = 2**24  # float32 counts exactly up to here


@dataclass(frozen=True)
class RankCorrelation:
    """τ-b of pairs of vectors, each (N,) in float64 and NaN where it is not defined.

    Args:
        tau: (C − D) / √((n₀ − n₁)(n₀ − n₂)), with n₁ and n₂ the pairs tied in either vector.
        ceiling: The highest τ-b that vectors with these ties can have, in whatever order.
        p_value: Two-sided, from the normal approximation with ties.
        reason: Why τ is NaN, or an empty text.
    """

    tau: Tensor
    ceiling: Tensor
    p_value: Tensor
    reason: tuple[str, ...]


def kendall_tau(
    x: Sequence[Tensor],
    y: Sequence[Tensor],
    *,
    names: tuple[str, str] = ("the first vector", "the second vector"),
    memory: int = DEFAULT_MEMORY,
) -> RankCorrelation:
    """τ-b of x[i] with y[i] for every i; pairs are compared in matrices of signs.

    >>> tau = kendall_tau(
    ...     [torch.tensor([0.0, 0.0, 0.4, 0.6])], [torch.tensor([1.0, 2.0, 3.0, 4.0])]
    ... )
    >>> tau.tau, tau.ceiling  # five of six pairs are ordered in x, all agree
    (tensor([0.9129], dtype=torch.float64), tensor([0.9129], dtype=torch.float64))
    """
    if len(x) != len(y):
        raise ValueError(f"x and y must have as many vectors, got {len(x)} and {len(y)}")
    count = len(x)
    results = torch.full((3, count), math.nan, dtype=torch.float64, device="cpu")
    reasons = [""] * count
    todo = []
    for i, (u, v) in enumerate(zip(x, y, strict=True)):
        if u.shape != v.shape or u.ndim != 1:
            raise ValueError(
                f"x[{i}] and y[{i}] must be vectors of one length, got {tuple(u.shape)} and "
                f"{tuple(v.shape)}"
            )
        reasons[i] = _undefined(u, v, names)
        if not reasons[i]:
            todo.append(i)
    todo.sort(key=lambda i: len(x[i]))
    start = 0
    while start < len(todo):
        stop = start + 1
        shortest = len(x[todo[start]])
        while stop < len(todo):
            longest = len(x[todo[stop]])
            # three float32 matrices of L by L a pair of vectors
            if (stop + 1 - start) * longest**2 * 12 > memory or longest > shortest * 1.2 + 2:
                break
            stop += 1
        index = todo[start:stop]
        lengths = torch.tensor([len(x[i]) for i in index], device="cpu")
        u, v = _ranks([x[i] for i in index], lengths), _ranks([y[i] for i in index], lengths)
        results[:, index] = torch.stack(_batched(u, v, lengths, memory))
        start = stop
    return RankCorrelation(results[0], results[1], results[2], tuple(reasons))


def sparsity_ceiling(n: int, zeros: int) -> float:
    """Highest τ-b of n weights, ``zeros`` of them zero and the rest distinct, with anything.

    √(1 − m(m−1) / (n(n−1))), reached by importances without ties that agree perfectly.

    >>> round(sparsity_ceiling(180, 175), 2)
    0.23
    """
    if n < 2 or not 0 <= zeros <= n:
        raise ValueError(f"n must be at least 2 and 0 <= zeros <= n, got n={n}, zeros={zeros}")
    return math.sqrt(1 - zeros * (zeros - 1) / (n * (n - 1)))


def top_k_overlap(x: Tensor, y: Tensor, k: int) -> float:
    """Expected share of the k first of x that are among the k first of y, ties broken at random.

    Sparse weights often have fewer than k tokens above zero, and then which zeros belong to the
    first k is nobody's decision: each tied token counts with its chance.

    >>> top_k_overlap(torch.tensor([0.7, 0.3, 0.0]), torch.tensor([5.0, 1.0, 2.0]), k=1)
    1.0
    >>> top_k_overlap(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([5.0, 1.0, 2.0]), k=2)
    0.75
    """
    if not 1 <= k <= len(x):
        raise ValueError(f"k must lie between 1 and the length {len(x)}, got {k}")
    return float((_membership(x, k) * _membership(y, k)).sum() / k)


def _membership(values: Tensor, k: int) -> Tensor:
    values = values.double()
    threshold = values.topk(k).values[-1]
    above = values > threshold
    tied = values == threshold
    return above.double() + tied.double() * ((k - int(above.sum())) / int(tied.sum()))


def _undefined(u: Tensor, v: Tensor, names: tuple[str, str]) -> str:
    if len(u) < 2:
        return "fewer than two tokens to rank"
    for values, name in ((u, names[0]), (v, names[1])):
        if not bool(values.isfinite().all()):
            return f"{name} is not finite"
        if bool((values == values[0]).all()):
            return f"{name} is constant"
    return ""


def _ranks(vectors: Sequence[Tensor], lengths: Tensor) -> Tensor:
    """Dense ranks (B, L) as integers in float32, whose differences are exact; padding ranks last.

    Ranks, not values: a difference of tiny values may be flushed to zero.
    """
    padded = torch.nn.utils.rnn.pad_sequence(
        [v.double() for v in vectors], batch_first=True, padding_value=math.inf
    )
    ordered, order = padded.sort(dim=-1)
    steps = torch.zeros_like(order)
    steps[:, 1:] = (ordered[:, 1:] > ordered[:, :-1]).long()
    return torch.empty_like(order).scatter_(-1, order, steps.cumsum(-1)).float()


def _batched(u: Tensor, v: Tensor, lengths: Tensor, memory: int) -> tuple[Tensor, Tensor, Tensor]:
    n = lengths.double()
    pairs = n * (n - 1) / 2
    ties_u, ties_v = _ties(u, lengths), _ties(v, lengths)
    scale = ((pairs - ties_u[0]) * (pairs - ties_v[0])).sqrt()
    agreement = _concordance(u, v, lengths, memory)
    # Sorting both leaves no pair in opposite order, and swapping two entries that are in opposite
    # order never lowers C − D: so this order is the best one.
    best = _concordance(u.sort(-1).values, v.sort(-1).values, lengths, memory)
    variance = (
        (2 * pairs * (2 * n + 5) - ties_u[2] - ties_v[2]) / 18
        + ties_u[0] * ties_v[0] / pairs
        + torch.where(n > 2, ties_u[1] * ties_v[1] / (18 * pairs * (n - 2).clamp(min=1)), 0.0)
    )
    p_value = torch.erfc(agreement.abs() / variance.sqrt() / math.sqrt(2))
    return (agreement / scale).clamp(-1, 1), (best / scale).clamp(-1, 1), p_value


def _concordance(u: Tensor, v: Tensor, lengths: Tensor, memory: int) -> Tensor:
    """C − D. Padding comes last in both and so agrees with every token, which is subtracted."""
    count, length = u.shape
    block = max(1, min(length, memory // (12 * count * length), _EXACT // length))
    total = torch.zeros(count, dtype=torch.float64, device="cpu")
    for start in range(0, length, block):
        rows = slice(start, start + block)
        signs = [(r[:, rows, None] - r[:, None, :]).clamp_(-1, 1).flatten(1) for r in (u, v)]
        total += torch.bmm(signs[0][:, None], signs[1][:, :, None])[:, 0, 0].double()
    n = lengths.double()
    return (total - 2 * n * (length - n)) / 2


def _ties(ranks: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Over groups of t tied entries: Σ t(t−1)/2, Σ t(t−1)(t−2), Σ t(t−1)(2t+5)."""
    inside = (torch.arange(ranks.shape[1], device="cpu") < lengths[:, None]).double()
    t = torch.zeros_like(inside).scatter_add_(1, ranks.long(), inside)
    return (
        (t * (t - 1) / 2).sum(-1),
        (t * (t - 1) * (t - 2)).sum(-1),
        (t * (t - 1) * (2 * t + 5)).sum(-1),
    )
