"""Every mapping by bisection in float64: right, slow, and only until its own kernel is there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ENTMAX = tl.constexpr(0)
NORMMAX = tl.constexpr(1)
BUDGET = tl.constexpr(2)
_COLUMNS = 1024


@triton.jit
def _power(x, order):
    return tl.where(x > 0.0, tl.exp(order * tl.log(tl.where(x > 0.0, x, 1.0))), 0.0)


@triton.jit
def _share(y, t, order, KIND: tl.constexpr):
    """What adds up to the mass at the threshold t."""
    if KIND == ENTMAX:
        soft = order < 1e-8
        safe = tl.where(soft, 1.0, order)
        return tl.where(soft, tl.exp(y - t), _power(1.0 + safe * (y - t), 1.0 / safe))
    elif KIND == NORMMAX:
        return _power(y - t, order + 1.0)
    else:
        return tl.minimum(tl.maximum(y - t, 0.0), 1.0)


@triton.jit
def _scores(z_ptr, rows, start, n, d, COLUMNS: tl.constexpr):
    columns = start + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < d)[None, :]
    where = rows.to(tl.int64)[:, None] * d + columns[None, :]
    z = tl.load(z_ptr + where, mask=inside, other=-float("inf")).to(tl.float64)
    return tl.where(z != z, float("inf"), z), where, inside


@triton.jit
def _rows(z_ptr, order_ptr, mass_ptr, scale_ptr, out_ptr, n, d,
          KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    order = tl.load(order_ptr + rows, mask=rows < n, other=1.0)[:, None]
    mass = tl.load(mass_ptr + rows, mask=rows < n, other=1.0)[:, None]
    scale = tl.load(scale_ptr + rows, mask=rows < n, other=1.0)[:, None]
    top = tl.full([ROWS, 1], -float("inf"), tl.float64)
    bottom = tl.full([ROWS, 1], float("inf"), tl.float64)
    count = tl.full([ROWS, 1], 0.0, tl.float64)
    for start in range(0, d, COLUMNS):
        z, where, inside = _scores(z_ptr, rows, start, n, d, COLUMNS)
        top = tl.maximum(top, tl.max(z, 1)[:, None])
        finite = z > -float("inf")
        bottom = tl.minimum(bottom, tl.min(tl.where(finite, z, float("inf")), 1)[:, None])
        count += tl.sum(tl.where(finite, 1.0, 0.0), 1)[:, None]
    good = (tl.abs(top) < float("inf")) & (order == order) & (mass >= 0.0) & (mass <= count)
    base = tl.where(good, top, 0.0)
    low = tl.full([ROWS, 1], 0.0, tl.float64)
    high = tl.full([ROWS, 1], 0.0, tl.float64)
    if KIND == ENTMAX:
        soft = order < 1e-8
        safe = tl.where(soft, 1.0, order)
        log_d = tl.log(tl.full([ROWS, 1], 0.0, tl.float64) + d)
        high = tl.where(soft, log_d, (1.0 - tl.exp(-safe * log_d)) / safe)
    elif KIND == NORMMAX:
        low = low - 1.0
        high = -tl.exp(-tl.log(tl.full([ROWS, 1], 0.0, tl.float64) + d) / (order + 1.0))
    else:
        low = tl.where(good, bottom - base - 1.0, 0.0)
    active = 1
    while active > 0:
        middle = 0.5 * (low + high)
        total = tl.full([ROWS, 1], 0.0, tl.float64)
        for start in range(0, d, COLUMNS):
            z, where, inside = _scores(z_ptr, rows, start, n, d, COLUMNS)
            total += tl.sum(_share((z - base) * scale, middle, order, KIND), 1)[:, None]
        moves = (middle > low) & (middle < high) & good
        low = tl.where(moves & (total >= mass), middle, low)
        high = tl.where(moves & (total < mass), middle, high)
        active = tl.max(tl.where(moves, 1, 0))
    total = tl.full([ROWS, 1], 0.0, tl.float64)
    free = tl.full([ROWS, 1], 0.0, tl.float64)
    for start in range(0, d, COLUMNS):
        z, where, inside = _scores(z_ptr, rows, start, n, d, COLUMNS)
        y = (z - base) * scale
        if KIND == NORMMAX:
            total += tl.sum(_power((y - low) / -low, order), 1)[:, None]
        else:
            p = _share(y, low, order, KIND)
            total += tl.sum(p, 1)[:, None]
            free += tl.sum(tl.where((p > 0.0) & (p < 1.0), 1.0, 0.0), 1)[:, None]
    for start in range(0, d, COLUMNS):
        z, where, inside = _scores(z_ptr, rows, start, n, d, COLUMNS)
        y = (z - base) * scale
        if KIND == NORMMAX:
            p = _power((y - low) / -low, order) / total
        elif KIND == ENTMAX:
            p = _share(y, low, order, KIND) / total
        else:
            p = _share(y, low, order, KIND)
            p = tl.where((p > 0.0) & (p < 1.0), p + (mass - total) / tl.maximum(free, 1.0), p)
            p = tl.where(mass > 0.0, tl.maximum(p, 0.0), 0.0)
        p = tl.where(good, p, tl.where(top == -float("inf"), 0.0, float("nan")))
        tl.store(out_ptr + where, p.to(tl.float32), mask=inside)


def by_row(x: float | Tensor, like: Tensor) -> Tensor:
    """One float64 value a row."""
    if isinstance(x, Tensor):
        return x.double()
    return torch.full((len(like),), x, dtype=torch.float64, device=like.device)


def solve(z: Tensor, order: Tensor, mass: Tensor, scale: Tensor, kind: tl.constexpr, out: Tensor):
    """Rows of one kind; an order of NaN makes its row NaN."""
    n, d = z.shape
    columns = min(triton.next_power_of_2(d), _COLUMNS)
    rows = max(4096 // columns, 4)
    grid = (triton.cdiv(n, rows),)
    _rows[grid](z, order, mass, scale, out, n, d, KIND=kind, ROWS=rows, COLUMNS=columns)
