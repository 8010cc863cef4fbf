"""Gradients of a linear layer from lists of supports: sums of a few rows of W, and of h.

An entry holds the gradient in one logit but for what comes from above, one factor for all rows or
one a row. The part of label smoothing is of rank one and arrives as two vectors. All sums are
float32, in an order that the data fixes, and every element of the results is written once.

Where the lists are not whole, ``total`` says so and nothing is done here: the kernels of
:mod:`.linear_dense` write the results instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import rounded
from .linear_target import upstream
from .quick import quick


@quick
@triton.jit
def hidden_kernel(
    out, weight, keys, grads, spans, total, above, stride, divisor, eaches, shared,
    tokens, size, capacity,
    MEAN: tl.constexpr, SMOOTH: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row's sum over its words: sum_c g_c W_c - each shared."""
    n = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    whole = tl.load(total) <= capacity
    begin = tl.load(spans + n)
    end = begin + tl.where(whole, tl.load(spans + tokens + n), 0)
    factor = upstream(above, n, stride, divisor, MEAN)
    acc = tl.zeros([BLOCK], tl.float32)
    for k in range(begin, end, ENTRIES):
        entry = k + tl.arange(0, ENTRIES)
        known = entry < end
        word = tl.load(keys + entry, mask=known, other=0) // tokens
        g = tl.load(grads + entry, mask=known, other=0.0)
        place = word.to(tl.int64)[:, None] * size + at[None, :]
        w = tl.load(weight + place, mask=known[:, None] & inside[None, :], other=0.0)
        acc += tl.sum(g[:, None] * w.to(tl.float32), 0)
    acc *= factor
    if SMOOTH:
        each = tl.load(eaches + n)
        acc -= tl.where(each == 0.0, 0.0, each * tl.load(shared + at, mask=inside, other=0.0))
    place = n.to(tl.int64) * size + at
    mask = at < tl.where(whole, size, 0)
    tl.store(out + place, rounded(acc, out.dtype.element_ty), mask=mask)


@quick
@triton.jit
def weight_kernel(
    out, out_bias, hidden, keys, order, grads, edges, total, above, stride, divisor,
    class_weight, shared, shared_bias, tokens, size, capacity,
    MEAN: tl.constexpr, EACH: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTED: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One word's sum over the rows that have it: sum_n g_n h_n - w shared.

    ``keys`` are sorted, so a word's entries lie between two of the ``edges``, by row. No word has
    more than one entry a row that is not 0, so no program takes longer than a column of a dense
    product. ``EACH`` row may have its own factor from above.
    """
    c = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    begin = tl.load(edges + c)
    end = tl.load(edges + c + 1)
    whole = tl.load(total) <= capacity
    end = tl.where(whole, end, begin)
    acc = tl.zeros([BLOCK], tl.float32)
    acc_bias = tl.zeros([ENTRIES], tl.float32)
    for k in range(begin, end, ENTRIES):
        entry = k + tl.arange(0, ENTRIES)
        known = entry < end
        n = tl.load(keys + entry, mask=known, other=0) % tokens
        g = tl.load(grads + tl.load(order + entry, mask=known, other=0), mask=known, other=0.0)
        if EACH:
            g *= upstream(above, n, stride, divisor, MEAN)
        if WEIGHT:
            place = n.to(tl.int64)[:, None] * size + at[None, :]
            h = tl.load(hidden + place, mask=known[:, None] & inside[None, :], other=0.0)
            acc += tl.sum(g[:, None] * h.to(tl.float32), 0)
        acc_bias += g
    factor = 1.0
    if not EACH:
        factor = upstream(above, 0, stride, divisor, MEAN)
        acc *= factor
    w = 1.0
    if WEIGHTED:
        w = tl.load(class_weight + c).to(tl.float32)
    if WEIGHT:
        if SMOOTH:
            acc -= w * tl.load(shared + at, mask=inside, other=0.0)
        place = c.to(tl.int64) * size + at
        mask = at < tl.where(whole, size, 0)
        tl.store(out + place, rounded(acc, out.dtype.element_ty), mask=mask)
    if BIAS:
        result = factor * tl.sum(acc_bias, 0)
        if SMOOTH:
            result -= w * tl.load(shared_bias)
        if (tl.program_id(1) == 0) & whole:
            tl.store(out_bias + c, rounded(result, out_bias.dtype.element_ty))


@quick
@triton.jit
def weighted_sum_kernel(
    out, factors, rows, count, size,
    FACTORS: tl.constexpr, SPAN: tl.constexpr, ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum_i factor_i row_i over SPAN rows, one line of ``out`` a program."""
    part = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    acc = tl.zeros([BLOCK], tl.float32)
    begin = part * SPAN
    for k in range(begin, tl.minimum(begin + SPAN, count), ENTRIES):
        i = k + tl.arange(0, ENTRIES)
        known = i < count
        place = i.to(tl.int64)[:, None] * size + at[None, :]
        if FACTORS:
            f = tl.load(factors + i, mask=known, other=0.0).to(tl.float32)
            used = known & (f != 0.0)  # a row that does not count may hold anything
            x = tl.load(rows + place, mask=used[:, None] & inside[None, :], other=0.0)
            acc += tl.sum(f[:, None] * x.to(tl.float32), 0)
        else:
            x = tl.load(rows + place, mask=known[:, None] & inside[None, :], other=0.0)
            acc += tl.sum(x.to(tl.float32), 0)
    tl.store(out + part.to(tl.int64) * size + at, acc, mask=inside)
