"""The weighted sum over live blocks, and the one that the backward needs.

Where the thresholds are not final, their last step is taken here, since it needs sums that are at
hand: p falls by the step times u, and the output by the step times the sum of values under u.

The gradient in the scores of a query is u (g - m), where u = p^(2 - alpha), g_j = <dO, v_j> and m
is the mean of g under u. That mean is <dO, w> with w the mean of the values under u: it is added up
here, beside the output, so that the backward needs no pass of its own for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.newton import ALWAYS, ENTMAX15, NEAR_ONE, NEVER, POWER, move, newton
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick

from .blocks import FOLDED, OF_KEYS, fold, load_block, tile_scores
from .rows import block_in_turn, rows_of_program
from .weights import ANY, STEEP, boost, ordinary, shares

_NARROW = tl.constexpr(16)  # columns that a product has at least


@triton.jit
def _sums(
    q, k_ptr, v_ptr, k_row, v_row, rows, a, b, beta, scale, list_ptr, count, inner, outer,
    offset, queries, keys, left, right, size, value_size, seen_ptr, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TRAIN: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """(values under p, values under u, mass of p, mass of u) over the listed blocks."""
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    factor = tl.where(beta <= 1.0, boost(q.dtype), 1.0)  # above alpha = 2 it is not bounded
    out = tl.zeros([ROWS, VALUES], tl.float32)
    mean = tl.zeros([ROWS, VALUES], tl.float32)
    mass = tl.zeros([ROWS, FOLDED], tl.float32)
    slope = tl.zeros([ROWS, _NARROW if ROUGH else FOLDED], tl.float32)
    ones = tl.full([COLUMNS, _NARROW], 1.0, q.dtype)
    # with stages, a loop that branches between its products makes all products of a kernel wait
    STAGES: tl.constexpr = 1 if KIND == ANY else None
    for index in tl.range(count, num_stages=STAGES):
        block = tl.load(list_ptr + index).to(tl.int32)
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        k = load_block(k_ptr, block, k_row, keys, size, COLUMNS, WHOLE, SIZE, EVEN)
        v = load_block(v_ptr, block, v_row, keys, value_size, COLUMNS, WHOLE, VALUES, EVEN)
        s = tile_scores(
            product(q, tl.trans(k)), scale, block, inner, outer, rows[:, None], columns[None, :],
            offset, queries, keys, left, right, seen_ptr, seen_row, seen_column, CAUSAL, MASK,
            CAUSAL or not EVEN or MASK == OF_KEYS,
        )  # fmt: skip
        p, u = shares(tl.fma(s, a, b[:, None]), beta, gamma, KIND, NEAR, ROUGH)
        out += product((p * boost(v.dtype)).to(v.dtype), v)
        mass += fold(p, ROWS, COLUMNS)
        if TRAIN:
            # over what the product takes: where one key has almost all weight, gradients are small
            # differences to this mean, and weights that are rounded only above would drown them
            taken = (u * factor).to(v.dtype)
            mean += product(taken, v)
            if ROUGH:  # a product, too: back to float32 is as slow as a logarithm
                slope += product(taken, ones)
            else:
                slope += fold(taken, ROWS, COLUMNS)
    out, shrink = out * (1.0 / boost(q.dtype)), 1.0 / factor
    mass_of_u = tl.max(slope, 1) if ROUGH else tl.sum(slope, 1)
    return out, mean * shrink, tl.sum(mass, 1), mass_of_u * shrink


@triton.jit
def finish(out, mean, mass, slope, x, beta, KIND: tl.constexpr, NEAR: tl.constexpr):
    """Values under p, its mass, and x, after one more step; of almost nothing as a rule."""
    one = tl.zeros_like(x) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    surplus, step = newton(mass, slope, one * beta, one * gamma, one, KIND, NEAR)
    step = tl.where((surplus > 0.0) & (surplus < 0.1), step, 0.0)
    fall = step
    if KIND == ENTMAX15:
        fall = 2.0 * step
    return out - fall[:, None] * mean, mass - fall * slope, move(x, step, one * beta, KIND, NEAR)


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def output_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    chosen_counts_ptr, out_ptr, mean_ptr, slope_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    TRAIN: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """Context, and w if TRAIN, of one block of queries.

    If LISTED, those of blocks that have lists of keys have been written by :mod:`.listed_output`.
    """
    place, item_head = block_in_turn(row_blocks)
    where, counts, numbers, reading, whole = rows_of_program(
        place, item_head, 0, q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr,
        scale, value, heads, group, queries, keys, size, row_blocks, offset, left, right,
        q_item, q_head, q_row, k_item, k_head, v_item, v_head, seen_item, seen_head,
        KIND, NEAR, TENSOR, ROUGH, CAUSAL, MASK, LENGTHS, PACKED, BY_ROWS,
        ROWS, COLUMNS, WHOLE, SIZE, ROWS,
    )  # fmt: skip
    rows, row, first, step, line_of_map = where
    queries, keys, offset = counts
    beta, a, b, x, fill = numbers
    q, k_here, v_here, seen_here = reading
    inner, outer = whole
    list_here, count = list_ptr + line_of_map * key_blocks, tl.load(count_ptr + line_of_map)
    ours = rows < queries
    if LISTED:
        left_to_us = tl.load(chosen_counts_ptr + line_of_map * ROWS) < 0
        count = tl.where(left_to_us, count, 0)
        ours = rows < tl.where(left_to_us, queries, 0)
    arguments = (
        q, k_here, v_here, k_row, v_row, rows, a, b, beta, scale, list_here, count,
        inner, outer, offset, queries, keys, left, right, size, value_size,
        seen_here, seen_row, seen_column,
    )  # fmt: skip
    if KIND == ANY:
        if ordinary(beta, ROUGH):
            out, mean, mass, slope = _sums(
                *arguments, POWER, NEVER, TRAIN, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
        else:
            out, mean, mass, slope = _sums(
                *arguments, ANY, NEVER, TRAIN, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
    else:
        out = tl.zeros([ROWS, VALUES], tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
        mean, slope = out, mass
        # A loop with products must not stand alone: if it is not within a branch, the assembler
        # may have each of them wait for the one before (its message C7515).
        if count > 0:
            out, mean, mass, slope = _sums(
                *arguments, KIND, NEAR, TRAIN, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
    if TRAIN and KIND == ANY:
        if beta < NEAR_ONE:
            out, mass, x = finish(out, mean, mass, slope, x, beta, POWER, ALWAYS)
        elif beta <= 1.0:
            out, mass, x = finish(out, mean, mass, slope, x, beta, POWER, NEVER)
    elif TRAIN and KIND != STEEP:
        out, mass, x = finish(out, mean, mass, slope, x, beta, KIND, NEAR)
    if TENSOR:
        fill += tl.where((beta >= 0.0) & (beta < 1e30), 0.0, float("nan"))
    parts = tl.arange(0, VALUES)
    inside = ours[:, None] & (parts < value_size)[None, :]
    places = (first + rows * step)[:, None] * value_size + parts[None, :]
    out = out / tl.where(mass > 0.0, mass, 1.0)[:, None] + fill[:, None]
    tl.store(out_ptr + places, rounded(out, out_ptr.dtype.element_ty), mask=inside)
    if TRAIN:
        mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
        tl.store(mean_ptr + places, mean, mask=inside)
        tl.store(x_ptr + row, x, mask=ours)
    if TRAIN and ROUGH and KIND == ANY:
        tl.store(slope_ptr + row, slope, mask=ours)
