"""Rows of normmax: p = r^gamma / sum, r = (z - tau)_+, where the conjugate norm of r is one.

With gamma = 1 / (alpha - 1), the sum of r^(gamma + 1) must be one. Newton is taken on its norm,
which is convex in tau and nearly linear: first on the largest score of each group of columns, then,
if that leaves anything out, on the whole row. The threshold is two floats, ``high`` + ``low``, so
that r has all its digits next to it. Where alpha is near 1 they are the largest score and 1 + tau
less that: r is 1 + (z - high - low), and its logarithm a series.

What float32 leaves open of the threshold matters where a crowd of scores stands next to it. How
much, the sum of r^(gamma - 1) tells; such a row is solved again in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .approx import exp2, log2, reciprocal, rounded
from .layout import Tile, forward_tile
from .normmax_backward import backward, beta_of, log2_near_one, row_betas
from .normmax_crowd import solve_crowded
from .quick import quick
from .reductions import larger, maximum, maximum2, sum3
from .tiles import row_parameter, row_values

__all__ = ["backward", "forward"]

LINEAR = tl.constexpr(0)  # alpha = 2
SQUARE = tl.constexpr(1)  # alpha = 3/2
POWER = tl.constexpr(2)

# Which rows have an alpha near 1
NEVER = tl.constexpr(0)
ALWAYS = tl.constexpr(1)
SOME = tl.constexpr(2)
_NEAR_ONE = tl.constexpr(0.09)  # 1 - 1/alpha below which the logarithm is taken of 1 + v

_SWEEPS = tl.constexpr(64)  # no row needs so many
_NEXT = tl.constexpr(1e-6)  # scores so close to the threshold might lie on its other side
_LN2 = tl.constexpr(0.6931471805599453)
_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _weights(z, high, low, power, near, KIND: tl.constexpr, NEAR: tl.constexpr):
    """(z - high - low, r, q = r^gamma, a = r^(gamma - 1)); ``power`` is gamma - 1.

    Where gamma is small, q is nearly 1 in the whole support: the product of r and nearly 1 / r
    would put the noise of both into the order of the probabilities.
    """
    v = (z - high) - low
    if NEAR == NEVER:
        r = tl.maximum(v, 0.0)
    else:
        v = tl.maximum(v, -1.5)
        r = tl.maximum(tl.where(near, 1.0 + v, v), 0.0)
    if KIND == LINEAR:
        a = tl.where(v > 0.0, 1.0, 0.0)
        q = r
    elif KIND == SQUARE:
        a = r
        q = r * r
    else:
        log = log2(tl.maximum(r, 1e-30))
        if NEAR != NEVER:
            log = tl.where(near & (v > -0.3), log2_near_one(v * reciprocal(2.0 + v)), log)
        a = tl.where(r > 0.0, exp2(power * log), 0.0)
        q = tl.where(power < -0.5, tl.where(r > 0.0, exp2((power + 1.0) * log), 0.0), a * r)
    return v, r, q, a


@triton.jit
def _add(high, low, step):
    """``high`` and ``low`` + ``step``, added exactly and split again."""
    low += step
    total = high + low
    part = total - high
    return total, (high - (total - part)) + (low - part)


@triton.jit
def _newton(norm, same, share):
    """(surplus of the sum of r^order, how far tau must rise at least); ``share`` is 1 / order."""
    surplus = norm - 1.0
    # norm (1 - norm^-share) / same, by series where the surplus is small, or the share
    curve = 0.5 * (1.0 - share)
    rise = share * surplus * (1.0 + surplus * curve * (1.0 - (1.0 + share) * surplus * (1.0 / 3)))
    x = share * log2(norm) * _LN2
    flat = x * (1.0 - x * (0.5 - x * (1.0 / 6 - x * (1.0 / 24))))
    far = norm * tl.where(x < 0.2, flat, 1.0 - exp2(x * -_LOG2E))
    return surplus, tl.where(tl.abs(surplus) < 0.05, rise, far) * reciprocal(same)


@triton.jit
def _noise(share):
    """What the sum of r^order may be off for its approximate powers and its rounding."""
    return tl.minimum(2e-7 + 1e-7 / share, 1e-5)


@triton.jit
def _step_on_p(step, same, slope, gamma, d):
    """(gamma times the step if p may take it, a bound of the mass that leaves p with it).

    p takes it as a (r - step), right to second order. For gamma below 2, that is not small enough
    next to the threshold: these rows go on until there is no step to take.
    """
    step = tl.where(gamma >= 2.0, tl.maximum(gamma * step, 0.0), 0.0)
    return step, tl.minimum(step * slope, exp2(gamma * log2(step)) * d) * reciprocal(same)


@triton.jit
def _scores(z_ptr, starts, columns, k, d, backwards, keep, WIDE: tl.constexpr):
    """The k-th piece of a row from either end: what was read last is still in the cache."""
    columns += tl.where(backwards > 0, tl.cdiv(d, WIDE) - 1 - k, k) * WIDE
    mask = keep & (columns < d)
    z = tl.load(z_ptr + starts + columns, mask=mask, other=-float("inf")).to(tl.float32)
    return z, columns, mask


@triton.jit
def _terms(z, high, low, power, near, KIND: tl.constexpr, NEAR: tl.constexpr, CLOSE: tl.constexpr):
    """(r, r^gamma, a = r^(gamma - 1), how far the score is from the threshold)."""
    v, r, q, a = _weights(z, high, low, power, near, KIND, NEAR)
    return r, q, a, tl.abs(v) if CLOSE else v


@triton.jit
def _sums(norm, same, slope, close, CLOSE: tl.constexpr):
    norm, same, slope = sum3(tl.sum(norm, 0), tl.sum(same, 0), tl.sum(slope, 0), 1)
    close = tl.min(tl.min(close, 0), 1) if CLOSE else tl.zeros_like(slope)
    return norm, same, slope, close


@triton.jit
def _sweep(
    tile, z_ptr, starts, columns, d, backwards, keep, high, low, power, near,
    KIND: tl.constexpr, NEAR: tl.constexpr, CLOSE: tl.constexpr,
    WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """(sum of r^order, of r^gamma, of a, nearest score) of rows in registers, or in memory."""
    high, low, power = high[None, :, None], low[None, :, None], power[None, :, None]
    near = near[None, :, None]
    if STREAM:
        norms = tl.zeros([1, 1, WIDE], tl.float32)
        sames = tl.zeros([1, 1, WIDE], tl.float32)
        slopes = tl.zeros([1, 1, WIDE], tl.float32)
        closes = tl.full([1, 1, WIDE], float("inf"), tl.float32)
        for k in range(tl.cdiv(d, WIDE)):
            z, _here, _mask = _scores(z_ptr, starts, columns, k, d, backwards, keep, WIDE)
            r, same, slope, close = _terms(z, high, low, power, near, KIND, NEAR, CLOSE)
            norms = tl.fma(same, r, norms)  # within a thread, which may fuse
            sames += same
            slopes += slope
            if CLOSE:
                closes = tl.minimum(closes, close)
    else:
        r, sames, slopes, closes = _terms(tile, high, low, power, near, KIND, NEAR, CLOSE)
        norms = sames * r
    return _sums(norms, sames, slopes, closes, CLOSE)


@triton.jit
def _climb(
    tile, z_ptr, starts, columns, d, keep, high, low, good, gamma, share, near,
    same, slope, close, surplus, last,
    KIND: tl.constexpr, NEAR: tl.constexpr, CLOSE: tl.constexpr,
    WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Newton for the ``good`` rows: the threshold, the sums there, and the step left to p."""
    done = ~good
    noise = _noise(share)
    previous = tl.full(done.shape, float("inf"), tl.float32)
    sweep = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (sweep < _SWEEPS):
        sweep += 1
        norm, new_same, new_slope, new_close = _sweep(
            tile, z_ptr, starts, columns, d, sweep & 1, keep, high, low, gamma - 1.0, near,
            KIND, NEAR, CLOSE, WIDE, STREAM,
        )  # fmt: skip
        new_surplus, step = _newton(norm, new_same, share)
        new_last, lost = _step_on_p(step, new_same, new_slope, gamma, d)
        same = tl.where(done, same, new_same)
        slope = tl.where(done, slope, new_slope)
        close = tl.where(done, close, new_close)
        surplus = tl.where(done, surplus, new_surplus)
        last = tl.where(done, last, new_last)
        size = tl.abs(new_surplus)
        rough = (gamma < 2.0) | (size > 5e-4) | (lost > 3e-7)
        stuck = (previous < 1e-4) & (size > 0.5 * previous)
        done = done | ~(rough & (size > noise)) | stuck
        previous = size
        if NEAR == NEVER:
            new_high, new_low = _add(high, low, step)
        else:
            new_high, new_low = _add(high, low, tl.where(near, 0.0, step))
            new_high = tl.where(near, high, new_high)
            new_low = tl.where(near, low + step, new_low)
        high = tl.where(done, high, new_high)
        low = tl.where(done, low, new_low)
        active = tl.max(tl.where(done, 0, 1), 0)
    return high, low, same, slope, close, surplus, last, sweep


@triton.jit
def _probabilities(z, high, low, last, power, near, KIND: tl.constexpr, NEAR: tl.constexpr):
    """Up to a factor; ``last`` is 0 for LINEAR."""
    _v, r, q, a = _weights(z, high, low, power, near, KIND, NEAR)
    if KIND == LINEAR:
        return r
    elif KIND == SQUARE:
        return a * tl.maximum(r - last, 0.0)
    else:
        return tl.where(power < 1.0, q, a * tl.maximum(r - last, 0.0))  # else there is no step


@triton.jit
def _group_tops(z, GROUP: tl.constexpr):
    """(largest, second largest) of each group of columns that one thread holds."""
    second = tl.full(z.shape, -float("inf"), tl.float32)
    first = z
    if GROUP > 1:
        shape: tl.constexpr = [z.shape[0], z.shape[1], z.shape[2] // GROUP, GROUP]
        first, second = maximum2(tl.reshape(first, shape), tl.reshape(second, shape), 3)
    return maximum2(first, second, 0)


@triton.jit
def _crowded(
    top, high, low, same, slope, close, surplus, gamma, share, near,
    KIND: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Whether the threshold is not known well enough for p.

    If it is off by t, the largest p is off by gamma p (mean of 1/r under p - 1/its own r) t, others
    by less, and what lies that close may be on the wrong side.
    """
    _v, u, q, _a = _weights(top, high, low, gamma - 1.0, near, KIND, NEAR)
    wide = gamma >= 1.0
    eps = _noise(share) + tl.where(gamma >= 2.0, surplus * surplus, tl.abs(surplus))
    off = eps * share * reciprocal(same)
    largest = tl.where(wide, q * reciprocal(same), 1.0)
    steep = tl.maximum(slope * reciprocal(same) - reciprocal(u), 0.0)
    known = gamma * off * steep * largest <= tl.where(wide, 1e-6, 1e-5)
    return ~near & (~known | ((gamma < 2.0) & (close < _NEXT)))


@quick
@triton.jit(do_not_specialize=["n"])
def _kernel(
    z_ptr, p_ptr, a_ptr, value, value_low, n, d,
    KIND: tl.constexpr, NEAR: tl.constexpr, CLOSE: tl.constexpr, PER_ROW: tl.constexpr,
    GROUP: tl.constexpr, NARROW: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    keep = rows < n
    starts = (rows * d)[None, :, None]
    columns = (tl.arange(0, DEEP) * WIDE)[:, None, None] + tl.arange(0, WIDE)[None, None, :]
    z, here, mask = _scores(z_ptr, starts, columns, 0, d, 0, keep[None, :, None], WIDE)
    if STREAM:
        first = z
        second = tl.full([1, 1, WIDE], -float("inf"), tl.float32)
        for k in range(1, tl.cdiv(d, WIDE)):
            x, _here, _mask = _scores(z_ptr, starts, columns, k, d, 0, keep[None, :, None], WIDE)
            second = tl.maximum(second, tl.minimum(first, x))
            first = larger(first, x)
        firsts, seconds = tl.reshape(first, [1, WIDE]), tl.reshape(second, [1, WIDE])
    else:
        firsts, seconds = _group_tops(z, GROUP)
    top = maximum(firsts, 1)
    beta = row_betas(a_ptr, value, rows, keep, PER_ROW)
    good = (top > -float("inf")) & (top < float("inf")) & (beta > 0.0)
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan"))
    beta = tl.where(good, beta, 1.0)
    gamma = 1.0 / beta
    share = beta / (1.0 + beta)
    top = tl.where(good, top, 0.0)
    near = (share < _NEAR_ONE) if NEAR == SOME else (tl.zeros_like(share) + NEAR) > 0.0

    zero = tl.zeros([ROWS], tl.float32)
    high, low = _add(top, zero, tl.where(near, 0.0, -1.0))
    same, slope, close, surplus, last = zero + 1.0, zero, zero, zero, zero
    hidden = good
    if STREAM or DEEP * GROUP > 4:
        high, low, same, slope, close, surplus, last, _sweeps = _climb(
            firsts[None, :, :], z_ptr, starts, columns, d, keep[None, :, None],
            high, low, good, gamma, share, near, same, slope, close, surplus, last,
            KIND, NEAR, CLOSE, WIDE, False,
        )  # fmt: skip
        v, _r, q, _a = _weights(tl.max(seconds, 1), high, low, gamma - 1.0, near, KIND, NEAR)
        negligible = tl.where(gamma < 2.0, v <= -_NEXT, q * d <= 1e-8 * same)
        hidden = good & ~negligible
    high, low, same, slope, close, surplus, last, sweeps = _climb(
        z, z_ptr, starts, columns, d, keep[None, :, None],
        high, low, hidden, gamma, share, near, same, slope, close, surplus, last,
        KIND, NEAR, CLOSE, WIDE, STREAM,
    )  # fmt: skip

    crowded = good & (zero > 0.0)
    if NEAR != ALWAYS:
        crowded = good & _crowded(
            top, high, low, same, slope, close, surplus, gamma, share, near, KIND, NEAR
        )
    mine = (keep & ~crowded)[None, :, None]
    total = same - last * slope
    scale = reciprocal(total)
    scale = tl.fma(scale, tl.fma(-total, scale, 1.0), scale)  # its last digit shows in the sum
    scale = tl.where(good, scale, 0.0)[None, :, None]
    for k in range(tl.cdiv(d, WIDE) if STREAM else 1):
        if STREAM:
            z, here, mask = _scores(z_ptr, starts, columns, k, d, (sweeps + 1) & 1, mine, WIDE)
        p = _probabilities(
            z, high[None, :, None], low[None, :, None], last[None, :, None],
            (gamma - 1.0)[None, :, None], near[None, :, None], KIND, NEAR,
        )  # fmt: skip
        p = p * scale + fill[None, :, None]
        tl.store(p_ptr + starts + here, rounded(p, p_ptr.dtype.element_ty), mask=mask & mine)
    if NEAR != ALWAYS:  # noqa: SIM102 (known to the compiler, unlike the next)
        if tl.max(tl.where(crowded, 1, 0), 0) > 0:
            exactly = row_values(a_ptr, value, value_low, rows, keep, PER_ROW)
            if PER_ROW:
                exactly -= 1.0
            exactly = tl.where(crowded, exactly, 1.0)
            top64 = top.to(tl.float64)
            u = (top64 - high.to(tl.float64)) - low.to(tl.float64) + 2.0 * _NEXT
            u = tl.where(crowded, tl.minimum(u, 1.0), 1.0)
            solve_crowded(
                z_ptr, p_ptr, rows, crowded, d, top64, u, exactly, KIND == LINEAR, ROWS, NARROW
            )


def forward(z: Tensor, alpha: float | Tensor, out: Tensor, tile: Tile | None = None) -> None:
    """Probabilities of every row into ``out``; NaN where alpha is not a number above 1."""
    n, d = z.shape
    tensor = isinstance(alpha, Tensor)
    kind, near, close = POWER.value, SOME.value, True
    if isinstance(alpha, Tensor):
        beta = row_parameter(alpha, z)
    else:
        kind = LINEAR.value if alpha == 2.0 else SQUARE.value if alpha == 1.5 else kind
        near = ALWAYS.value if 1.0 - 1.0 / alpha < _NEAR_ONE.value else NEVER.value
        close = alpha > 1.5
        beta = row_parameter(beta_of(alpha), z)
    if tile is None:
        tile = forward_tile(d, z.element_size(), kind == POWER.value, tensor)
        each = tile.deep * tile.rows * tile.wide // (32 * tile.warps)
        many = each > (8 if tile.stream else 16)  # sweeps would spill; float64 may
        tile = tile._replace(registers=96 if many else 64)
    _kernel[(triton.cdiv(n, tile.rows),)](
        z,
        out,
        beta.values,
        beta.high,
        beta.low,
        n,
        d,
        KIND=kind,
        NEAR=near,
        CLOSE=close,
        PER_ROW=tensor,
        GROUP=tile.group,
        NARROW=32 * tile.warps // tile.rows,
        **tile.sizes | {"enable_fp_fusion": False},  # see reductions.solid
    )
