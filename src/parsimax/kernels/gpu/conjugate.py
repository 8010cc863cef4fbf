"""What a Fenchel-Young loss needs beside the solved rows: its backward, and sums over its classes.

All of it is one sweep over a matrix. Tiles hold several short rows, or a part of a long one; their
shape follows from the row length alone, so that a row's sums do not depend on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .quick import quick
from .sizes import pieces, power_of_two

_TILE = 2048  # entries


def tile_of(d: int) -> tuple[int, int]:
    """(rows, columns) of a tile."""
    columns = min(power_of_two(d), _TILE)
    return _TILE // columns, columns


# --- the loss of entmax above alpha = 2 -----------------------------------------------------------


@quick
@triton.jit
def _steep_loss(
    z_ptr,
    alpha_ptr,
    beta,
    inverse,
    index_ptr,
    exact_ptr,
    p_ptr,
    gap_ptr,
    lag_ptr,
    top_ptr,
    n,
    d,
    BY_ROW: tl.constexpr,
    HAS_INDEX: tl.constexpr,
    ROUND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mine = rows < n
    wide = rows.to(tl.int64)
    betas = tl.full([ROWS], 0.0, tl.float32) + beta
    inverses = tl.full([ROWS], 0.0, tl.float32) + inverse
    if BY_ROW:
        alpha = tl.load(alpha_ptr + wide, mask=mine, other=1.0)
        mine = mine & (((alpha >= 1.0) & (alpha <= 2.0)) == 0)  # NaN is ours, too
        betas = (alpha - 1.0).to(tl.float32)
        inverses = 1.0 / alpha.to(tl.float32)
    top = tl.full([ROWS, COLUMNS], -float("inf"), tl.float32)
    if tl.max(tl.where(mine, 1, 0), 0) > 0:
        for start in range(0, d, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            inside = mine[:, None] & (columns < d)[None, :]
            where = wide[:, None] * d + columns[None, :]
            z = tl.load(z_ptr + where, mask=inside, other=-float("inf")).to(tl.float32)
            top = tl.maximum(top, tl.where(z != z, float("inf"), z))
    highest = tl.max(top, 1)
    finite = tl.where(tl.abs(highest) < float("inf"), highest, 0.0)
    total = tl.full([ROWS, COLUMNS], 0.0, tl.float32)
    if tl.max(tl.where(mine, 1, 0), 0) > 0:
        for start in range(0, d, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            inside = mine[:, None] & (columns < d)[None, :]
            where = wide[:, None] * d + columns[None, :]
            z = tl.load(z_ptr + where, mask=inside, other=-float("inf")).to(tl.float32)
            p = tl.load(exact_ptr + where, mask=inside, other=0.0)
            some = p > 0.0
            power = tl.exp(betas[:, None] * tl.log(tl.where(some, p, 1.0)))
            y = tl.where(some, z - finite[:, None], 0.0)
            # <p, y> - Omega(p) with Omega(p) = sum p (p^beta - 1) / (alpha beta)
            total += p * (y + (1.0 - power) * (inverses / betas)[:, None])
            if ROUND:
                tl.store(p_ptr + where, p.to(p_ptr.dtype.element_ty), mask=inside)
    gap = tl.sum(total, 1)
    gap = tl.where(gap < 0.0, 0.0, gap)
    tl.store(gap_ptr + wide, tl.where(highest == -float("inf"), 0.0, gap), mask=mine)
    tl.store(top_ptr + wide, finite, mask=mine)
    lag = tl.full([ROWS], 0.0, tl.float64)
    if HAS_INDEX:
        index = tl.load(index_ptr + wide, mask=mine, other=0)
        known = mine & (index >= 0) & (index < d)
        target = tl.load(z_ptr + wide * d + index, mask=known, other=0.0).to(tl.float64)
        lag = finite.to(tl.float64) - target
    tl.store(lag_ptr + wide, lag, mask=mine)


def steep_loss(
    z: Tensor,
    alpha: float | Tensor,
    index: Tensor | None,
    exact: Tensor,
    p: Tensor,
    gap: Tensor,
    lag: Tensor,
    top: Tensor,
) -> None:
    """Gap, lag and top of rows that are solved in ``exact``, which is rounded into ``p``.

    Of a tensor of alphas, only the rows outside [1, 2] are looked at.
    """
    n, d = z.shape
    rows, columns = tile_of(d)
    number = 3.0 if isinstance(alpha, Tensor) else alpha
    _steep_loss[(pieces(n, rows),)](
        z,
        alpha if isinstance(alpha, Tensor) else z,
        number - 1.0,
        1.0 / number,
        z if index is None else index,
        exact,
        p,
        gap,
        lag,
        top,
        n,
        d,
        BY_ROW=isinstance(alpha, Tensor),
        HAS_INDEX=index is not None,
        ROUND=p is not exact,
        ROWS=rows,
        COLUMNS=columns,
    )


# --- the gradient in the scores -------------------------------------------------------------------


@quick
@triton.jit
def _loss_backward(
    p_ptr,
    g_ptr,
    glag_ptr,
    index_ptr,
    out_ptr,
    n,
    d,
    g_stride,
    glag_stride,
    HAS_INDEX: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = rows < n
    wide = rows.to(tl.int64)
    inside = here[:, None] & (columns < d)[None, :]
    where = wide[:, None] * d + columns[None, :]
    g = tl.load(g_ptr + wide * g_stride, mask=here, other=0.0).to(tl.float32)[:, None]
    # where g = 0, p is not read: an ignored NaN stays ignored
    p = tl.load(p_ptr + where, mask=inside & (g != 0.0), other=0.0).to(tl.float32)
    out = g * p
    if HAS_INDEX:
        glag = tl.load(glag_ptr + wide * glag_stride, mask=here, other=0.0).to(tl.float32)
        index = tl.load(index_ptr + wide, mask=here, other=-1)
        out -= tl.where(columns[None, :] == index[:, None], glag[:, None], 0.0)
    tl.store(out_ptr + where, out.to(out_ptr.dtype.element_ty), mask=inside)


def loss_backward(p: Tensor, g: Tensor, glag: Tensor, index: Tensor | None, out: Tensor) -> None:
    """``out = g p - glag e_index``; ``g`` and ``glag`` have one value, or one a row."""
    n, d = p.shape
    rows, columns = tile_of(d)
    _loss_backward[(pieces(n, rows), pieces(d, columns))](
        p,
        g,
        glag,
        p if index is None else index,
        out,
        n,
        d,
        int(g.numel() > 1),
        int(glag.numel() > 1),
        HAS_INDEX=index is not None,
        ROWS=rows,
        COLUMNS=columns,
    )


# --- the derivative of the regulariser in alpha ---------------------------------------------------


@triton.jit
def _domega_term(p, beta, inverse):
    """p m (m s(v) + r(v) / alpha) / alpha for m = -log p, v = beta m and ``inverse`` = 1 / alpha.

    Here r(v) = (1 - e^-v) / v and s(v) = (1 - (1 + v) e^-v) / v^2, by their series below v = 1.
    """
    m = -tl.log(tl.where(p > 0.0, p, 1.0))
    v = beta * m
    e = tl.exp(-v)
    small = tl.minimum(v, 1.0)
    first = tl.full(p.shape, 1.0, tl.float32)  # (e^v - 1) / v
    second = tl.full(p.shape, 0.5, tl.float32)  # (e^v - 1 - v) / v^2
    power = tl.full(p.shape, 1.0, tl.float32)
    for k in tl.static_range(1, 12):
        power = power * small / (k + 1)
        first += power
        second += power / (k + 2)
    safe = tl.maximum(v, 1.0)
    r = tl.where(v < 1.0, e * first, (1.0 - e) / safe)
    s = tl.where(v < 1.0, e * second, (1.0 - (1.0 + v) * e) / (safe * safe))
    # a row that is NaN stays NaN, and 0 adds nothing
    return p * m * (m * s + r * inverse) * inverse


@quick
@triton.jit
def _entmax_domega(
    p_ptr,
    alpha_ptr,
    beta,
    inverse,
    out_ptr,
    factor_ptr,
    n,
    d,
    BY_ROW: tl.constexpr,
    FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < n
    wide = rows.to(tl.int64)
    betas = tl.full([ROWS], 0.0, tl.float32) + beta
    inverses = tl.full([ROWS], 0.0, tl.float32) + inverse
    if BY_ROW:
        alpha = tl.load(alpha_ptr + wide, mask=here, other=1.0)
        betas = (alpha - 1.0).to(tl.float32)
        inverses = 1.0 / alpha.to(tl.float32)
    total = tl.full([ROWS, COLUMNS], 0.0, tl.float32)
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = here[:, None] & (columns < d)[None, :]
        p = tl.load(p_ptr + wide[:, None] * d + columns[None, :], mask=inside, other=0.0)
        total += _domega_term(p.to(tl.float32), betas[:, None], inverses[:, None])
    change = tl.sum(total, 1)
    if FACTOR:
        factor = tl.load(factor_ptr + wide, mask=here, other=0.0)
        change = tl.where(factor == 0.0, 0.0, -factor * change)
    tl.store(out_ptr + wide, change, mask=here)


def entmax_domega(
    p: Tensor, alpha: float | Tensor, out: Tensor, factors: Tensor | None = None
) -> None:
    """dOmega/dalpha at fixed p into ``out``, one value a row.

    With ``factors`` it is -factor dOmega/dalpha, and 0 where the factor is.
    """
    n, d = p.shape
    rows, columns = tile_of(d)
    number = 1.0 if isinstance(alpha, Tensor) else alpha
    _entmax_domega[(pieces(n, rows),)](
        p,
        alpha if isinstance(alpha, Tensor) else p,
        number - 1.0,
        1.0 / number,
        out,
        p if factors is None else factors,
        n,
        d,
        BY_ROW=isinstance(alpha, Tensor),
        FACTOR=factors is not None,
        ROWS=rows,
        COLUMNS=columns,
    )


# --- dense targets --------------------------------------------------------------------------------


@quick
@triton.jit
def _dense_lag(
    z_ptr,
    top_ptr,
    a_ptr,
    lag_ptr,
    total_ptr,
    n,
    d,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = rows < n
    wide = rows.to(tl.int64)
    top = tl.load(top_ptr + wide, mask=here, other=0.0).to(tl.float64)
    lag = tl.full([ROWS, COLUMNS], 0.0, tl.float64)
    total = tl.full([ROWS, COLUMNS], 0.0, tl.float64)
    for start in range(0, d, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = here[:, None] & (columns < d)[None, :]
        z = tl.load(z_ptr + wide[:, None] * d + columns[None, :], mask=inside, other=0.0)
        entry = wide[:, None] * row_stride + columns[None, :] * column_stride
        a = tl.load(a_ptr + entry, mask=inside, other=0.0).to(tl.float64)
        lag += a * tl.where(a != 0.0, top[:, None] - z.to(tl.float64), 0.0)
        total += a
    tl.store(lag_ptr + wide, tl.sum(lag, 1), mask=here)
    tl.store(total_ptr + wide, tl.sum(total, 1), mask=here)


def dense_lag(z: Tensor, top: Tensor, a: Tensor, lag: Tensor, total: Tensor) -> None:
    """``lag`` = sum_c a_c (top - z_c), ``total`` = sum_c a_c; ``a`` has one row, or all."""
    n, d = z.shape
    rows, columns = tile_of(d)
    _dense_lag[(pieces(n, rows),)](
        z,
        top,
        a,
        lag,
        total,
        n,
        d,
        a.stride(0) if len(a) > 1 else 0,
        a.stride(1),
        ROWS=rows,
        COLUMNS=columns,
    )
