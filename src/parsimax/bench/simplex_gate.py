"""What is right for fusedmax, oscarmax and the constrained mappings, in float64, row by row.

Slow and plain, and no solver's own way: total variation pulls a string tight, oscarmax takes slopes
of a concave hull, and thresholds are found by bisection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_HALVINGS = 200
_STRENGTH = {"fusedmax": 0.1, "oscarmax": 0.01}  # the defaults


def expect(mapping: str, z: Tensor, upper: Tensor) -> Tensor:
    """Probabilities of a matrix, in float64.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.9, 0.2, 0.8]])
    >>> expect("fusedmax", z, torch.ones(1, 4))
    tensor([[0.4000, 0.4000, 0.0000, 0.2000]], dtype=torch.float64)
    """
    y = z.double() - z.double().amax(-1, keepdim=True)
    if mapping == "constrained_sparsemax":
        high = upper.double()
        lowest = (y - high).amin(-1, keepdim=True)
        tau = _bisect(
            lambda t: (y - t).clamp(min=0).minimum(high), lowest, torch.zeros_like(lowest)
        )
        return (y - tau).clamp(min=0).minimum(high)
    if mapping == "constrained_softmax":
        high = upper.double()
        lowest = (y - high.log()).amin(-1, keepdim=True)
        top = torch.full_like(lowest, y.shape[-1]).log()
        c = _bisect(lambda t: (y - t).exp().minimum(high), lowest, top)
        return (y - c).exp().minimum(high)
    smooth = _taut_string if mapping == "fusedmax" else _concave_hull
    v = torch.tensor([smooth(row, _STRENGTH[mapping]) for row in y.tolist()], dtype=torch.float64)
    v = v - v.amax(-1, keepdim=True)
    start = torch.full_like(v[:, :1], -1.0)
    tau = _bisect(lambda t: (v - t).clamp(min=0), start, torch.zeros_like(start))
    return (v - tau).clamp(min=0)


def _bisect(shares: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The threshold of each row at which the shares, which fall with it, sum to one."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = shares(middle).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low


def _taut_string(x: Sequence[float], lam: float) -> list[float]:
    """Slopes of the shortest path between the running sums minus and plus lam."""
    n = len(x)
    total = [0.0]
    for score in x:
        total.append(total[-1] + score)
    value: list[float] = []
    corner, side = 0, 0
    while corner < n:
        origin = total[corner] + side * lam
        high, low, high_at, low_at = float("inf"), -float("inf"), corner, corner
        end, end_side = n, 0
        for k in range(corner + 1, n + 1):
            room = lam if k < n else 0.0
            top = (total[k] + room - origin) / (k - corner)
            bottom = (total[k] - room - origin) / (k - corner)
            if bottom > high:
                end, end_side = high_at, 1
                break
            if top < low:
                end, end_side = low_at, -1
                break
            if top <= high:
                high, high_at = top, k
            if bottom >= low:
                low, low_at = bottom, k
        rise = total[end] - total[corner] + (end_side - side) * lam
        value += [rise / (end - corner)] * (end - corner)
        corner, side = end, end_side
    return value


def _concave_hull(x: Sequence[float], lam: float) -> list[float]:
    """Slopes of the least concave function above the running sums of x_(i) + lam i."""
    order = sorted(range(len(x)), key=lambda i: -x[i])
    total = [0.0]
    for rank, i in enumerate(order):
        total.append(total[-1] + x[i] + lam * rank)
    hull = [0]
    for k in range(1, len(total)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (total[b] - total[a]) * (k - b) > (total[k] - total[b]) * (b - a):
                break
            hull.pop()
        hull.append(k)
    value = [0.0] * len(x)
    for a, b in itertools.pairwise(hull):
        for rank in range(a, b):
            value[order[rank]] = (total[b] - total[a]) / (b - a)
    return value


def gradients(mapping: str, p: Tensor, g: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Gradients in the scores, and in the bounds where there are any, from the probabilities."""
    g, high = g.double(), upper.double()
    if mapping.startswith("constrained"):
        bound = (p >= high) & (high < 1)
        dense = mapping == "constrained_softmax"
        weight = torch.where(bound, 0.0, p if dense else (p > 0).double())
        mean = (weight * g).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
        return weight * (g - mean), torch.where(bound, g - mean, 0.0)
    rows = []
    for probabilities, gradient in zip(p.tolist(), g.tolist(), strict=True):
        keys: list[tuple[float, int]] = []
        run = 0
        for i, share in enumerate(probabilities):
            if mapping == "fusedmax" and i and share != probabilities[i - 1]:
                run += 1
            keys.append((share, run))
        sums: dict[tuple[float, int], list[float]] = {}
        for key, value in zip(keys, gradient, strict=True):
            sums.setdefault(key, []).append(value)
        means = {key: sum(values) / len(values) for key, values in sums.items()}
        inside = [value for (share, _), value in zip(keys, gradient, strict=True) if share > 0]
        mean = sum(inside) / len(inside)
        rows.append([means[key] - mean if key[0] > 0 else 0.0 for key in keys])
    return (torch.tensor(rows, dtype=torch.float64),)
