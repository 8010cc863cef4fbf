"""Rows of normmax, backward: in the scores and in alpha.

J = (I - p 1') diag(s) (I - 1 p') with s = p rho^(1 - alpha) / (alpha - 1) and rho = p / |p|. With
b = p^(2 - alpha), s is b times a factor of the row, so that all sums are taken in one sweep, and a
second one writes. Where alpha may be large, powers are taken of p over the largest p of the row,
since p^alpha would underflow.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .approx import exp2, log2, reciprocal, rounded, square_root
from .layout import backward_tile
from .quick import quick
from .reductions import sum2

LINEAR = tl.constexpr(0)  # alpha = 2: p^(2 - alpha) is 1
ROOT = tl.constexpr(1)  # alpha = 3/2
POWER = tl.constexpr(2)

_SAFE = 4.0  # the largest alpha for which p^alpha of a row's largest p, 1/d or more, is a float
_SMALL = 1.1  # an alpha below which 1 / (alpha - 1) would show what float32 rounds in a mean
_TINY = tl.constexpr(1.2e-38)  # the logarithm takes less for 0
_LN2 = tl.constexpr(0.6931471805599453)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_betas(values, value, rows, inside, PER_ROW: tl.constexpr):
    """alpha - 1, subtracted before any rounding (alpha may be close to 1); NaN if it is not one."""
    if PER_ROW:
        beta = tl.load(values + rows, mask=inside, other=2.0) - 1.0
        good = (beta > 0.0) & (beta < float("inf"))
        beta = tl.minimum(tl.maximum(beta, 1e-37), 3e38).to(tl.float32)
        return tl.where(good, beta, float("nan"))
    else:
        return tl.zeros([rows.shape[0]], tl.float32) + value


def beta_of(alpha: float) -> float:
    """The same of a number, which is above 1."""
    return min(max(alpha - 1.0, 1e-37), 3e38)


@triton.jit
def log2_near_one(s):
    """log2((1 + s) / (1 - s)) by its series, for |s| up to 1/4: all digits, where log2 has few."""
    s2 = s * s
    series = tl.fma(s2, 1.0 / 9, 1.0 / 7)
    series = tl.fma(s2, series, 1.0 / 5)
    series = tl.fma(s2, series, 1.0 / 3)
    return (2.0 * _LOG2E) * s * tl.fma(s2, series, 1.0)


@triton.jit
def _powers(p, top, beta, KIND: tl.constexpr, RELATIVE: tl.constexpr):
    """(b = x^(2 - alpha), x^alpha, log2(x)) of x = p / top; b is 0 where p is."""
    inside = p > 0.0
    if KIND == LINEAR:
        return tl.where(inside, 1.0, 0.0), p * p, p
    elif KIND == ROOT:
        b = square_root(tl.maximum(p, 0.0))
        return b, p * b, p
    else:
        log = log2(tl.maximum(p, _TINY))
        if RELATIVE:
            near = log2_near_one((p - top) * reciprocal(p + top))
            log = tl.where(p > 0.65 * top, near, log - log2(top))
        # a slope beyond 2^100 is one of rounding
        b = tl.where(inside, exp2(tl.minimum((1.0 - beta) * log, 100.0)), 0.0)
        return b, tl.where(inside, exp2((1.0 + beta) * log), 0.0), log


@triton.jit
def _load(x, starts, columns, mask):
    return tl.load(x + starts + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _terms(
    p, g, top, beta,
    KIND: tl.constexpr, RELATIVE: tl.constexpr, DOUBLE: tl.constexpr, WANT: tl.constexpr,
):  # fmt: skip
    """What is added up over a row; the last four for the gradient in alpha.

    In double precision, those that 1 / (alpha - 1) would magnify.
    """
    b, power, log = _powers(p, top, beta, KIND, RELATIVE)
    p = tl.where(p > 0.0, p, 0.0)
    g = tl.where(p > 0.0, g, 0.0)  # a gradient of inf or NaN off the support stays there
    pg = p * g
    bg = b * g
    mass = p
    if DOUBLE:
        wide = g.to(tl.float64)
        b = b.to(tl.float64)
        bg = b * wide
        mass = p.to(tl.float64)
        pg = mass * wide
    if WANT:
        logs = power * log
        if DOUBLE:
            power = power.to(tl.float64)
            logs = logs.to(tl.float64)
        return pg, power, b, bg, mass, p * log, pg.to(tl.float32) * log, logs
    else:
        return pg, power, b, bg, p, p, p, p


@triton.jit
def _sum2(a, b):
    return sum2(tl.sum(a, 0), tl.sum(b, 0), 1)


@quick
@triton.jit(do_not_specialize=["n"])
def _kernel(
    p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d,
    KIND: tl.constexpr, RELATIVE: tl.constexpr, DOUBLE: tl.constexpr,
    PER_ROW: tl.constexpr, WANT: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    beta = row_betas(a_ptr, value, rows, keep, PER_ROW)
    columns = (tl.arange(0, DEEP) * WIDE)[:, None, None] + tl.arange(0, WIDE)[None, None, :]
    starts = (rows * d)[None, :, None]
    inside = (columns < d) & keep[None, :, None]
    pieces = tl.cdiv(d, WIDE) if STREAM else 1
    # a row of NaN is NaN in its first entry, too
    first = tl.load(p_ptr + rows * d, mask=keep, other=0.0).to(tl.float32)
    if not STREAM:
        p = _load(p_ptr, starts, columns, inside)
        g = _load(g_ptr, starts, columns, inside)

    top = tl.zeros([ROWS], tl.float32) + 1.0
    if RELATIVE:
        if STREAM:
            largest = tl.zeros([1, ROWS, WIDE], tl.float32)
            for k in range(pieces):
                here = columns + k * WIDE
                largest = tl.maximum(largest, _load(p_ptr, starts, here, here < d))
        else:
            largest = p
        top = tl.maximum(tl.max(tl.max(largest, 0), 1), 0.0)
    top = tl.where(top > 0.0, top, 1.0)
    tops = top[None, :, None]
    betas = beta[None, :, None]

    if STREAM:
        zeros = tl.zeros([1, ROWS, WIDE], tl.float32)
        wide = zeros.to(tl.float64) if DOUBLE else zeros
        a0, a1, a2, a3 = wide, wide if WANT else zeros, wide, wide
        a4, a5, a6, a7 = wide, zeros, zeros, wide
        for k in range(pieces):
            here = columns + (pieces - 1 - k) * WIDE
            p = _load(p_ptr, starts, here, here < d)
            g = _load(g_ptr, starts, here, here < d)
            b0, b1, b2, b3, b4, b5, b6, b7 = _terms(p, g, tops, betas, KIND, RELATIVE, DOUBLE, WANT)
            a0 += b0
            a1 += b1
            a2 += b2
            a3 += b3
            if WANT:
                a4 += b4
                a5 += b5
                a6 += b6
                a7 += b7
    else:
        a0, a1, a2, a3, a4, a5, a6, a7 = _terms(p, g, tops, betas, KIND, RELATIVE, DOUBLE, WANT)
    power = tl.sum(tl.sum(a1, 0), 1)
    exact_mean = tl.sum(tl.sum(a0, 0), 1)
    slopes, against = _sum2(a2, a3)
    against = (against - exact_mean * slopes).to(tl.float32)
    mean = exact_mean.to(tl.float32)
    rest = (exact_mean - mean).to(tl.float32)

    some = power > 0.0
    power = tl.where(some, power, 1.0)
    safe_beta = tl.where(some, beta, 1.0)
    # of the norm over the reference; once a row, so not by approximations
    exact_log_norm = tl.log2(power) / (1.0 + safe_beta)
    log_norm = exact_log_norm.to(tl.float32)
    scale = top * tl.exp2(safe_beta * log_norm) / safe_beta
    scale = tl.where(some, scale, 0.0)
    mean = tl.where(first != first, float("nan"), mean)
    shift = scale * against
    if WANT:
        short = (1.0 - tl.sum(tl.sum(a4, 0), 1)).to(tl.float32)  # what p lacks of 1
        logs = tl.sum(tl.sum(a5, 0), 1)
        logs_against = tl.sum(tl.sum(a6, 0), 1)
        mean_log = tl.sum(tl.sum(a7, 0), 1) / power - exact_log_norm  # of log(rho) under rho^alpha
        mean_log = mean_log.to(tl.float32) * _LN2
        direct = (logs_against - mean * logs) - log_norm * mean * short
        through_tau = mean_log * top * tl.exp2(log_norm) / (1.0 + safe_beta)
        change = through_tau * shift - direct * _LN2 / safe_beta
        tl.store(change_ptr + rows, change, mask=keep)

    for k in range(pieces):
        here = columns + k * WIDE
        mask = (here < d) & keep[None, :, None]
        if STREAM:
            p = _load(p_ptr, starts, here, mask)
            g = _load(g_ptr, starts, here, mask)
        b, _power, _log = _powers(p, tops, betas, KIND, RELATIVE)
        g = tl.where(p > 0.0, g, 0.0)
        off = g - mean[None, :, None]
        if DOUBLE:
            off -= rest[None, :, None]
        out = tl.fma(b * scale[None, :, None], off, -p * shift[None, :, None])
        tl.store(out_ptr + starts + here, rounded(out, out_ptr.dtype.element_ty), mask=mask)


def backward(
    p: Tensor, g: Tensor, alpha: float | Tensor, out: Tensor, dalpha: Tensor | None
) -> None:
    """Gradient in the scores into ``out``, and in alpha into ``dalpha`` where wanted."""
    n, d = p.shape
    tensor, want = isinstance(alpha, Tensor), dalpha is not None
    kind, relative, double = POWER.value, True, True
    beta = 0.0
    if not isinstance(alpha, Tensor):
        if not want:
            kind = LINEAR.value if alpha == 2.0 else ROOT.value if alpha == 1.5 else kind
        relative, double = alpha > _SAFE, alpha < _SMALL
        beta = beta_of(alpha)
    tile = backward_tile(d, p.element_size(), tensor)
    if double and tile.stream:  # sums in float64 take twice the registers
        tile = tile._replace(wide=tile.wide // (4 if want else 2))
    _kernel[(triton.cdiv(n, tile.rows),)](
        p,
        g,
        out,
        alpha if tensor else p,
        dalpha if want else p,
        beta,
        n,
        d,
        KIND=kind,
        RELATIVE=relative,
        DOUBLE=double,
        PER_ROW=tensor,
        WANT=want,
        **tile.sizes,
    )
