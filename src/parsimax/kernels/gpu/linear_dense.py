"""Gradients of a linear layer where supports are large: products, a block of words at a time.

The thresholds of all rows are known, so a block's logits are computed once more for all rows and
become gradients on the way out. Then the block's part of the weight's gradient is complete, and no
buffer of the weight's size is needed to add it up; the rows' gradient is added up in float32.

Every kernel first asks whether the lists of :mod:`.linear_support` are whole, and if so leaves at
once: who computes is decided on the device, without the host's knowing.

Gradients in logits are stored divided by the larger of the row's ``scale`` and ``own``, so that
those of a mean over many rows do not underflow in float16. What they were divided by, times what
comes from above, is the row's ``unit``, and ``scaled`` holds the rows times unit / unit_max.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import rounded
from .linear_solve import STEEP, read_beta, weights
from .linear_target import upstream
from .newton import any_near, relative
from .quick import quick


@triton.jit
def _field(records, field, n, tokens, mask):
    return tl.load(records + field * tokens + n, mask=mask, other=0.0)


@triton.jit
def _units(records, above, stride, divisor, n, tokens, mask, MEAN: tl.constexpr):
    scale = _field(records, 3, n, tokens, mask)
    own = _field(records, 4, n, tokens, mask)
    largest = tl.maximum(tl.abs(scale), tl.abs(own))
    factor = upstream(above, tl.where(mask, n, 0), stride, divisor, MEAN)
    return tl.where(largest == 0.0, 0.0, largest * factor)


@quick
@triton.jit
def scale_kernel(
    scaled, units, hidden, records, above, stride, divisor, total,
    tokens, size, capacity, programs,
    MEAN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The rows' units with the largest of them at the end, and the rows scaled by them."""
    tokens_here = tl.where(tl.load(total) > capacity, tokens, 0)
    largest = tl.zeros([BLOCK], tl.float32)
    for k in range(0, tokens_here, BLOCK):
        n = k + tl.arange(0, BLOCK)
        unit = _units(records, above, stride, divisor, n, tokens, n < tokens, MEAN)
        largest = tl.maximum(largest, tl.where(n < tokens, tl.abs(unit), 0.0))
    top = tl.max(largest, 0)
    if (tl.program_id(0) == 0) & (tokens_here > 0):
        tl.store(units + tokens, top)
    for tile in range(tl.program_id(0), tl.cdiv(tokens_here, ROWS), programs):
        n = tile * ROWS + tl.arange(0, ROWS)
        n_in = n < tokens
        unit = _units(records, above, stride, divisor, n, tokens, n_in, MEAN)
        tl.store(units + n, unit, mask=n_in)
        share = tl.where(unit == 0.0, 0.0, unit / top)[:, None]
        for k in range(0, size, COLUMNS):
            at = k + tl.arange(0, COLUMNS)
            place = n.to(tl.int64)[:, None] * size + at[None, :]
            mask = n_in[:, None] & (at < size)[None, :]
            h = tl.load(hidden + place, mask=mask, other=0.0).to(tl.float32)
            # a row that does not count may hold anything
            h = tl.where(share == 0.0, 0.0, h * share)
            tl.store(scaled + place, rounded(h, scaled.dtype.element_ty), mask=mask)


@triton.jit
def _tile(index, rows, columns, GROUP: tl.constexpr):
    """Position of a tile: groups of rows are gone through together, so that they stay in L2."""
    in_group = GROUP * columns
    first = index // in_group * GROUP
    height = tl.minimum(rows - first, GROUP)
    return first + (index % in_group) % height, (index % in_group) // height


@triton.jit
def _dot(a, b, acc, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    if UPCAST:  # the interpreter cannot multiply bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@quick
@triton.jit
def logits_kernel(
    out, hidden, weight, bias, alphas, beta, records, targets, total,
    tokens, words, size, first_word, block_words, capacity, programs,
    KIND: tl.constexpr, NEAR: tl.constexpr, ALPHAS: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Gradients in the logits of ``block_words`` words, divided by the row's unit."""
    down, across = tl.cdiv(tokens, ROWS), block_words // COLUMNS
    tiles = tl.where(tl.load(total) > capacity, down * across, 0)
    depth = tl.arange(0, DEPTH)
    for tile in range(tl.program_id(0), tiles, programs):
        i, j = _tile(tile, down, across, 8)
        n = i * ROWS + tl.arange(0, ROWS)
        local = j * COLUMNS + tl.arange(0, COLUMNS)
        c = first_word + local
        # rows and words beyond the last are computed from the last, and thrown away
        h_at = hidden + tl.minimum(n, tokens - 1).to(tl.int64)[:, None] * size + depth[None, :]
        w_at = weight + tl.minimum(c, words - 1).to(tl.int64)[None, :] * size + depth[:, None]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, size, DEPTH):
            if EVEN:
                h = tl.load(h_at)
                w = tl.load(w_at)
            else:
                h = tl.load(h_at, mask=depth[None, :] < size - k, other=0.0)
                w = tl.load(w_at, mask=depth[:, None] < size - k, other=0.0)
            acc = _dot(h, w, acc, PRECISION, UPCAST)
            h_at += DEPTH
            w_at += DEPTH
        n_in, c_in = n < tokens, c < words
        if HAS_BIAS:
            acc += tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32)[None, :]
        betas = tl.zeros([ROWS], tl.float32) + read_beta(alphas, beta, n, n_in, ALPHAS)
        betas = tl.where((betas >= 0.0) & (betas < float("inf")), betas, 0.5)
        gammas = 1.0 / tl.maximum(betas, 1e-30)
        e = tl.zeros([ROWS], tl.float32)
        low = e
        bar = e
        if KIND >= STEEP:
            e = _field(records, 6, n, tokens, n_in)
            low = _field(records, 7, n, tokens, n_in)
            bar = _field(records, 8, n, tokens, n_in)
        q = weights(
            relative(acc, _field(records, 0, n, tokens, n_in)[:, None], KIND),
            _field(records, 1, n, tokens, n_in)[:, None],
            e[:, None], low[:, None], bar[:, None], betas[:, None], gammas[:, None],
            any_near(betas, NEAR), KIND, NEAR,
        )  # fmt: skip
        # a row without a unit gets no gradient, whatever it holds
        scale = _field(records, 3, n, tokens, n_in)
        own = _field(records, 4, n, tokens, n_in)
        unit = tl.maximum(tl.abs(scale), tl.abs(own))
        factor = tl.where(unit == 0.0, 0.0, 1.0 / unit)
        scale *= factor * _field(records, 2, n, tokens, n_in)
        target = tl.load(targets + n, mask=n_in, other=-1)
        g = scale[:, None] * q
        g -= tl.where(target[:, None] == c[None, :], (own * factor)[:, None], 0.0)
        g = tl.where((unit == 0.0)[:, None] | (c_in == 0)[None, :], 0.0, g)
        place = n.to(tl.int64)[:, None] * block_words + local[None, :]
        tl.store(out + place, rounded(g, out.dtype.element_ty), mask=n_in[:, None])


@quick
@triton.jit
def weight_product_kernel(
    out, out_bias, g, scaled, units, class_weight, shared, shared_bias, total,
    tokens, words, size, first_word, block_words, capacity, programs,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTED: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The block's rows of the weight's gradient, and of the bias's."""
    down = block_words // ROWS
    across = tl.cdiv(size, COLUMNS) if WEIGHT else 1
    tiles = tl.where(tl.load(total) > capacity, down * across, 0)
    depth = tl.arange(0, DEPTH)
    g_step, h_step = DEPTH * block_words, DEPTH * size
    for tile in range(tl.program_id(0), tiles, programs):
        i, j = _tile(tile, down, across, 8)
        local = i * ROWS + tl.arange(0, ROWS)
        c = first_word + local
        c_in = c < words
        d = j * COLUMNS + tl.arange(0, COLUMNS)
        g_at = g + depth.to(tl.int64)[:, None] * block_words + local[None, :]
        h_at = scaled + depth.to(tl.int64)[:, None] * size + d[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        acc_bias = tl.zeros([ROWS], tl.float32)
        for k in range(0, tokens, DEPTH):
            n_in = depth < tokens - k
            if EVEN:
                a = tl.load(g_at)
            else:
                a = tl.load(g_at, mask=n_in[:, None], other=0.0)
            if WEIGHT:
                if EVEN:
                    h = tl.load(h_at)
                else:
                    h = tl.load(h_at, mask=n_in[:, None] & (d < size)[None, :], other=0.0)
                acc = _dot(tl.trans(a), h, acc, PRECISION, UPCAST)
                h_at += h_step
            if BIAS:
                unit = tl.load(units + k + depth, mask=n_in, other=0.0)
                acc_bias += tl.sum(a.to(tl.float32) * unit[:, None], 0)
            g_at += g_step
        w = tl.full([ROWS], 1.0, tl.float32)
        if WEIGHTED:
            w = tl.load(class_weight + c, mask=c_in, other=0.0).to(tl.float32)
        if WEIGHT:
            acc *= tl.load(units + tokens)
            if SMOOTH:
                acc -= w[:, None] * tl.load(shared + d, mask=d < size, other=0.0)[None, :]
            place = c.to(tl.int64)[:, None] * size + d[None, :]
            mask = c_in[:, None] & (d < size)[None, :]
            tl.store(out + place, rounded(acc, out.dtype.element_ty), mask=mask)
        if BIAS:
            if SMOOTH:
                acc_bias -= w * tl.load(shared_bias)
            mine = c < tl.where(j == 0, words, 0)
            tl.store(out_bias + c, rounded(acc_bias, out_bias.dtype.element_ty), mask=mine)


@quick
@triton.jit
def hidden_product_kernel(
    out, sums, g, weight, units, eaches, shared, total,
    tokens, words, size, first_word, block_words, capacity, programs,
    FIRST: tl.constexpr, LAST: tl.constexpr, SMOOTH: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Add the block's part of the rows' gradient to ``sums``; the last block's goes to ``out``."""
    down, across = tl.cdiv(tokens, ROWS), tl.cdiv(size, COLUMNS)
    tiles = tl.where(tl.load(total) > capacity, down * across, 0)
    depth = tl.arange(0, DEPTH)
    w_step = DEPTH * size
    for tile in range(tl.program_id(0), tiles, programs):
        i, j = _tile(tile, down, across, 8)
        n = i * ROWS + tl.arange(0, ROWS)
        d = j * COLUMNS + tl.arange(0, COLUMNS)
        n_in = n < tokens
        place = n.to(tl.int64)[:, None] * size + d[None, :]
        mask = n_in[:, None] & (d < size)[None, :]
        g_at = g + tl.minimum(n, tokens - 1).to(tl.int64)[:, None] * block_words + depth[None, :]
        w_at = weight + (first_word + depth).to(tl.int64)[:, None] * size + d[None, :]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        if not FIRST:
            acc = tl.load(sums + place, mask=mask, other=0.0)
        for k in range(0, block_words, DEPTH):
            a = tl.load(g_at)
            if EVEN:
                w = tl.load(w_at)
            else:  # beyond the last word a is 0
                known = (depth[:, None] < words - first_word - k) & (d < size)[None, :]
                w = tl.load(w_at, mask=known, other=0.0)
            acc = _dot(a, w, acc, PRECISION, UPCAST)
            g_at += DEPTH
            w_at += w_step
        if LAST:
            acc *= tl.load(units + n, mask=n_in, other=0.0)[:, None]
            if SMOOTH:
                each = tl.load(eaches + n, mask=n_in, other=0.0)
                common = tl.load(shared + d, mask=d < size, other=0.0)
                acc -= tl.where(each[:, None] == 0.0, 0.0, each[:, None] * common[None, :])
            tl.store(out + place, rounded(acc, out.dtype.element_ty), mask=mask)
        else:
            tl.store(sums + place, acc, mask=mask)
