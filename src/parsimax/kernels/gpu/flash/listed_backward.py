"""The gradient of queries, and what they add to that of alpha, from lists of keys.

As in :mod:`.listed`, keys and values are read one by one, and scores are found anew from them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.entmax_backward import change_by_alpha
from parsimax.kernels.gpu.newton import POWER
from parsimax.kernels.gpu.quick import quick

from .blocks import load_rows, wide
from .listed import block_of_turn, get, load_each, next_turn, of_last, turns
from .powers import power_and_change
from .rows import rows_of_program
from .weights import exponent_of_u, shares


@triton.jit
def _key_and_value(
    key, inside, k_ptr, v_ptr, k_row, v_row, parts, size, value_size,
    WHOLE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Of one key for each query, 0 where there is none."""
    key = tl.where(inside, key, 0)  # the loads do not need it; it saves two registers
    k = load_each(k_ptr, key, k_row, inside, parts, size, WHOLE)
    return k, load_each(v_ptr, key, v_row, inside, tl.arange(0, VALUES), value_size, WHOLE)


@triton.jit
def _score(
    k, v, inside, q, g, a, b, against, beta,
    KIND: tl.constexpr, NEAR: tl.constexpr, WANT: tl.constexpr, ROUGH: tl.constexpr,
):  # fmt: skip
    """(u, gradient of the score, how alpha changes the weight, how the loss changes with that).

    Up to a factor, if QUICK.
    """
    QUICK: tl.constexpr = WANT and ROUGH and KIND == POWER
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    above = tl.where(inside, tl.fma(tl.sum(q * k, 1), a, b), 0.0)
    centred = tl.sum(g * v, 1) - against
    change = above
    if QUICK:
        u, change = power_and_change(above, exponent_of_u(gamma))
        change *= u
    else:
        p, u = shares(above, beta, gamma, KIND, NEAR, ROUGH)
        if WANT:
            inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
            change = change_by_alpha(p, u, beta, inverse_square, POWER)
    return u, u * centred, change, centred


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def listed_query_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr,
    chosen_ptr, counts_ptr, work_ptr, g_ptr, gq_ptr, line_ptr, change_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    WANT: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    PART: tl.constexpr, BUNCH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """PART of the queries of a block that has lists, and of the next, a BUNCH of them at a time."""
    PARTS: tl.constexpr = ROWS // PART
    QUICK: tl.constexpr = WANT and ROUGH and KIND == POWER
    parts = tl.arange(0, SIZE)
    turn, end = turns(work_ptr, PARTS)
    while turn < end:
        number, part = block_of_turn(work_ptr, turn, PARTS)
        place, item_head, line_of_map = number % row_blocks, number // row_blocks, wide(number)
        counts_here = counts_ptr + line_of_map * ROWS
        change_of_part = 0.0
        for bunch in range(part * (PART // BUNCH), (part + 1) * (PART // BUNCH)):
            where, counts, numbers, reading, _whole = rows_of_program(
                place, item_head, bunch, q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr,
                x_ptr, scale, value, heads, group, queries, keys, size, row_blocks,
                offset, left, right,
                q_item, q_head, q_row, k_item, k_head, v_item, v_head, seen_item, seen_head,
                KIND, NEAR, TENSOR, ROUGH, CAUSAL, MASK, LENGTHS, PACKED, BY_ROWS,
                ROWS, COLUMNS, WHOLE, SIZE, BUNCH,
            )  # fmt: skip
            rows, row, first, step, _line_of_map = where
            beta, a, _b, _x, _fill = numbers
            q, k_here, v_here, _seen = reading
            within = bunch * BUNCH + tl.arange(0, BUNCH)
            longest = tl.max(tl.load(counts_here + within).to(tl.int32), 0)
            count = get(counts_here + within)
            row = of_last(row, rows, counts[0])
            b = get(line_ptr + row * 2).to(tl.float32, bitcast=True)
            against = get(line_ptr + row * 2 + 1).to(tl.float32, bitcast=True)
            g = load_rows(
                g_ptr + first * value_size, rows, step * value_size, counts[0], value_size,
                WHOLE, VALUES,
            )  # fmt: skip
            q, g = q.to(tl.float32), g.to(tl.float32)
            gq = tl.zeros([BUNCH, SIZE], tl.float32)
            changes = tl.zeros([BUNCH], tl.float32)
            change_sum, score_sum, slope = changes, changes, changes
            here = chosen_ptr + line_of_map * (MOST * ROWS) + within
            reading = (k_here, v_here, k_row, v_row, parts, size, value_size)
            sums = (q, g, a, b, against, beta)
            key, other_key = get(here), get(here + ROWS)
            for index in range(0, longest, 2):  # two, so that one need not wait for the other
                inside, other_inside = index < count, index + 1 < count
                k, v = _key_and_value(key, inside, *reading, WHOLE, VALUES)
                other_k, other_v = _key_and_value(other_key, other_inside, *reading, WHOLE, VALUES)
                ahead = here + tl.minimum(index + 2, MOST - 2) * ROWS
                key, other_key = get(ahead), get(ahead + ROWS)
                u, gs, change, centred = _score(k, v, inside, *sums, KIND, NEAR, WANT, ROUGH)
                other_u, other_gs, other_change, other_centred = _score(
                    other_k, other_v, other_inside, *sums, KIND, NEAR, WANT, ROUGH
                )
                gq = tl.fma(other_gs[:, None], other_k, tl.fma(gs[:, None], k, gq))
                if WANT:
                    changes += centred * change + other_centred * other_change
                    change_sum += change + other_change
                    score_sum += gs + other_gs
                    slope += u + other_u
            tl.store(
                gq_ptr + (first + rows * step)[:, None] * size + parts[None, :],
                rounded(gq * scale, gq_ptr.dtype.element_ty),
                mask=(rows < counts[0])[:, None] & (parts < size)[None, :],
            )
            if WANT:
                if ROUGH:  # see _query_sums
                    changes -= score_sum / tl.where(slope > 0.0, slope, 1.0) * change_sum
                    if QUICK:
                        changes /= -beta * beta
                change_of_part += tl.sum(changes, 0)
        if WANT:
            tl.store(change_ptr + line_of_map * PARTS + part, change_of_part)
        turn = next_turn(work_ptr)
