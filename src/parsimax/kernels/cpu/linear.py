"""Tensors in, tensors out: the kernels of :mod:`.support` for the loss of a linear layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import support
from .pool import for_rows


class Support(NamedTuple):
    """Sparse rows: see :mod:`.support`."""

    offsets: Tensor  # (rows + 1,) int64
    where: Tensor  # (entries,) int32
    values: Tensor  # (entries,)


class Solved(NamedTuple):
    """What a loss needs of each row, in float64; ``counts`` is int64."""

    gap: Tensor
    lag: Tensor
    spread: Tensor
    change: Tensor
    counts: Tensor


def solve_in_place(
    z: Tensor,
    alpha: Tensor,
    index: Tensor,
    used: Tensor,
    weights: Tensor,
    want_change: bool,
) -> Solved:
    """Turn the scores ``z`` (rows, d) into probabilities; ``alpha`` has one value or one a row.

    ``weights`` holds the class weights that ``spread`` = sum_c w_c (max(z) - z_c) is for, a single
    1 for all, or nothing.
    """
    rows = len(z)
    gap, lag, spread = (torch.zeros(rows, dtype=torch.float64, device="cpu") for _ in range(3))
    change = torch.zeros(rows if want_change else 0, dtype=torch.float64, device="cpu")
    counts = torch.zeros(rows, dtype=torch.int64, device="cpu")
    arrays = (x.numpy() for x in (z, alpha, index, used, weights, gap, lag, spread, change, counts))
    for_rows(support.solve_in_place, *z.shape, *arrays)
    return Solved(gap, lag, spread, change, counts)


def gather(p: Tensor, index: Tensor, counts: Tensor) -> Support:
    """The entries of ``p`` that are not 0, and the target of each row that has any."""
    offsets = torch.zeros(len(p) + 1, dtype=torch.int64, device="cpu")
    torch.cumsum(counts + (counts > 0), 0, out=offsets[1:])
    size = int(offsets[-1])
    where = torch.empty(size, dtype=torch.int32, device="cpu")
    values = torch.empty(size, dtype=p.dtype, device="cpu")
    arrays = (x.numpy() for x in (p, index, offsets, where, values))
    for_rows(support.gather_support, *p.shape, *arrays)
    return Support(offsets, where, values)


def join(parts: list[Support]) -> Support:
    """Supports of consecutive rows as one."""
    ends = np.cumsum([0] + [len(part.values) for part in parts])
    offsets = [part.offsets[1:] + int(end) for part, end in zip(parts, ends, strict=False)]
    return Support(
        torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), *offsets]),
        torch.cat([part.where for part in parts]),
        torch.cat([part.values for part in parts]),
    )


def scaled(part: Support, scale: Tensor, own: Tensor) -> Support:
    """``scale p - own e_target`` for one ``scale`` and ``own`` a row, in float64."""
    out = torch.empty_like(part.values)
    arrays = (x.numpy() for x in (part.offsets, part.values, scale, own, out))
    for_rows(support.scale_support, len(scale), _mean_size(part), *arrays)
    return Support(part.offsets, part.where, out)


def transposed(part: Support, columns: int) -> Support:
    """The same entries by column."""
    starts = torch.zeros(columns + 1, dtype=torch.int64, device="cpu")
    rows, values = torch.empty_like(part.where), torch.empty_like(part.values)
    support.transpose_support(*(x.numpy() for x in (*part, starts, rows, values)))
    return Support(starts, rows, values)


def add_product(part: Support, dense: Tensor, out: Tensor) -> None:
    """``out += part @ dense``."""
    rows, columns = out.shape
    arrays: Any = (x.numpy() for x in (*part, dense, out))
    for_rows(support.support_product, rows, columns * _mean_size(part), *arrays)


def add_sums(part: Support, out: Tensor) -> None:
    """``out += part.sum(1)``."""
    arrays = (x.numpy() for x in (part.offsets, part.values, out))
    for_rows(support.support_sums, len(out), _mean_size(part), *arrays)


def _mean_size(part: Support) -> int:
    """Entries of a row on average, at least 1: how much work a row is."""
    return max(1, len(part.values) // max(1, len(part.offsets) - 1))
