"""The gradient of queries, and what they add to that of alpha, from lists of keys.

As in :mod:`.listed`, keys and values are read one by one, and scores are found anew from them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.entmax_backward import change_by_alpha
from parsimax.kernels.gpu.newton import NEVER, POWER
from parsimax.kernels.gpu.quick import quick

from .blocks import load_rows
from .listed import MOST_CHOSEN, get, load_each
from .powers import power_and_change
from .rows import rows_of_program
from .weights import ANY, exponent_of_u, ordinary, shares


@triton.jit
def _sums(
    q, g, line_ptr, row, rows, queries, chosen_ptr, chosen_counts_ptr,
    k_ptr, v_ptr, k_row, v_row, a, beta, size, value_size,
    KIND: tl.constexpr, NEAR: tl.constexpr, WANT: tl.constexpr, ROUGH: tl.constexpr,
    ROWS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """(gradient of the queries but for the scale, that of alpha a row)."""
    inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    here = tl.arange(0, ROWS)
    longest = tl.max(tl.load(chosen_counts_ptr + here).to(tl.int32), 0)
    count = get(chosen_counts_ptr + here)
    last = row - tl.maximum(rows - queries + 1, 0)  # beyond that query, there are no keys
    b = get(line_ptr + last * 2).to(tl.float32, bitcast=True)
    against = get(line_ptr + last * 2 + 1).to(tl.float32, bitcast=True)
    q, g = q.to(tl.float32), g.to(tl.float32)
    gq = tl.zeros([ROWS, SIZE], tl.float32)
    changes = tl.zeros([ROWS], tl.float32)
    change_sum, score_sum, slope = changes, changes, changes
    QUICK: tl.constexpr = WANT and ROUGH and KIND == POWER
    for place in range(longest):
        inside = place < count
        key = tl.where(inside, get(chosen_ptr + place * ROWS + here), 0)
        k = load_each(k_ptr, key, k_row, inside, tl.arange(0, SIZE), size, WHOLE)
        v = load_each(v_ptr, key, v_row, inside, tl.arange(0, VALUES), value_size, WHOLE)
        above = tl.where(inside, tl.fma(tl.sum(q * k, 1), a, b), 0.0)
        if QUICK:
            u, change = power_and_change(above, exponent_of_u(gamma))
        else:
            p, u = shares(above, beta, gamma, KIND, NEAR, ROUGH)
        centred = tl.sum(g * v, 1) - against
        gs = u * centred
        gq = tl.fma(gs[:, None], k, gq)
        if WANT:
            if QUICK:
                changes += gs * change
                change_sum += u * change
            else:
                change = change_by_alpha(p, u, beta, inverse_square, POWER)
                changes += centred * change
                change_sum += change
            score_sum += gs
            slope += u
    if WANT and ROUGH:  # see _query_sums
        changes -= score_sum / tl.where(slope > 0.0, slope, 1.0) * change_sum
        if QUICK:
            changes *= -inverse_square
    return gq, changes


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def listed_query_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    chosen_ptr, chosen_counts_ptr, g_ptr, gq_ptr, line_ptr, change_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    WANT: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One block of queries, if it has lists."""
    where, counts, numbers, reading, _blocks = rows_of_program(
        q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
        scale, value, heads, group, queries, keys, size, row_blocks, key_blocks,
        offset, left, right, q_item, q_head, q_row, k_item, k_head, v_item, v_head,
        seen_item, seen_head,
        KIND, NEAR, TENSOR, ROUGH, CAUSAL, MASK, LENGTHS, PACKED, BY_ROWS,
        ROWS, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    rows, row, first, step, _item_head, line_of_map = where
    queries, keys, offset = counts
    beta, a, _b, _x, _fill = numbers
    q, k_here, v_here, _seen_here = reading
    counts_here = chosen_counts_ptr + line_of_map * ROWS
    if tl.load(counts_here) < 0:
        return
    g = load_rows(
        g_ptr + first * value_size, rows, step * value_size, queries, value_size, WHOLE, VALUES
    )
    arguments = (
        q, g, line_ptr, row, rows, queries,
        chosen_ptr + line_of_map * (MOST_CHOSEN * ROWS), counts_here,
        k_here, v_here, k_row, v_row, a, beta, size, value_size,
    )  # fmt: skip
    if KIND == ANY:
        if ordinary(beta, ROUGH):
            gq, changes = _sums(
                *arguments, POWER, NEVER, WANT, ROUGH, ROWS, WHOLE, SIZE, VALUES
            )  # fmt: skip
        else:
            gq, changes = _sums(*arguments, ANY, NEVER, WANT, ROUGH, ROWS, WHOLE, SIZE, VALUES)
    else:
        gq, changes = _sums(*arguments, KIND, NEAR, WANT, ROUGH, ROWS, WHOLE, SIZE, VALUES)
    parts = tl.arange(0, SIZE)
    tl.store(
        gq_ptr + (first + rows * step)[:, None] * size + parts[None, :],
        rounded(gq * scale, gq_ptr.dtype.element_ty),
        mask=(rows < queries)[:, None] & (parts < size)[None, :],
    )
    if WANT:
        tl.store(change_ptr + line_of_map, tl.sum(changes, 0))
