"""The weighted sum of values, and the one that the backward needs, from lists of keys.

As in :mod:`.output`, but values are read one by one; see :mod:`.listed`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.quick import quick

from .blocks import block_of_slot, unit, wide
from .listed import FOR_BACKWARD, block_of_turn, get, load_each, next_turn, of_last, turns
from .output import finish
from .rows import rows_of_program
from .weights import line, shares


@triton.jit
def _next(scores_ptr, chosen_ptr, place, ROWS: tl.constexpr):
    """Score and key of every query at one place of its list, whatever lies there."""
    score = get(scores_ptr + place * ROWS).to(tl.float32, bitcast=True)
    return score, get(chosen_ptr + place * ROWS)


@triton.jit
def _weighted(
    score, key, inside, a, b, beta, gamma, v_ptr, v_row, parts, value_size,
    KIND: tl.constexpr, NEAR: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(p, u, value) of one key for every query; 0 where there is none."""
    p, u = shares(tl.where(inside, tl.fma(score, a, b), 0.0), beta, gamma, KIND, NEAR)
    return p, u, load_each(v_ptr, key, v_row, inside, parts, value_size, WHOLE)


@quick
@triton.jit(do_not_specialize=["queries", "keys", "tile", "work_at"])
def listed_output_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr,
    scores_ptr, chosen_ptr, counts_ptr, work_ptr, out_ptr, mean_ptr,
    scale, value, heads, group, queries, keys, size, value_size, tile, tall_blocks, row_blocks,
    work_at,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, CHOOSE: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, GRAINS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    PART: tl.constexpr, BUNCH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """PART of the queries of a block that has lists, and of the next, a BUNCH of them at a time.

    Slots are those of the thresholds.
    """
    PARTS: tl.constexpr = ROWS // PART
    TRAIN: tl.constexpr = CHOOSE == FOR_BACKWARD
    work_ptr += work_at
    turn, end = turns(work_ptr, PARTS)
    while turn < end:
        slot, part = block_of_turn(work_ptr, turn, PARTS)
        place, item_head = block_of_slot(slot, tile, tall_blocks, GRAINS)
        counts_here = counts_ptr + (wide(item_head) * row_blocks + place) * ROWS
        for bunch in range(part * (PART // BUNCH), (part + 1) * (PART // BUNCH)):
            where, counts, numbers, reading, _whole = rows_of_program(
                place, item_head, bunch, q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr,
                x_ptr, scale, value, heads, group, queries, keys, size, row_blocks,
                offset, left, right,
                q_item, q_head, q_row, k_item, k_head, v_item, v_head, seen_item, seen_head,
                KIND, NEAR, TENSOR, False, CAUSAL, MASK, LENGTHS, PACKED, BY_ROWS,
                ROWS, COLUMNS, WHOLE, SIZE, BUNCH,
            )  # fmt: skip
            rows, row, first, step, line_of_map = where
            beta, _a, _b, _x, _fill = numbers
            of_bunch = bunch * BUNCH + tl.arange(0, BUNCH)
            longest = tl.max(tl.load(counts_here + of_bunch).to(tl.int32), 0)
            # each thread reads what it needs: an exchange between them for every key takes longer
            row = of_last(row, rows, counts[0])
            top = get(top_ptr + row).to(tl.float32, bitcast=True)
            x = get(x_ptr + row).to(tl.float32, bitcast=True)
            a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
            line_of_keys = line_of_map if TRAIN else wide(slot)
            parts = tl.arange(0, VALUES)
            count = get(counts_here + of_bunch)
            lists = (
                scores_ptr + wide(slot) * (MOST * ROWS) + of_bunch,
                chosen_ptr + line_of_keys * (MOST * ROWS) + of_bunch,
            )  # fmt: skip
            gamma = 1.0 / tl.maximum(beta, 1e-30)
            arguments = (a, b, beta, gamma, reading[2], v_row, parts, value_size)
            out = tl.zeros([BUNCH, VALUES], tl.float32)
            mean = tl.zeros([BUNCH, VALUES], tl.float32)
            mass = tl.zeros([BUNCH], tl.float32)
            slope = tl.zeros([BUNCH], tl.float32)
            score, key = _next(*lists, 0, ROWS)
            next_score, next_key = _next(*lists, 1, ROWS)
            for index in range(0, longest, 2):  # two, so that one need not wait for the other
                p, u, v = _weighted(score, key, index < count, *arguments, KIND, NEAR, WHOLE)
                next_p, next_u, next_v = _weighted(
                    next_score, next_key, index + 1 < count, *arguments, KIND, NEAR, WHOLE
                )
                ahead = tl.minimum(index + 2, MOST - 2)
                score, key = _next(*lists, ahead, ROWS)
                next_score, next_key = _next(*lists, ahead + 1, ROWS)
                out = tl.fma(next_p[:, None], next_v, tl.fma(p[:, None], v, out))
                mass += p + next_p
                if TRAIN:
                    mean = tl.fma(next_u[:, None], next_v, tl.fma(u[:, None], v, mean))
                    slope += u + next_u
            if TRAIN:
                out, mass, x = finish(out, mean, mass, slope, x, beta, KIND, NEAR)
                tl.store(x_ptr + row, x, mask=rows < counts[0])
            inside = (rows < counts[0])[:, None] & (parts < value_size)[None, :]
            places = (first + rows * step)[:, None] * value_size + parts[None, :]
            out = out / tl.where(mass > 0.0, mass, 1.0)[:, None]
            tl.store(out_ptr + places, rounded(out, out_ptr.dtype.element_ty), mask=inside)
            if TRAIN:
                mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
                tl.store(mean_ptr + places, mean, mask=inside)
        turn = next_turn(work_ptr)
