"""Attention written as loops over Python numbers: slow, and sharing nothing with the library."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def entmax_row(z: Sequence[float], alpha: float) -> list[float]:
    """p = [(alpha - 1) z - tau]_+^(1 / (alpha - 1)), tau by bisection; softmax at alpha = 1."""
    if all(x == -math.inf for x in z):
        return [0.0 for _ in z]
    top = max(z)
    if alpha == 1:
        masses = [math.exp(x - top) for x in z]
        return [m / sum(masses) for m in masses]
    b = alpha - 1
    low, high = b * top - 1, b * top

    def powers(tau: float) -> list[float]:
        return [max(b * x - tau, 0.0) ** (1 / b) for x in z]

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(powers(middle)) >= 1 else (low, middle)
    return powers(low)


def sees(i: int, j: int, lq: int, lk: int, *, causal: bool, align: str, window: object) -> bool:
    """Whether query i sees key j, from the definitions in words."""
    place = i if align == "top-left" else i + lk - lq
    left, right = window if isinstance(window, tuple) else (window, window)
    if causal and j > place:
        return False
    if left not in (None, -1) and place - j > left:
        return False
    return right in (None, -1) or j - place <= right


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Callable[[int, int, int], float],
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    align: str = "top-left",
    window: object = None,
    lengths: Sequence[int] | None = None,
    rows: Callable[[Sequence[float], float], list[float]] = entmax_row,
) -> tuple[Tensor, Tensor]:
    """(output, weights) for (B, H, L, E) inputs; ``alpha(b, h, i)``; kv heads are shared in groups.

    ``mask`` broadcasts to (B, Hq, Lq, Lk): bool, True where a key may be seen, or added.
    """
    items, heads, lq, size = q.shape
    lk, group = k.shape[-2], heads // k.shape[1]
    scale = 1 / math.sqrt(size) if scale is None else scale
    full = None if mask is None else mask.expand(items, heads, lq, lk)
    weights = torch.zeros(items, heads, lq, lk, dtype=torch.float64)
    output = torch.zeros(items, heads, lq, v.shape[-1], dtype=torch.float64)
    for b, h, i in itertools.product(range(items), range(heads), range(lq)):
        scores = []
        for j in range(lk):
            pairs = zip(q[b, h, i].tolist(), k[b, h // group, j].tolist(), strict=True)
            score = scale * math.fsum(x * y for x, y in pairs)
            if full is not None and full.dtype == torch.bool:
                score = score if full[b, h, i, j] else -math.inf
            elif full is not None:
                score += float(full[b, h, i, j])
            if not sees(i, j, lq, lk, causal=causal, align=align, window=window):
                score = -math.inf
            if lengths is not None and j >= lengths[b]:
                score = -math.inf
            scores.append(score)
        p = rows(scores, alpha(b, h, i))
        weights[b, h, i] = torch.tensor(p, dtype=torch.float64)
        for e in range(v.shape[-1]):
            column = v[b, h // group, :, e].tolist()
            output[b, h, i, e] = math.fsum(x * y for x, y in zip(p, column, strict=True))
    return output, weights
