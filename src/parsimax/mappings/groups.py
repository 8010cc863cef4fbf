"""Rows cut into groups of neighbours: sums and means by group, in plain torch.

A cut is a bool tensor that is True at the first entry of every group along the last dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def numbers(starts: Tensor) -> Tensor:
    """The number of the group that each entry is in, from 0."""
    return (starts.cumsum(-1) - 1).clamp(min=0)


def group_sums(x: Tensor, group: Tensor) -> Tensor:
    """The sum over each group, at its number; as many places as there are entries."""
    return torch.zeros_like(x).scatter_add(-1, group, x)


def group_means(x: Tensor, group: Tensor, weight: Tensor) -> Tensor:
    """At every entry, the mean over its group of the entries of weight 1; 0 where there is none."""
    weight = weight.to(x.dtype)
    total = group_sums(x * weight, group)
    count = group_sums(weight, group).clamp(min=1)
    return (total / count).gather(-1, group)


def centred(x: Tensor, inside: Tensor) -> Tensor:
    """``x`` minus its mean over ``inside``, and 0 elsewhere."""
    count = inside.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(inside, x, 0.0).sum(-1, keepdim=True) / count
    return torch.where(inside, x - mean, 0.0)


def before(x: Tensor, first: float | bool) -> Tensor:
    """Every entry's left neighbour; ``first`` has none."""
    return torch.nn.functional.pad(x[..., :-1], (1, 0), value=first)


def behind(x: Tensor, last: float | bool) -> Tensor:
    """Every entry's right neighbour; ``last`` has none."""
    return torch.nn.functional.pad(x[..., 1:], (0, 1), value=last)
