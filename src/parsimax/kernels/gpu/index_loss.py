"""The loss of class indices: one launch to solve the rows, one to add up, one for the gradient.

Whatever is done with targets, class weights, smoothing and the mean's divisor is done inside these,
since a dozen small launches take the host longer than the GPU takes for the rows. The factors of a
row's terms are those of :mod:`.linear_target`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import conjugate, entmax_loss, on_device_of, result_like, row_matrix, row_parameters
from .approx import rounded
from .linear_target import read_target, row_factors
from .quick import quick
from .sizes import pieces

_BLOCK = 2048  # rows that a program adds up at a time,
_SPAN = 16384  # and in all; if there are more, a second kernel adds up what the programs have found


class Settings(NamedTuple):
    """What is no tensor."""

    ignore_index: int
    smoothing: float
    reduction: str
    dtype: torch.dtype  # of the loss


class Solved(NamedTuple):
    """The loss or losses, and what the backward needs beside the arguments."""

    loss: Tensor
    p: Tensor
    divisor: Tensor  # of a mean
    class_total: Tensor  # the sum of the class weights first; with smoothing only


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def _store_total(out, divisor, total, weights, some, MEAN: tl.constexpr):
    """A mean over no rows is 0, and one over rows whose weights are all 0 is NaN, as in torch."""
    if MEAN:
        whole = tl.where(weights == 0.0, float("nan"), weights)
        whole = tl.where(some > 0, whole, 1.0)
        tl.store(divisor, whole)
        total = total / whole
    tl.store(out, rounded(total.to(tl.float32), out.dtype.element_ty))


@quick
@triton.jit(do_not_specialize=["n", "ignore", "programs"])
def _finish(
    out, divisor, parts, gap, lag, dense, class_total, targets, class_weight,
    n, classes, ignore, smoothing, programs,
    TOTAL: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    begin = program.to(tl.int64) * SPAN
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float64)
    weights = tl.zeros([BLOCK], tl.float64)
    some = tl.zeros([BLOCK], tl.int32)
    for first in range(begin, tl.minimum(begin + SPAN, n), BLOCK):
        at = first + lanes
        here = at < n
        target = tl.load(targets + at, mask=here, other=ignore)
        _index, weight, kept = read_target(target, class_weight, classes, ignore, WEIGHTED)
        _scale, own, each = row_factors(
            weight, kept, class_total, classes, smoothing, SMOOTH, WEIGHTED
        )
        rise = tl.load(gap + at, mask=here, other=0.0)
        term = tl.where(kept, rise + tl.load(lag + at, mask=here, other=0.0), 0.0)
        # 0 times infinity is 0
        value = tl.where((own == 0.0) & (tl.abs(term) == float("inf")), 0.0, own * term)
        if SMOOTH:
            every = tl.load(class_total + at, mask=here, other=0.0)
            shared = rise * every + tl.load(dense + at, mask=here, other=0.0)
            value += tl.where(kept, each * shared, 0.0)
        if TOTAL:
            sums += value
            weights += weight
            some = some | tl.where(kept, 1, 0)
        else:
            loss = rounded(value.to(tl.float32), out.dtype.element_ty)
            tl.store(out + at, loss, mask=here)
    if TOTAL:
        total = tl.sum(sums, 0)
        weights = tl.sum(weights, 0)
        some = tl.max(some, 0)
        if PARTS:
            tl.store(parts + program, total)
            tl.store(parts + programs + program, weights)
            tl.store(parts + 2 * programs + program, some.to(tl.float64))
        else:
            _store_total(out, divisor, total, weights, some, MEAN)


@quick
@triton.jit(do_not_specialize=["programs"])
def _add_parts(out, divisor, parts, programs, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float64)
    weights = tl.zeros([BLOCK], tl.float64)
    some = tl.zeros([BLOCK], tl.float64)
    for first in range(0, programs, BLOCK):
        at = first + lanes
        sums += tl.load(parts + at, mask=at < programs, other=0.0)
        weights += tl.load(parts + programs + at, mask=at < programs, other=0.0)
        some += tl.load(parts + 2 * programs + at, mask=at < programs, other=0.0)
    _store_total(out, divisor, tl.sum(sums, 0), tl.sum(weights, 0), tl.sum(some, 0), MEAN)


def solve(
    z: Tensor,
    alpha: float | Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    settings: Settings,
) -> Solved:
    """The loss of scores (n, classes), for an alpha of one value or of shape (n, 1) or (1, 1)."""
    rows = row_matrix(z)
    n, classes = rows.shape
    p, out = result_like(rows, z)
    new = rows.new_empty
    # an even number, so that each of the three begins at a multiple of 16
    gap, lag, top = new((3, n + n % 2), dtype=torch.float64).unbind(0)
    divisor = gap
    smooth, weighted = settings.smoothing > 0, class_weight is not None
    with on_device_of(z):
        entmax_loss(rows, row_parameters(alpha, z.shape), target, out, gap, lag, top)
        dense = class_total = gap
        if smooth:
            dense, class_total = new((2, n + n % 2), dtype=torch.float64).unbind(0)
            each = new(1).fill_(1.0).expand(classes) if class_weight is None else class_weight
            conjugate.dense_lag(rows, top, each.reshape(1, -1), dense, class_total)
        reduced, mean = settings.reduction != "none", settings.reduction == "mean"
        loss = new(() if reduced else n, dtype=settings.dtype)
        if mean:
            divisor = new((), dtype=torch.float64)
        span = _SPAN if reduced else _BLOCK
        programs = pieces(n, span)
        several = reduced and programs > 1
        parts = new(3 * programs, dtype=torch.float64) if several else gap
        _finish[(programs,)](
            loss, divisor, parts, gap, lag, dense, class_total, target,
            gap if class_weight is None else class_weight,
            n, classes, settings.ignore_index, settings.smoothing, programs,
            TOTAL=reduced, MEAN=mean, WEIGHTED=weighted, SMOOTH=smooth,
            PARTS=several, SPAN=span, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        if several:
            _add_parts[(1,)](loss, divisor, parts, programs, MEAN=mean, BLOCK=1024)
    return Solved(loss, p, divisor, class_total)


# --- backward -------------------------------------------------------------------------------------


@quick
@triton.jit(do_not_specialize=["n", "ignore"])
def _backward(
    p_ptr, out_ptr, targets, class_weight, class_total, grads, stride, divisor, factors,
    n, d, ignore, smoothing,
    MEAN: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, WANT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = rows < n
    target = tl.load(targets + rows, mask=here, other=ignore)
    index, weight, kept = read_target(target, class_weight, d, ignore, WEIGHTED)
    scale, own, each = row_factors(weight, kept, class_total, d, smoothing, SMOOTH, WEIGHTED)
    g = tl.load(grads + rows * stride, mask=here, other=0.0).to(tl.float64)
    if MEAN:
        g /= tl.load(divisor)
    g = tl.where(kept, g, 0.0)
    factor = g * scale
    if WANT:
        first = tl.zeros_like(rows) + tl.program_id(1) == 0
        tl.store(factors + rows, factor, mask=here & first)
    factor = factor.to(tl.float32)[:, None]
    inside = here[:, None] & (columns < d)[None, :]
    where = rows[:, None] * d + columns[None, :]
    # where the factor is 0, p is not read: an ignored NaN stays ignored
    p = tl.load(p_ptr + where, mask=inside & (factor != 0.0), other=0.0).to(tl.float32)
    out = factor * p
    target_part = (g * own).to(tl.float32)[:, None]
    out -= tl.where(columns[None, :] == index[:, None], target_part, 0.0)
    if SMOOTH:
        shared = (g * each).to(tl.float32)[:, None]
        if WEIGHTED:
            every = tl.load(class_weight + columns, mask=columns < d, other=0.0).to(tl.float32)
            shared = shared * every[None, :]
        out -= shared
    tl.store(out_ptr + where, rounded(out, out_ptr.dtype.element_ty), mask=inside)


def pull_back(
    solved: Solved,
    g: Tensor,
    alpha: float | Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    settings: Settings,
    want_alpha: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients in the scores, and in the alpha of each row, shape (n, 1) and float64."""
    p = solved.p
    n, d = p.shape
    gz = torch.empty_like(p)
    rows, columns = conjugate.tile_of(d)
    factors = p.new_empty(n, dtype=torch.float64) if want_alpha else None
    change = None
    with on_device_of(p):
        _backward[(pieces(n, rows), pieces(d, columns))](
            p, gz, target, p if class_weight is None else class_weight, solved.class_total,
            g, g.stride(0) if g.ndim > 0 and n > 1 else 0, solved.divisor,
            p if factors is None else factors,
            n, d, settings.ignore_index, settings.smoothing,
            MEAN=settings.reduction == "mean", WEIGHTED=class_weight is not None,
            SMOOTH=settings.smoothing > 0, WANT=want_alpha, ROWS=rows, COLUMNS=columns,
        )  # fmt: skip
        if factors is not None:
            change = p.new_empty((n, 1), dtype=torch.float64)
            conjugate.entmax_domega(p, row_parameters(alpha, p.shape), change, factors)
    return gz, change
