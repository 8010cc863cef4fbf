"""Rows of alpha-entmax (1 <= alpha <= 2) and sparsegen, backward: in the scores, alpha and lambda.

With s = p^(2 - alpha) on the support, the gradient in the scores is s (g - m), where m is the mean
of g under s; that in alpha is the sum of (g - m) dp/dalpha at a fixed threshold.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .approx import exp2, log2, rounded, square_root
from .entmax import Plan, kind_of
from .layout import Tile, backward_tile
from .newton import ENTMAX15, SOFTMAX, SPARSEMAX, row_sums
from .quick import prepare, quick
from .reductions import sum2
from .steep import PROGRAMS, SCAN, multiply_owned

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _weights(p, beta, KIND: tl.constexpr):
    """s, not 0 where p is NaN, so that the row becomes NaN."""
    if KIND == SOFTMAX:
        return p
    elif KIND == SPARSEMAX:
        return tl.where(p <= 0.0, 0.0, 1.0)
    elif KIND == ENTMAX15:
        return square_root(p)
    else:
        return tl.where(p <= 0.0, 0.0, exp2((1.0 - beta) * log2(tl.maximum(p, 1.2e-38))))


@triton.jit
def exponential_rest(v):
    """(e^v - 1 - v) / v^2 by its series, for v up to 1."""
    series = 1.0 / 362880
    series = tl.fma(v, series, 1.0 / 40320)
    series = tl.fma(v, series, 1.0 / 5040)
    series = tl.fma(v, series, 1.0 / 720)
    series = tl.fma(v, series, 1.0 / 120)
    series = tl.fma(v, series, 1.0 / 24)
    series = tl.fma(v, series, 1.0 / 6)
    return tl.fma(v, series, 0.5)


@triton.jit
def change_by_alpha(p, s, beta, inverse_square, KIND: tl.constexpr):
    """dp/dalpha at a fixed threshold: -(s - p + beta p log p) / beta^2, without cancellation."""
    if KIND == SOFTMAX:
        s = p
    minus_log = -_LN2 * log2(tl.maximum(p, 1.2e-38))  # the logarithm takes less for 0
    v = beta * minus_log
    # from 1 on as it stands, where e^v = s / p
    near = -p * minus_log * minus_log * exponential_rest(v)
    far = (p + v * p - s) * inverse_square
    return tl.where(p <= 0.0, 0.0, tl.where(v < 1.0, near, far))


@triton.jit
def _beta_and_scale(
    a_ptr, value, rows, inside, KIND: tl.constexpr, TENSOR: tl.constexpr, GEN: tl.constexpr
):
    """(beta, 1 / (1 - lambda) or 1 / beta^2, whether this kernel owns the row).

    ``value`` is beta or 1 - lambda. Differences are taken before a double is rounded.
    """
    one = tl.zeros([rows.shape[0]], tl.float32) + 1.0
    if GEN:
        if TENSOR:
            width = (1.0 - tl.load(a_ptr + rows, mask=inside, other=0.0)).to(tl.float32)
        else:
            width = one * value
        return one, 1.0 / width, inside
    else:
        if TENSOR:
            alpha = tl.load(a_ptr + rows, mask=inside, other=1.5)
            mine = inside & (alpha >= 1.0) & (alpha <= 2.0)
            beta = (alpha - 1.0).to(tl.float32)
        else:
            mine = inside
            beta = one * value
        return beta, 1.0 / tl.maximum(beta * beta, 1e-30), mine


@triton.jit
def _mean(against, total, p_ptr, rows, d, mine):
    """The mean of g under s; NaN in a row of NaN, 0 in a row of zeros."""
    mean = against / tl.where(total == 0.0, 1.0, total)
    first = tl.load(p_ptr + rows * d, mask=mine, other=0.0).to(tl.float32)
    return tl.where(first != first, float("nan"), mean)


@triton.jit
def _apply(p, s, g, mean, beta, scale, KIND: tl.constexpr, WANT: tl.constexpr, GEN: tl.constexpr):
    """(gradient in the scores, its terms in the parameter).

    ``scale`` is 1 / (1 - lambda) for sparsegen, and 1 / beta^2 otherwise.
    """
    centred = g - mean
    out = s * centred
    change = out
    if GEN:
        out = out * scale
        if WANT:
            change = out * p
    elif WANT:
        change = centred * change_by_alpha(p, s, beta, scale, KIND)
    return out, change


@triton.jit
def _held(
    program, p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d,
    KIND: tl.constexpr, TENSOR: tl.constexpr, WANT: tl.constexpr, GEN: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    rows = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    beta, scale, mine = _beta_and_scale(a_ptr, value, rows, rows < n, KIND, TENSOR, GEN)
    columns = (tl.arange(0, DEEP) * WIDE)[:, None, None] + tl.arange(0, WIDE)[None, None, :]
    offsets = (rows * d)[None, :, None] + columns
    inside = (columns < d) & mine[None, :, None]
    p = tl.load(p_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    s = _weights(p, beta[None, :, None], KIND)
    # a gradient of inf or NaN off the support stays there
    against, total = row_sums(tl.where(s == 0.0, 0.0, s * g), s, False)
    mean = _mean(against, total, p_ptr, rows, d, mine)
    g = tl.where(s == 0.0, 0.0, g)
    out, change = _apply(
        p, s, g, mean[None, :, None], beta[None, :, None], scale[None, :, None], KIND, WANT, GEN
    )
    tl.store(out_ptr + offsets, rounded(out, out_ptr.dtype.element_ty), mask=inside)
    if WANT:
        tl.store(change_ptr + rows, tl.sum(tl.sum(change, 0), 1), mask=mine)


@triton.jit
def _streamed(
    program, p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d,
    KIND: tl.constexpr, TENSOR: tl.constexpr, WANT: tl.constexpr, GEN: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One row a program; DEEP and ROWS are 1."""
    rows = program.to(tl.int64) + tl.arange(0, 1)
    beta, scale, mine = _beta_and_scale(a_ptr, value, rows, rows < n, KIND, TENSOR, GEN)
    columns = tl.arange(0, WIDE)[None, :]
    start = program.to(tl.int64) * d
    pieces = tl.where(tl.max(tl.where(mine, 1, 0), 0) > 0, tl.cdiv(d, WIDE), 0)
    againsts = tl.zeros([1, WIDE], tl.float32)
    totals = tl.zeros([1, WIDE], tl.float32)
    for k in range(pieces):
        here = columns + k * WIDE
        p = tl.load(p_ptr + start + here, mask=here < d, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + here, mask=here < d, other=0.0).to(tl.float32)
        s = _weights(p, beta[:, None], KIND)
        againsts += tl.where(s == 0.0, 0.0, s * g)
        totals += s
    against, total = sum2(againsts, totals, 1)
    mean = _mean(against, total, p_ptr, rows, d, mine)
    changes = tl.zeros([1, WIDE], tl.float32)
    for k in range(pieces):  # backwards: what was read last is still in the cache
        here = columns + (pieces - 1 - k) * WIDE
        p = tl.load(p_ptr + start + here, mask=here < d, other=0.0).to(tl.float32)
        g = tl.load(g_ptr + start + here, mask=here < d, other=0.0).to(tl.float32)
        s = _weights(p, beta[:, None], KIND)
        g = tl.where(s == 0.0, 0.0, g)
        out, change = _apply(p, s, g, mean[:, None], beta[:, None], scale[:, None], KIND, WANT, GEN)
        tl.store(out_ptr + start + here, rounded(out, out_ptr.dtype.element_ty), mask=here < d)
        if WANT:
            changes += change
    if WANT:
        tl.store(change_ptr + rows, tl.sum(changes, 1), mask=mine)


@quick
@triton.jit(do_not_specialize=["n", "scanners"])
def _kernel(
    p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d, scanners,
    KIND: tl.constexpr, TENSOR: tl.constexpr, WANT: tl.constexpr, GEN: tl.constexpr,
    SCANNED: tl.constexpr,
    DEEP: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """The first programs look for rows with an alpha outside [1, 2], as in the forward."""
    program = tl.program_id(0)
    if program < scanners:
        if SCANNED > 0:
            multiply_owned(
                p_ptr, g_ptr, a_ptr, out_ptr, change_ptr, program, scanners, n, d,
                WANT, SCANNED, ROWS, WIDE, False,
            )  # fmt: skip
    else:
        program -= scanners
        if STREAM:
            _streamed(
                program, p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d,
                KIND, TENSOR, WANT, GEN, DEEP, ROWS, WIDE,
            )  # fmt: skip
        else:
            _held(
                program, p_ptr, g_ptr, out_ptr, a_ptr, change_ptr, value, n, d,
                KIND, TENSOR, WANT, GEN, DEEP, ROWS, WIDE,
            )  # fmt: skip


@lru_cache(maxsize=1024)
def _plan(
    kind: int,
    d: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    parameter: torch.dtype | None,
    want: bool,
    generalised: bool,
    tile: Tile | None,
) -> Plan:
    tensor = parameter is not None
    tile = tile or backward_tile(d, dtypes[0].itemsize, tensor)
    steep = tensor and not generalised
    options = {
        "KIND": kind,
        "TENSOR": tensor,
        "WANT": want,
        "GEN": generalised,
        "SCANNED": SCAN if steep else 0,
        **tile.sizes,
    }
    sort = (*dtypes, parameter, want, d == 1, d % 16 == 0, d < 2**31)
    return Plan(tile.rows, steep, options, prepare(_kernel, sort, options))


def _launch(p, g, parameter, out, change, kind, generalised, tile=None):
    n, d = p.shape
    tensor = isinstance(parameter, Tensor)
    dtype = parameter.dtype if tensor else None
    dtypes = p.dtype, g.dtype, out.dtype
    plan = _plan(kind, d, dtypes, dtype, change is not None, generalised, tile)
    programs = -(-n // plan.rows)
    scanners = min(programs, PROGRAMS) if plan.steep else 0
    pointers = p.data_ptr() | g.data_ptr() | out.data_ptr()
    if tensor:
        pointers |= parameter.data_ptr()
        values, value = parameter, 0.0
    else:
        values, value = p, float(parameter)
    if change is None:
        change = p
    else:
        pointers |= change.data_ptr()
    arguments = (p, g, out, values, change, value, n, d, scanners)
    if pointers % 16 == 0 and n < 2**31 and plan.aligned is not None:
        plan.aligned((scanners + programs, 1, 1), *arguments)
    else:
        _kernel[(scanners + programs,)](*arguments, **plan.options)


def backward(
    p: Tensor,
    g: Tensor,
    alpha: float | Tensor,
    out: Tensor,
    change: Tensor | None,
    tile: Tile | None = None,
) -> None:
    """The gradient in the scores into ``out``, and in alpha, one value a row, into ``change``.

    A number alpha lies between 1 and 2; a tensor has one value a row, and of any size.
    """
    kind, _near = kind_of(alpha)
    value = alpha if isinstance(alpha, Tensor) else alpha - 1.0
    _launch(p, g, value, out, change, kind, False, tile)


def sparsegen_backward(
    p: Tensor, g: Tensor, lam: float | Tensor, out: Tensor, change: Tensor | None
) -> None:
    """The same for sparsegen and its lambda."""
    value = lam if isinstance(lam, Tensor) else 1.0 - lam
    _launch(p, g, value, out, change, SPARSEMAX.value, True)
