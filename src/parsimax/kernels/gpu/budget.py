"""Rows of budget: p = clip(z - tau, 0, 1) with sum k.

The clipped sum is piecewise linear in tau: Newton inside a bracket ends on the line that holds the
root, and halves the bracket where there is no slope. tau is kept as a float32 number and the rest
to it, both in float64: z less the first is exact, so that what is left of a score keeps its digits
however large the scores are.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import load_chunk, load_scores, row_parameter, row_values, store_chunk, tile_for

_SWEEPS = tl.constexpr(400)  # halving all of float32's range takes 280
_EXACT = tl.constexpr(1e-13)  # residual relative to k
_ENOUGH = tl.constexpr(1e-9)  # from which one that no longer shrinks is taken for rounding


def forward(z: Tensor, k: float | Tensor, out: Tensor) -> None:
    """Weights of every row into ``out``; NaN where fewer than k entries are allowed."""
    n, d = z.shape
    tile = tile_for(d)
    b = row_parameter(k, z)
    _forward[(triton.cdiv(n, tile.ROWS),)](
        z, b.values, b.high, b.low, out, n, d, PER_ROW=b.PER_ROW, **tile.options
    )


def backward(p: Tensor, g: Tensor, k: float | Tensor, out: Tensor, dk: Tensor | None) -> None:
    """Gradient in the scores into ``out``, and in k into ``dk`` where wanted.

    Neither depends on k other than through ``p``.
    """
    n, d = p.shape
    tile = tile_for(d)
    _backward[(triton.cdiv(n, tile.ROWS),)](
        p, g, out, out if dk is None else dk, n, d, WANT=dk is not None, **tile.options
    )


@triton.jit
def _clipped(
    tile,
    z,
    rows,
    keep,
    d,
    pivot,
    rest,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """(sum of clip(z - pivot - rest, 0, 1), entries strictly between)."""
    total = tl.zeros([ROWS], tl.float64)
    free = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        v = (x.to(tl.float64) - pivot[:, None]) - rest[:, None]
        inside = (v > 0.0) & (v < 1.0)
        total += tl.sum(tl.where(inside, v, tl.where(v >= 1.0, 1.0, 0.0)), 1)
        free += tl.sum(inside.to(tl.float64), 1)
    return total, free


@triton.jit(do_not_specialize=["n"])
def _forward(
    z,
    budgets,
    k_high,
    k_low,
    out,
    n,
    d,
    PER_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    k = row_values(budgets, k_high, k_low, rows, keep, PER_ROW)
    tile = load_scores(z, rows, keep, 0, d, COLUMNS)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    bottom = tl.full([ROWS], float("inf"), tl.float32)
    count = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        allowed = x > float("-inf")
        top = tl.maximum(top, tl.max(x, 1))
        bottom = tl.minimum(bottom, tl.min(tl.where(allowed, x, float("inf")), 1))
        count += tl.sum(allowed.to(tl.float64), 1)
    empty = top == float("-inf")
    good = (empty == 0) & (top < float("inf")) & (k >= 0.0) & (k <= count)
    solve = good & (k > 0.0)

    # at low the sum is at least k, at high at most
    low = tl.where(solve, bottom, 0.0).to(tl.float64)
    high = tl.where(solve, top, 0.0).to(tl.float64)
    low_rest = tl.full([ROWS], -1.0, tl.float64)
    high_rest = tl.zeros([ROWS], tl.float64)
    # a small k is near the top, where the sum is convex and Newton does not pass the root
    pivot = tl.where(k == count, low, high)
    rest = tl.where(k == count, -1.0, -tl.minimum(k, 1.0))
    previous = tl.full([ROWS], float("inf"), tl.float64)
    done = solve == 0
    sweep = 0
    while (tl.max((done == 0).to(tl.int32), 0) > 0) & (sweep < _SWEEPS):
        total, free = _clipped(tile, z, rows, keep, d, pivot, rest, ROWS, COLUMNS, ONE)
        surplus = total - k
        off = tl.abs(surplus)
        low = tl.where(surplus > 0.0, pivot, low)
        low_rest = tl.where(surplus > 0.0, rest, low_rest)
        high = tl.where(surplus < 0.0, pivot, high)
        high_rest = tl.where(surplus < 0.0, rest, high_rest)
        newton = rest + surplus / tl.maximum(free, 1.0)
        after = (pivot - low) + (newton - low_rest)
        before = (high - pivot) + (high_rest - newton)
        trusted = (free > 0.0) & (after > 0.0) & (before > 0.0)
        width = (high - low) + (high_rest - low_rest)
        half = low_rest + 0.5 * width
        origin = tl.where(trusted, pivot, low)
        offset = tl.where(trusted, newton, half)
        # the same number in two parts, the first of them close to it again
        place = (origin + offset).to(tl.float32).to(tl.float64)
        better = (origin - place) + offset
        rounding = (off <= k * _ENOUGH) & (off >= previous)
        unmoved = ((place == pivot) & (better == rest)) | (width <= 0.0)
        done = done | (off <= k * _EXACT) | rounding | unmoved
        previous = tl.where(done, previous, off)
        pivot = tl.where(done, pivot, place)
        rest = tl.where(done, rest, better)
        sweep += 1

    other = tl.where(good | empty, 0.0, float("nan"))
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        v = (x.to(tl.float64) - pivot[:, None]) - rest[:, None]
        p = tl.minimum(tl.maximum(v, 0.0), 1.0).to(tl.float32)
        p = tl.where(solve[:, None], p, other[:, None])
        store_chunk(out, rows, keep, start, d, p, COLUMNS)


@triton.jit(do_not_specialize=["n"])
def _backward(
    p,
    g,
    out,
    dk,
    n,
    d,
    WANT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """Only entries strictly between the bounds move; together they keep the sum."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    p_tile = load_chunk(p, rows, keep, 0, d, 0.0, COLUMNS)
    g_tile = load_chunk(g, rows, keep, 0, d, 0.0, COLUMNS)
    broken = tl.zeros([ROWS], tl.int32)
    free = tl.zeros([ROWS], tl.float64)
    against = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        broken = tl.maximum(broken, tl.max((x != x).to(tl.int32), 1))
        inside = (x > 0.0) & (x < 1.0)
        free += tl.sum(inside.to(tl.float64), 1)
        against += tl.sum(tl.where(inside, v, 0.0).to(tl.float64), 1)
    mean = against / tl.maximum(free, 1.0)
    mean = tl.where(broken > 0, float("nan"), mean)
    if WANT:
        tl.store(dk + rows, mean.to(tl.float32), mask=keep)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        inside = (x > 0.0) & (x < 1.0)
        value = (v.to(tl.float64) - mean[:, None]).to(tl.float32)
        value = tl.where(inside, value, 0.0)
        value = tl.where(broken[:, None] > 0, float("nan"), value)
        store_chunk(out, rows, keep, start, d, value, COLUMNS)
