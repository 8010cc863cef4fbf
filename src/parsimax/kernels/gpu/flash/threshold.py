"""The threshold of every query, and which blocks of keys lie above it.

:mod:`.tops` has found the largest score of every query in every block. On these few numbers a
program solves for a threshold, which lies below the true one, since less mass is there. Only the
blocks that reach above it can hold support, and only those are read again: once, if the scores that
lie above fit into lists (see :mod:`.candidates`), and otherwise as often as it takes until the
threshold stands. The largest scores of the blocks then tell which are live.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2
from parsimax.kernels.gpu.newton import (
    ALWAYS,
    NEAR_ONE,
    NEVER,
    POWER,
    TRIES,
    lowest,
    move,
    newton,
    start,
)
from parsimax.kernels.gpu.quick import quick

from .blocks import (
    FOLDED,
    OF_KEYS,
    block_of_slot,
    block_scores,
    fold,
    load_rows,
    numbers_of,
    unit,
    visible_range,
    whole_blocks,
    wide,
)
from .candidates import first_of_lists, gather, give_place, sums, take_place, worth_it
from .listed import FOR_BACKWARD, NEVER_KEPT, enlist, few_enough, keep
from .sequences import sequence
from .spans import span_of
from .weights import LEAST, STEEP, line, shares

HALVINGS = tl.constexpr(26)
_LEAST_SURPLUS = tl.constexpr(1e-6)  # that float32 can just tell
_FEW = tl.constexpr(8)  # blocks of which it takes longer to find out which can be left out
ROUGHLY = tl.constexpr(1e-2)  # surplus of the largest scores, whose threshold is a start


@triton.jit
def _load_tops(tops_ptr, blocks, inside, ROWS: tl.constexpr):
    """(rows, blocks) largest scores, -inf where a block is not ``inside``."""
    offsets = blocks[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    return tl.load(tops_ptr + offsets, mask=inside[None, :], other=-float("inf"))


@triton.jit
def _listed(list_ptr, first, count, MANY: tl.constexpr):
    """(blocks, whether there are so many) of a list."""
    places = first + tl.arange(0, MANY)
    inside = places < count
    return tl.load(list_ptr + places, mask=inside, other=0).to(tl.int32), inside


@triton.jit
def _first_tops(tops_ptr, list_ptr, count, ROWS: tl.constexpr, MANY: tl.constexpr):
    """Those of the blocks at the beginning of a list."""
    blocks, inside = _listed(list_ptr, 0, count, MANY)
    return _load_tops(tops_ptr, blocks, inside, ROWS)


@triton.jit
def _append(
    count, blocks, inside, tops_ptr, low, good, all_stay, list_ptr, ROWS: tl.constexpr
):  # fmt: skip
    """Add the blocks with a score above ``low`` in any row, or all of them; how many there are."""
    tops = _load_tops(tops_ptr, blocks, inside, ROWS)
    found = tl.max(tl.where((tops > low[:, None]) & good[:, None], 1, 0), 0)
    found = tl.where(inside, tl.maximum(found, all_stay), 0)
    place = count + tl.cumsum(found, 0) - found
    tl.debug_barrier()  # all have read what may be written over now
    tl.store(list_ptr + place, blocks.to(tl.int16), mask=found > 0)
    return count + tl.sum(found, 0)


@triton.jit
def _list_above(
    tops_ptr, begin, end, low, good, all_stay, list_ptr, ROWS: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    """Write the blocks from ``begin`` to ``end`` that reach above ``low``, in order."""
    count = 0
    for first in range(begin, end, MANY):
        blocks = first + tl.arange(0, MANY)
        count = _append(
            count, blocks, blocks < end, tops_ptr, low, good, all_stay, list_ptr, ROWS
        )  # fmt: skip
    tl.debug_barrier()
    return count


@triton.jit
def _shorten(
    count, tops_ptr, low, good, all_stay, list_ptr, ROWS: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    """Keep those of the list that reach above ``low``."""
    kept = 0
    for first in range(0, count, MANY):
        blocks, inside = _listed(list_ptr, first, count, MANY)
        kept = _append(kept, blocks, inside, tops_ptr, low, good, all_stay, list_ptr, ROWS)
    tl.debug_barrier()
    return kept


@triton.jit
def _tops_sums(
    held, tops_ptr, list_ptr, count, x, top, beta, gamma,
    KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """As :func:`_sweep`, but of the largest score of each block alone; those held come first."""
    a, b = line(top, x, 1.0, beta, KIND, NEAR)
    totals, slopes = shares(tl.fma(held, a, b[:, None]), beta, gamma, KIND, NEAR)
    for first in range(MANY, count, MANY):
        blocks, inside = _listed(list_ptr, first, count, MANY)
        v = tl.fma(_load_tops(tops_ptr, blocks, inside, ROWS), a, b[:, None])
        p, u = shares(v, beta, gamma, KIND, NEAR)
        totals += p
        slopes += u
    return tl.sum(totals, 1), tl.sum(slopes, 1)


@triton.jit
def _solve_tops(
    tops_ptr, list_ptr, count, x, top, good, beta, gamma, one,
    KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    held = _first_tops(tops_ptr, list_ptr, count, ROWS, MANY)
    done = ~good
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals, slopes = _tops_sums(
            held, tops_ptr, list_ptr, count, x, top, beta, gamma, KIND, NEAR, ROWS, MANY
        )  # fmt: skip
        surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
        moved = move(x, step, one * beta, KIND, NEAR)
        # the last step is not taken: it might go above the true threshold by a rounding
        done = done | ~(surplus > ROUGHLY) | (moved == x)
        x = tl.where(done, x, moved)
        active = tl.max(tl.where(done, 0, 1), 0)
    return x


@triton.jit
def _sweep(
    x, top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(mass up to a factor, minus its derivative) over the listed blocks."""
    totals = tl.zeros([ROWS, FOLDED], tl.float32)
    slopes = tl.zeros([ROWS, FOLDED], tl.float32)
    a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
    for index in range(count):
        block = tl.load(list_ptr + index).to(tl.int32)
        s = block_scores(
            q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
            seen_ptr, seen_row, seen_column, inner, outer, CAUSAL, MASK,
            CAUSAL or not EVEN or MASK == OF_KEYS, EVEN, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        p, u = shares(tl.fma(s, a, b[:, None]), beta, gamma, KIND, NEAR)
        totals += fold(p, ROWS, COLUMNS)
        slopes += fold(u, ROWS, COLUMNS)
    return tl.sum(totals, 1), tl.sum(slopes, 1)


@triton.jit
def _allowed(beta, gentle, even, steep, fall):
    """What :class:`Enough` says of one alpha."""
    bend = tl.maximum(1.0 - (beta - 0.5) / 0.15, 0.0)
    below = tl.minimum(even * 0.5 / tl.maximum(beta, 1e-30), gentle)
    steep = steep * exp2(tl.minimum(tl.maximum(beta - 0.65, 0.0), 0.2) * -fall)
    above = steep + (even - steep) * bend * bend
    return tl.maximum(tl.where(beta <= 0.5, below, above), _LEAST_SURPLUS)


@triton.jit
def _step(
    totals, slopes, x, done, before, beta, gamma, one, enough,
    KIND: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Newton's: (x, which rows have arrived, the surplus that each had)."""
    surplus, step = newton(totals, slopes, one * beta, one * gamma, one, KIND, NEAR)
    moved = move(x, step, one * beta, KIND, NEAR)
    # From below, each step leaves a smaller share of the surplus than the last one did. How
    # small depends on how many keys lie near the threshold, so it is measured; the square is
    # what Newton comes to at last. A surplus of more than 1 is far from there: the norm is all but
    # a line, and its step leaves almost nothing, however many keys lie near the threshold. Below a
    # thousandth, no progress means no more digits.
    near = tl.minimum(before, 1.0)
    share = tl.where(before > 0.0, tl.minimum(surplus / near, 1.0), 1.0)
    stuck = (share > 0.5) & (before > 0.0) & (surplus < 1e-3)
    arrived = ~(surplus * share * share > enough) | stuck | (moved == x)
    return tl.where(done, x, moved), done | arrived, surplus


@triton.jit
def _solve_lists(
    x, done, top, good, beta, enough, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
    left, right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count, lists_ptr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, HOLD: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """(x, which rows have arrived, their surplus, steps taken) and what :func:`gather` gives.

    If lists are too short, there are no steps.
    """
    one = tl.zeros([ROWS], tl.float32) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    lengths, most, fits = gather(
        x, good, top, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
        left, right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
        lists_ptr, CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, EVEN, WHOLE, SIZE, HOLD, KEYS,
    )  # fmt: skip
    listed = first_of_lists(lengths, lists_ptr, ROWS, KEYS)
    before = 0.0 * one
    tries = 0
    active = 1
    while (active > 0) & (tries < TRIES) & fits:
        tries += 1
        totals, slopes = sums(
            listed, x, top, beta, gamma, scale, lengths, most, lists_ptr, MASK, KIND, NEAR, ROWS,
            KEYS,
        )  # fmt: skip
        x, done, before = _step(
            totals, slopes, x, done, before, beta, gamma, one, enough, KIND, NEAR
        )  # fmt: skip
        active = tl.max(tl.where(done, 0, 1), 0)
    return x, done, before, tries, lengths, most, fits


@triton.jit
def _solve(
    top, good, all_stay, beta, enough, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
    left, right, seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, list_ptr, begin, end,
    room, chosen_ptrs,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    MANY: tl.constexpr, HOLD: tl.constexpr,
    CHOOSE: tl.constexpr, FROM_BLOCKS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """x of every row, how many blocks are listed (those that hold support), if keys are kept."""
    one = tl.zeros([ROWS], tl.float32) + 1.0
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    x = start(one * beta, one, KIND, NEAR)
    low = unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
    count = _list_above(tops_ptr, begin, end, low, good, all_stay, list_ptr, ROWS, MANY)
    x = _solve_tops(
        tops_ptr, list_ptr, count, x, top, good, beta, gamma, one, KIND, NEAR, ROWS, MANY
    )  # fmt: skip
    if count > _FEW:
        low = unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
        count = _shorten(count, tops_ptr, low, good, all_stay, list_ptr, ROWS, MANY)
    done = ~good
    before = 0.0 * one
    tries = 0
    active = tl.max(tl.where(done, 0, 1), 0)
    kept = False
    KEPT_FROM: tl.constexpr = FROM_BLOCKS if CHOOSE != NEVER_KEPT else 0
    if HOLD > 0 and NEAR != ALWAYS:  # noqa: SIM102 (the first is known when it is compiled)
        if (active > 0) & worth_it(beta, count, KIND, KEPT_FROM):
            lists_ptr, taken_ptr, places, place_size = room
            place = take_place(taken_ptr, places)
            lists_ptr += wide(place) * place_size
            arguments = (
                x, done, top, good, beta, enough, q, k_ptr, k_row, rows, scale, keys, size, queries,
                offset, left, right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
                lists_ptr,
            )  # fmt: skip
            # keys are kept only where they may be needed: pairs take longer to read again and again
            with_keys = (count >= KEPT_FROM) if KEPT_FROM > 0 else False
            if with_keys:
                x, done, before, tries, lengths, most, fits = _solve_lists(
                    *arguments, CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, EVEN, WHOLE, SIZE, HOLD,
                    True,
                )  # fmt: skip
                kept = fits & (all_stay == 0) & few_enough(lengths, count, FROM_BLOCKS, MOST)
                if kept:
                    keep(lengths, most, lists_ptr, *chosen_ptrs, ROWS)
            else:
                x, done, before, tries, _lengths, _most, _fits = _solve_lists(
                    *arguments, CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, EVEN, WHOLE, SIZE, HOLD,
                    False,
                )  # fmt: skip
            active = tl.max(tl.where(done, 0, 1), 0)
            give_place(taken_ptr, place)
    while (active > 0) & (tries < TRIES):
        tries += 1
        totals, slopes = _sweep(
            x, top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left,
            right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
            CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, EVEN, WHOLE, SIZE,
        )  # fmt: skip
        x, done, before = _step(
            totals, slopes, x, done, before, beta, gamma, one, enough, KIND, NEAR
        )  # fmt: skip
        active = tl.max(tl.where(done, 0, 1), 0)
    low = unscaled(lowest(x, one * beta, one * gamma, KIND, NEAR), top, KIND)
    return x, _shorten(count, tops_ptr, low, good, all_stay, list_ptr, ROWS, MANY), kept


@triton.jit
def _half(totals, low, high):
    """The half of [low, high) in which the largest weight must lie that makes all of them 1."""
    middle = 0.5 * (low + high)
    enough = totals >= 1.0
    return tl.where(enough, low, middle), tl.where(enough, middle, high)


@triton.jit
def _halve(
    top, good, all_stay, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
    left, right, seen_ptr, seen_row, seen_column, inner, outer, tops_ptr, list_ptr, begin, end,
    room, chosen_ptrs,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    MANY: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """As :func:`_solve` above alpha = 2, where Newton has no slope to hold on to: by halving.

    The unknown is the largest weight; the fewer scores, the larger it must be.
    """
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    low = tl.zeros([ROWS], tl.float32)
    high = low + 1.0
    count = _list_above(tops_ptr, begin, end, top - gamma, good, all_stay, list_ptr, ROWS, MANY)
    held = _first_tops(tops_ptr, list_ptr, count, ROWS, MANY)
    for _ in range(HALVINGS):
        totals, _slopes = _tops_sums(
            held, tops_ptr, list_ptr, count, 0.5 * (low + high), top, beta, gamma, STEEP, NEVER,
            ROWS, MANY,
        )  # fmt: skip
        low, high = _half(totals, low, high)
    count = _shorten(count, tops_ptr, top - high * gamma, good, all_stay, list_ptr, ROWS, MANY)
    low = tl.zeros([ROWS], tl.float32)
    times = HALVINGS
    if HOLD > 0:
        lists_ptr, taken_ptr, places, place_size = room
        place = take_place(taken_ptr, places)
        lists_ptr += wide(place) * place_size
        lengths, most, fits = gather(
            high, good, top, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset,
            left, right, seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count,
            lists_ptr, CAUSAL, MASK, STEEP, NEVER, ROWS, COLUMNS, EVEN, WHOLE, SIZE, HOLD,
            False,
        )  # fmt: skip
        listed = first_of_lists(lengths, lists_ptr, ROWS, False)
        for _ in range(tl.where(fits, HALVINGS, 0)):
            totals, _slopes = sums(
                listed, 0.5 * (low + high), top, beta, gamma, scale, lengths, most, lists_ptr,
                MASK, STEEP, NEVER, ROWS, False,
            )  # fmt: skip
            low, high = _half(totals, low, high)
        give_place(taken_ptr, place)
        times = tl.where(fits, 0, HALVINGS)
    for _ in range(times):
        totals, _slopes = _sweep(
            0.5 * (low + high), top, beta, gamma, q, k_ptr, k_row, rows, scale, keys, size,
            queries, offset, left, right, seen_ptr, seen_row, seen_column, inner, outer,
            list_ptr, count, CAUSAL, MASK, STEEP, NEVER, ROWS, COLUMNS, EVEN, WHOLE, SIZE,
        )  # fmt: skip
        low, high = _half(totals, low, high)
    low = top - high * gamma
    count = _shorten(count, tops_ptr, low, good, all_stay, list_ptr, ROWS, MANY)
    return high, count, False


@triton.jit
def unscaled(low, top, KIND: tl.constexpr):
    """From a place among :func:`relative` scores to one among scores."""
    if KIND == 2:  # ENTMAX15
        return 2.0 * low + top
    else:
        return low + top


@quick
@triton.jit(do_not_specialize=["queries", "keys", "tile", "places", "work_at"])
def threshold_kernel(
    q_ptr, k_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, live_ptr, tops_ptr,
    list_ptr, count_ptr, lists_ptr, taken_ptr, scores_ptr, chosen_ptr, chosen_counts_ptr, work_ptr,
    scale, value, gentle, even, steep, fall, heads, group, queries, keys, size,
    tile, tall_blocks, row_blocks, key_blocks, places, place_size, work_at,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr, PACKED: tl.constexpr,
    GRAINS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, MANY: tl.constexpr,
    HOLD: tl.constexpr, CHOOSE: tl.constexpr, FROM_BLOCKS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One of the GRAINS blocks of queries of a tall block; scratch begins at that named ``tile``.

    Programs that run at the same time read the same keys, which stay in the cache.
    """
    slot = tl.program_id(0)
    tops_ptr += wide(slot) * key_blocks * ROWS
    row_block, item_head = block_of_slot(slot, tile, tall_blocks, GRAINS)
    if row_block >= row_blocks:  # beyond the last queries of a head, in a tall block
        return
    item, head = item_head // heads, item_head % heads
    line_of_map = wide(item_head) * row_blocks + row_block
    list_ptr += line_of_map * key_blocks
    q_at, k_at = item, item
    if PACKED:
        row_block, q_at, queries, k_at, _all, keys, offset, _low = sequence(
            lengths_ptr, row_block, PACKED
        )
    rows = row_block * ROWS + tl.arange(0, ROWS)
    keys, first_key, run_start, run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    q = load_rows(
        q_ptr + wide(q_at) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(k_at) * k_item + wide(head // group) * k_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    first, last = row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, queries) - 1
    begin, end = visible_range(first, last, offset, first_key, keys, left, right, CAUSAL, COLUMNS)
    inner, outer = whole_blocks(
        row_block, offset, queries, run_start, run_stop, left, right, CAUSAL, ROWS, COLUMNS
    )
    row = numbers_of(item_head, q_at, head, heads, queries, PACKED) + rows
    top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
    good = (top > LEAST) & (top < float("inf"))
    largest = tl.where(good, top, 0.0)
    one = tl.zeros([ROWS], tl.float32) + 1.0
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
        fits = (beta >= 0.0) & (beta < 1e30)
        good = good & (tl.where(fits, one, 0.0) > 0.0)
    # a row that is no row of numbers must show it
    broken = ~good & ~(top <= LEAST) & (rows < queries)
    all_stay = tl.max(tl.where(broken, 1, 0), 0)
    line_of_keys = line_of_map if CHOOSE == FOR_BACKWARD else wide(slot)
    arguments = (
        q, k_here, k_row, rows, scale, keys, size, queries, offset, left, right,
        seen_here, seen_row, seen_column, inner, outer, tops_ptr, list_ptr, begin, end,
        (lists_ptr, taken_ptr, places, place_size),
        (
            scores_ptr + wide(slot) * (MOST * ROWS),
            chosen_ptr + line_of_keys * (MOST * ROWS),
            chosen_counts_ptr + line_of_map * ROWS,
        ),
    )  # fmt: skip
    enough = _allowed(beta, gentle, even, steep, fall)
    if TENSOR:
        if beta < NEAR_ONE:
            x, count, kept = _solve(
                largest, good, all_stay, beta, enough, *arguments,
                CAUSAL, MASK, POWER, ALWAYS, ROWS, COLUMNS, EVEN, WHOLE, SIZE, MANY, HOLD,
                CHOOSE, FROM_BLOCKS, MOST,
            )  # fmt: skip
        elif beta > 1.0:
            x, count, kept = _halve(
                largest, good, all_stay, beta, *arguments,
                CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, MANY, HOLD,
            )  # fmt: skip
        else:
            x, count, kept = _solve(
                largest, good, all_stay, beta, enough, *arguments,
                CAUSAL, MASK, POWER, NEVER, ROWS, COLUMNS, EVEN, WHOLE, SIZE, MANY, HOLD,
                CHOOSE, FROM_BLOCKS, MOST,
            )  # fmt: skip
    elif KIND == STEEP:
        x, count, kept = _halve(
            largest, good, all_stay, beta, *arguments,
            CAUSAL, MASK, ROWS, COLUMNS, EVEN, WHOLE, SIZE, MANY, HOLD,
        )  # fmt: skip
    else:
        x, count, kept = _solve(
            largest, good, all_stay, beta, enough, *arguments,
            CAUSAL, MASK, KIND, NEAR, ROWS, COLUMNS, EVEN, WHOLE, SIZE, MANY, HOLD,
            CHOOSE, FROM_BLOCKS, MOST,
        )  # fmt: skip
    tl.store(x_ptr + row, x, mask=rows < queries)
    tl.store(count_ptr + line_of_map, count)
    if CHOOSE != NEVER_KEPT:
        if kept:
            enlist(work_ptr + work_at, slot)
        else:
            nothing = tl.full([ROWS], -1, tl.int16)
            tl.store(chosen_counts_ptr + line_of_map * ROWS + tl.arange(0, ROWS), nothing)
    live_ptr += line_of_map * key_blocks
    for first in range(0, key_blocks, MANY):
        blocks = first + tl.arange(0, MANY)
        tl.store(live_ptr + blocks, tl.zeros([MANY], tl.int8), mask=blocks < key_blocks)
    tl.debug_barrier()
    for first in range(0, count, MANY):
        blocks, inside = _listed(list_ptr, first, count, MANY)
        tl.store(live_ptr + blocks, tl.full([MANY], 1, tl.int8), mask=inside)
