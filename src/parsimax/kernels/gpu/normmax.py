"""Rows of normmax: p = r^gamma / sum, r = (z - tau)_+, where the conjugate norm of r is one.

With u = -tau relative to the largest score, r = u (1 + y/u) for y = z - max(z), and gamma =
1 / (alpha - 1). A threshold that is off by the last digit of float32 is off for a whole crowd of
scores next to it, and the largest probability then by that digit times the size of the crowd: so
the threshold and the sums are in float64. Newton comes near with powers in float32 and ends with
powers in float64; alpha = 2 needs none.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .tiles import (
    load_chunk,
    load_scores,
    log2_of,
    row_parameter,
    row_tops,
    row_values,
    store_chunk,
    tile_for,
)

_LONGEST = 4096  # twice that spills registers
_SWEEPS = tl.constexpr(64)
_NEAR = tl.constexpr(3e-4)  # residual from which powers in float32 are not good enough
_RESIDUAL = tl.constexpr(1e-13)
_LN2 = tl.constexpr(0.6931471805599453)
_LOG2_E = tl.constexpr(1.4426950408889634)


def forward(z: Tensor, alpha: float | Tensor, out: Tensor) -> None:
    """Probabilities of every row into ``out``; NaN where alpha is not a number above 1."""
    n, d = z.shape
    tile = tile_for(d, _LONGEST)
    b = row_parameter(alpha if isinstance(alpha, Tensor) else alpha - 1.0, z)
    _forward[(triton.cdiv(n, tile.ROWS),)](
        z,
        b.values,
        b.high,
        b.low,
        out,
        n,
        d,
        LINEAR=not b.PER_ROW and alpha == 2.0,
        PER_ROW=b.PER_ROW,
        **tile.options,
    )


def backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, out: Tensor, dalpha: Tensor | None
) -> None:
    """Gradient in the scores into ``out``, and in alpha into ``dalpha`` where wanted."""
    n, d = p.shape
    tile = tile_for(d, _LONGEST)
    b = row_parameter(alpha if isinstance(alpha, Tensor) else alpha - 1.0, p)
    _backward[(triton.cdiv(n, tile.ROWS),)](
        p,
        g,
        b.values,
        b.high,
        b.low,
        out,
        out if dalpha is None else dalpha,
        n,
        d,
        WANT=dalpha is not None,
        PER_ROW=b.PER_ROW,
        **tile.options,
    )


@triton.jit
def _betas(values, high, low, rows, keep, PER_ROW: tl.constexpr):
    """alpha - 1, subtracted before any rounding: alpha may be close to 1."""
    beta = row_values(values, high, low, rows, keep, PER_ROW)
    if PER_ROW:
        beta -= 1.0
    return beta


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def _weights(x, top, b, gamma, LINEAR: tl.constexpr, DOUBLE: tl.constexpr):
    """(w = (1 + b y)_+, w^gamma) in float64, the power exact to float32 unless ``DOUBLE``."""
    v = b * (x.to(tl.float64) - top)
    inside = v > -1.0
    v = tl.where(inside, v, 0.0)
    w = 1.0 + v
    lost = v - (w - 1.0)
    if LINEAR:
        q = w
    elif DOUBLE:
        q = tl.exp2(gamma * (tl.log2(w) + (lost / w) * _LOG2_E))
    else:
        log_w = log2_of(w) + (lost * _LOG2_E).to(tl.float32)
        q = tl.exp2(gamma.to(tl.float32) * log_w).to(tl.float64)
    return tl.where(inside, w, 0.0), tl.where(inside, q, 0.0)


@triton.jit
def _minus_expm1(x):
    """1 - exp(-x) for x that may be small."""
    series = x * (1.0 - x / 2 * (1.0 - x / 3 * (1.0 - x / 4 * (1.0 - x / 5))))
    return tl.where(tl.abs(x) < 0.01, series, 1.0 - tl.exp2(x * -_LOG2_E))


@triton.jit
def _newton(
    tile,
    z,
    rows,
    keep,
    d,
    top,
    u,
    gamma,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
    LINEAR: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """(sum of w^gamma, residual of sum r^(gamma + 1) = 1, by how much u is too large)."""
    same = tl.zeros([ROWS], tl.float64)
    more = tl.zeros([ROWS], tl.float64)
    b = 1.0 / u
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        w, q = _weights(x, top[:, None], b[:, None], gamma[:, None], LINEAR, DOUBLE)
        same += tl.sum(q, 1)
        more += tl.sum(q * w, 1)
    # Newton on the norm (sum r^order)^(1/order), which is convex in tau and nearly linear
    order = gamma + 1.0
    log_u = tl.log2(u)
    log_sum = tl.log2(more) + order * log_u
    total = tl.exp2(log_sum)
    slope = tl.exp2(gamma * log_u) * same
    return same, total - 1.0, total * _minus_expm1(log_sum / order * _LN2) / slope


@triton.jit(do_not_specialize=["n"])
def _forward(
    z,
    values,
    high,
    low,
    out,
    n,
    d,
    LINEAR: tl.constexpr,
    PER_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    beta = _betas(values, high, low, rows, keep, PER_ROW)
    tile = load_scores(z, rows, keep, 0, d, COLUMNS)
    top = row_tops(tile, z, rows, keep, d, COLUMNS, ONE)
    empty = top == float("-inf")
    good = (empty == 0) & (top < float("inf")) & (beta > 0.0) & (beta < float("inf"))
    top = tl.where(good, top, 0.0).to(tl.float64)
    gamma = 1.0 / tl.where(good, beta, 1.0)

    u = tl.full([ROWS], 1.0, tl.float64)
    if not LINEAR:
        climbed = good == 0
        sweep = 0
        while (tl.max((climbed == 0).to(tl.int32), 0) > 0) & (sweep < _SWEEPS):
            _, residual, step = _newton(
                tile, z, rows, keep, d, top, u, gamma, ROWS, COLUMNS, ONE, LINEAR, False
            )
            climbed = climbed | ((residual > 0.0) == 0) | (u - step == u)
            u = tl.where(climbed, u, u - step)
            climbed = climbed | (residual <= _NEAR)
            sweep += 1

    total = tl.full([ROWS], 1.0, tl.float64)
    previous = tl.full([ROWS], float("inf"), tl.float64)
    done = good == 0
    sweep = 0
    while (tl.max((done == 0).to(tl.int32), 0) > 0) & (sweep < _SWEEPS):
        same, residual, step = _newton(
            tile, z, rows, keep, d, top, u, gamma, ROWS, COLUMNS, ONE, LINEAR, True
        )
        total = tl.where(done, total, same)
        # the last is rounding, which lets the residual shrink no further
        still = (tl.abs(residual) < previous) & (u - step != u)
        done = done | (tl.abs(residual) <= _RESIDUAL) | (still == 0)
        previous = tl.where(done, previous, tl.abs(residual))
        u = tl.where(done, u, u - step)
        sweep += 1

    b = 1.0 / u
    scale = 1.0 / total
    other = tl.where(empty, 0.0, float("nan"))
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = tile if ONE else load_scores(z, rows, keep, start, d, COLUMNS)
        _, q = _weights(x, top[:, None], b[:, None], gamma[:, None], LINEAR, True)
        p = (q * scale[:, None]).to(tl.float32)
        p = tl.where(good[:, None], p, other[:, None])
        store_chunk(out, rows, keep, start, d, p, COLUMNS)


# --- backward -------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])
def _backward(
    p,
    g,
    values,
    high,
    low,
    out,
    dalpha,
    n,
    d,
    WANT: tl.constexpr,
    PER_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ONE: tl.constexpr,
):
    """J = (I - p 1') diag(s) (I - 1 p') with s = p rho^(1 - alpha) / (alpha - 1), rho = p / |p|."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    beta = _betas(values, high, low, rows, keep, PER_ROW)
    p_tile = load_chunk(p, rows, keep, 0, d, 0.0, COLUMNS)
    g_tile = load_chunk(g, rows, keep, 0, d, 0.0, COLUMNS)
    broken = tl.zeros([ROWS], tl.int32)
    top = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        broken = tl.maximum(broken, tl.max((x != x).to(tl.int32), 1))
        inside = x > 0.0
        top = tl.maximum(top, tl.max(tl.where(inside, x, 0.0), 1))
        mean += tl.sum(tl.where(inside, x.to(tl.float64) * v.to(tl.float64), 0.0), 1)
    some = top > 0.0
    top64 = tl.where(some, top, 1.0).to(tl.float64)
    beta = tl.where(some, beta, 1.0)
    alpha32 = (beta + 1.0).to(tl.float32)
    beta32 = beta.to(tl.float32)

    # the norm, relative to the largest: the power itself may underflow
    powers = tl.zeros([ROWS], tl.float64)
    logs = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        inside = x > 0.0
        log_x = log2_of(tl.where(inside, x.to(tl.float64) / top64[:, None], 1.0))
        power = tl.where(inside, tl.exp2(alpha32[:, None] * log_x), 0.0)
        powers += tl.sum(power.to(tl.float64), 1)
        logs += tl.sum((power * log_x).to(tl.float64), 1)
    powers = tl.where(some, powers, 1.0)
    log_ratio = tl.log2(powers) / (beta + 1.0)  # log2 of the norm over the largest entry
    norm = top64 * tl.exp2(log_ratio)
    mean_log = (logs / powers - log_ratio) * _LN2  # mean of log(rho) under rho^alpha
    through_tau = (mean_log * norm / (beta + 1.0)).to(tl.float32)

    shift = tl.zeros([ROWS], tl.float64)
    change = tl.zeros([ROWS], tl.float64)
    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        log_rho, power = _slope(x, norm[:, None], beta32[:, None])
        share = tl.where(x > 0.0, x.to(tl.float64) * (v.to(tl.float64) - mean[:, None]), 0.0)
        shift += tl.sum(share * power.to(tl.float64), 1)
        if WANT:
            direct = log_rho * _LN2 - through_tau[:, None] * power
            change += tl.sum(share * direct.to(tl.float64), 1)
    if WANT:
        change = tl.where(broken > 0, float("nan"), -change / beta)
        tl.store(dalpha + rows, change.to(tl.float32), mask=keep)

    for start in range(0, COLUMNS if ONE else d, COLUMNS):
        x = p_tile if ONE else load_chunk(p, rows, keep, start, d, 0.0, COLUMNS)
        v = g_tile if ONE else load_chunk(g, rows, keep, start, d, 0.0, COLUMNS)
        _, power = _slope(x, norm[:, None], beta32[:, None])
        off = power.to(tl.float64) * (v.to(tl.float64) - mean[:, None]) - shift[:, None]
        value = tl.where(x > 0.0, x.to(tl.float64) * off / beta[:, None], 0.0).to(tl.float32)
        value = tl.where(broken[:, None] > 0, float("nan"), value)
        store_chunk(out, rows, keep, start, d, value, COLUMNS)


@triton.jit
def _slope(p, norm, beta):
    """(log2(rho), rho^(1 - alpha)) for rho = p / |p|; no power is beyond 2^100."""
    inside = p > 0.0
    log_rho = log2_of(tl.where(inside, p.to(tl.float64) / norm, 1.0))
    return log_rho, tl.exp2(tl.minimum(-beta * log_rho, 100.0))
