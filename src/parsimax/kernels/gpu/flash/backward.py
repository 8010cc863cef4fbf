"""Gradients over live blocks: of queries and alpha by blocks of queries, the rest by keys."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.entmax_backward import change_by_alpha
from parsimax.kernels.gpu.newton import NEVER, POWER
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick

from .blocks import (
    FOLDED,
    OF_KEYS,
    block_of_head,
    fold,
    load_block,
    load_rows,
    numbers_of,
    rows_of,
    tile_scores,
    unit,
    whole_blocks,
    wide,
)
from .listed import enlist
from .powers import power_and_change
from .rows import block_in_turn, rows_of_program
from .sequences import sequence
from .spans import span_of
from .weights import ANY, boost, exponent_of_u, line, ordinary, shares


@triton.jit
def _query_sums(
    q, g, against, slope, k_ptr, v_ptr, k_row, v_row, rows, a, b, beta, scale, list_ptr, count,
    inner, outer, offset, queries, keys, left, right, size, value_size,
    seen_ptr, seen_row, seen_column, gs_ptr, all_keys,
    KIND: tl.constexpr, NEAR: tl.constexpr, WANT: tl.constexpr, WANT_SCORES: tl.constexpr,
    ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """(gradient of the queries but for the scale, that of alpha a row)."""
    inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    gq = tl.zeros([ROWS, SIZE], tl.float32)
    changes = tl.zeros([ROWS, FOLDED], tl.float32)
    change_sum, score_sum = changes, changes
    QUICK: tl.constexpr = WANT and ROUGH and KIND == POWER
    for index in range(count):
        block = tl.load(list_ptr + index).to(tl.int32)
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        k = load_block(k_ptr, block, k_row, keys, size, COLUMNS, WHOLE, SIZE, EVEN)
        v = load_block(v_ptr, block, v_row, keys, value_size, COLUMNS, WHOLE, VALUES, EVEN)
        s = tile_scores(
            product(q, tl.trans(k)), scale, block, inner, outer, rows[:, None], columns[None, :],
            offset, queries, keys, left, right, seen_ptr, seen_row, seen_column, CAUSAL, MASK,
            CAUSAL or not EVEN or MASK == OF_KEYS,
        )  # fmt: skip
        above = tl.fma(s, a, b[:, None])
        if QUICK:
            u, change = power_and_change(above, exponent_of_u(gamma))
        else:
            p, u = shares(above, beta, gamma, KIND, NEAR, ROUGH)
        centred = product(g, tl.trans(v)) - against[:, None]
        gs = u * centred
        if WANT_SCORES:
            tl.store(
                gs_ptr + rows.to(tl.int64)[:, None] * all_keys + columns[None, :], gs,
                mask=(rows < queries)[:, None] & (columns < keys)[None, :],
            )  # fmt: skip
        gq += product(gs.to(k.dtype), k)
        if WANT:
            if QUICK:
                changes += fold(gs * change, ROWS, COLUMNS)
                change_sum += fold(u * change, ROWS, COLUMNS)
            else:
                change = change_by_alpha(p, u, beta, inverse_square, POWER)
                changes += fold(centred * change, ROWS, COLUMNS)
                change_sum += fold(change, ROWS, COLUMNS)
            score_sum += fold(gs, ROWS, COLUMNS)
    total = tl.sum(changes, 1)
    if WANT and ROUGH:
        # Gradients of scores sum to zero but for the rounding of w, which all terms of alpha's have
        # in common: it is taken out again, or that one number would have no digits left.
        total -= tl.sum(score_sum, 1) / tl.where(slope > 0.0, slope, 1.0) * tl.sum(change_sum, 1)
        if QUICK:
            total *= -inverse_square
    return gq, total


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def query_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    chosen_counts_ptr, work_ptr, g_ptr, mean_ptr, slope_ptr, gq_ptr, line_ptr, change_ptr, gs_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    WANT: tl.constexpr, WANT_SCORES: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr, LISTED_PARTS: tl.constexpr,
):  # fmt: skip
    """Also two numbers a query for other kernels: b of :func:`line`, and <dO, w>.

    If there are LISTED_PARTS, so many of each block that has lists of keys are left to
    :mod:`.listed_backward`.
    """
    all_keys = keys
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
    beta, a, b, _x, fill = numbers
    q, k_here, v_here, seen_here = reading
    inner, outer = whole
    list_here, count = list_ptr + line_of_map * key_blocks, tl.load(count_ptr + line_of_map)
    ours = rows < queries
    left_to_us = True
    if LISTED_PARTS > 0:
        left_to_us = tl.load(chosen_counts_ptr + line_of_map * ROWS) < 0
        count = tl.where(left_to_us, count, 0)
        ours = rows < tl.where(left_to_us, queries, 0)
    place_of_g, g_row = first * value_size, step * value_size
    g = load_rows(g_ptr + place_of_g, rows, g_row, queries, value_size, WHOLE, VALUES)
    mean = load_rows(mean_ptr + place_of_g, rows, g_row, queries, value_size, WHOLE, VALUES)
    against = tl.sum(g.to(tl.float32) * mean, 1)
    tl.store(
        line_ptr + row[:, None] * 2 + tl.arange(0, 2)[None, :], tl.join(b, against),
        mask=(rows < queries)[:, None],
    )  # fmt: skip
    slope = against  # the mass of u
    if WANT and ROUGH:
        slope = tl.load(slope_ptr + row, mask=ours, other=1.0)
    arguments = (
        q, g, against, slope, k_here, v_here, k_row, v_row, rows, a, b, beta, scale,
        list_here, count, inner, outer, offset, queries, keys, left, right,
        size, value_size, seen_here, seen_row, seen_column,
        gs_ptr + wide(item_head) * queries * all_keys, all_keys,
    )  # fmt: skip
    if KIND == ANY:
        if ordinary(beta, ROUGH):
            gq, changes = _query_sums(
                *arguments, POWER, NEVER, WANT, WANT_SCORES, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
        else:
            gq, changes = _query_sums(
                *arguments, ANY, NEVER, WANT, WANT_SCORES, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
    else:
        gq = tl.zeros([ROWS, SIZE], tl.float32)
        changes = tl.zeros([ROWS], tl.float32)
        if count > 0:  # see output_kernel
            gq, changes = _query_sums(
                *arguments, KIND, NEAR, WANT, WANT_SCORES, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
    parts = tl.arange(0, SIZE)
    inside = ours[:, None] & (parts < size)[None, :]
    gq = gq * scale + fill[:, None]
    tl.store(
        gq_ptr + (first + rows * step)[:, None] * size + parts[None, :],
        rounded(gq, gq_ptr.dtype.element_ty), mask=inside,
    )  # fmt: skip
    if WANT:
        here = line_of_map * (LISTED_PARTS if LISTED_PARTS > 0 else 1)
        tl.store(change_ptr + here, tl.sum(changes + fill, 0), mask=left_to_us)
    if LISTED_PARTS > 0:  # noqa: SIM102 (the first is known when it is compiled)
        if not left_to_us:
            enlist(work_ptr, line_of_map.to(tl.int32))


@triton.jit
def _key_sums(
    gk, gv, k, v, block, columns, q_ptr, g_ptr, q_row, g_row, line_ptr,
    beta, scale, list_ptr, count, offset, queries, keys, left, right, size, value_size,
    seen_ptr, seen_row, seen_column, run_start, run_stop,
    KIND: tl.constexpr, NEAR: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """gk (but for the scale) and gv, with what the listed blocks of queries add to them.

    Scores stand as keys by queries here, so that weights are a left factor as they are.
    """
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    a, _b = line(0.0, 0.0, unit(scale, MASK), beta, KIND, NEAR, ROUGH)
    # a loop for rare values of alpha must not take memory that others need
    STAGES: tl.constexpr = 1 if KIND == ANY else None
    for index in tl.range(count, num_stages=STAGES):
        row_block = tl.load(list_ptr + index).to(tl.int32)
        rows = row_block * ROWS + tl.arange(0, ROWS)
        q = load_block(q_ptr, row_block, q_row, queries, size, ROWS, WHOLE, SIZE, EVEN)
        g = load_block(g_ptr, row_block, g_row, queries, value_size, ROWS, WHOLE, VALUES, EVEN)
        # as one tile, since Triton has every thread load all that it needs of a short vector
        b, against = tl.split(load_block(line_ptr, row_block, 2, queries, 2, ROWS, True, 2, EVEN))
        inner, outer = whole_blocks(
            row_block, offset, queries, run_start, run_stop, left, right, CAUSAL, ROWS, COLUMNS
        )
        s = tile_scores(
            product(k, tl.trans(q)), scale, block, inner, outer, rows[None, :], columns[:, None],
            offset, queries, keys, left, right, seen_ptr, seen_row, seen_column, CAUSAL, MASK,
            CAUSAL or not EVEN or MASK == OF_KEYS,
        )  # fmt: skip
        p, u = shares(tl.fma(s, a, b[None, :]), beta, gamma, KIND, NEAR, ROUGH)
        gv += product((p * boost(g.dtype)).to(g.dtype), g)
        centred = product(v, tl.trans(g)) - against[None, :]
        gk += product((u * centred).to(q.dtype), q)
    return gk, gv


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def key_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, list_ptr, count_ptr,
    g_ptr, line_ptr, gk_ptr, gv_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    BY_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One block of keys of one *key* head: the query heads that share it add up here."""
    place, item_head = block_of_head(key_blocks)
    key_heads = heads // group
    item, key_head = item_head // key_heads, item_head % key_heads
    block, q_at, k_at, all_keys = place, item, item, keys
    first_query, first_key = wide(item) * queries, wide(item) * keys
    if PACKED:
        block, q_at, queries, k_at, all_keys, keys, offset, _low = sequence(
            lengths_ptr, place, PACKED
        )
        first_query, first_key = q_at, k_at
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    keys, _first_key, run_start, run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    k = load_rows(
        k_ptr + wide(k_at) * k_item + wide(key_head) * k_head,
        columns, k_row, keys, size, WHOLE, SIZE,
    )  # fmt: skip
    v = load_rows(
        v_ptr + wide(k_at) * v_item + wide(key_head) * v_head,
        columns, v_row, keys, value_size, WHOLE, VALUES,
    )  # fmt: skip
    gk = tl.zeros([COLUMNS, SIZE], tl.float32)
    gv = tl.zeros([COLUMNS, VALUES], tl.float32)
    for member in range(group):
        head = key_head * group + member
        beta = value
        if TENSOR:
            beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
        query_head = wide(item) * heads + head
        start = numbers_of(query_head, q_at, head, heads, queries, PACKED)
        q_here = q_ptr + wide(q_at) * q_item + wide(head) * q_head
        first, step = rows_of(start, first_query, head, heads, BY_ROWS)
        g_here = g_ptr + first * value_size
        seen_here = seen_ptr
        if MASK > 0:
            seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
        line_of_map = query_head * key_blocks + place
        count = tl.load(count_ptr + line_of_map)
        list_here = list_ptr + line_of_map * row_blocks
        arguments = (
            gk, gv, k, v, block, columns, q_here, g_here, q_row, step * value_size,
            line_ptr + start * 2, beta, scale, list_here, count,
            offset, queries, keys, left, right, size, value_size,
            seen_here, seen_row, seen_column, run_start, run_stop,
        )  # fmt: skip
        if KIND == ANY:
            if ordinary(beta, ROUGH):
                gk, gv = _key_sums(
                    *arguments, POWER, NEVER, ROUGH,
                    CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
                )  # fmt: skip
            else:
                gk, gv = _key_sums(
                    *arguments, ANY, NEVER, ROUGH,
                    CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
                )  # fmt: skip
        elif count > 0:  # see output_kernel
            gk, gv = _key_sums(
                *arguments, KIND, NEAR, ROUGH,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, VALUES,
            )  # fmt: skip
    parts, values = tl.arange(0, SIZE), tl.arange(0, VALUES)
    key_start, key_step = rows_of(
        wide(item_head) * all_keys, first_key, key_head, key_heads, BY_ROWS
    )  # fmt: skip
    row = key_start + columns * key_step
    tl.store(
        gk_ptr + row[:, None] * size + parts[None, :],
        rounded(gk * scale, gk_ptr.dtype.element_ty),
        mask=(columns < all_keys)[:, None] & (parts < size)[None, :],
    )  # fmt: skip
    tl.store(
        gv_ptr + row[:, None] * value_size + values[None, :],
        rounded(gv * (1.0 / boost(v.dtype)), gv_ptr.dtype.element_ty),
        mask=(columns < all_keys)[:, None] & (values < value_size)[None, :],
    )  # fmt: skip
