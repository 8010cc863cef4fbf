"""What the scores of each block of keys may be at most, from its bounds, before any key is read.

A score is at most that of the middle, and as much more as a key can be apart from it: the smaller
of what a box around the block allows, and of what a ball does. The block that promises most is read
at once, so that there is a true score which others have to come near.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .bounds import length_of
from .lists import list_above
from .places import WHOLE_CACHE, existing_page, lost_pages
from .tile import key_scores, tile_of_program

_LOOKED_AT = tl.constexpr(64)  # scores that programs have found, and that are read together


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "parts", "pages"])
def uppers_kernel(
    q_ptr, k_ptr, seen_ptr, lengths_ptr, table_ptr, middle_ptr, width_ptr, radius_ptr,
    uppers_ptr, tops_ptr, found_ptr,
    scale, heads, group, queries, capacity, size, row_tiles, parts, blocks, bounds, left, right,
    pages, lengths_step, table_row, table_column,
    q_item, q_head, q_row, k_item, k_head, k_row, k_part,
    seen_item, seen_head, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PAGED: tl.constexpr, PAGE: tl.constexpr, STRIDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One of several equal parts of the blocks that one tile of queries sees, TOGETHER at a time.

    Writes the most that scores may be, (B, Hq, Lq, blocks), -inf as the largest so far, and for
    each query the largest score of the most promising block of this part.
    """
    which, asking, asked = tile_of_program(
        q_ptr, seen_ptr, lengths_ptr, heads, group, queries, capacity, size, row_tiles, parts,
        left, right, lengths_step, q_item, q_head, q_row, seen_item, seen_head,
        CAUSAL, MASK, LENGTHS, ROWS, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    item_head, item, head, slot = which
    q, q_rows, rows, count, seen_here = asking
    low, keys, begin, end = asked
    in_block: tl.constexpr = COLUMNS // BLOCK
    numbers = tl.arange(0, SIZE)
    lines = (wide(item_head) * count + rows) * blocks
    norm = length_of(q.to(tl.float32), 1)
    absolute = tl.abs(q)
    away = tl.abs(scale + 0.0)
    most = tl.full([], -float("inf"), tl.float32)
    promising = begin + 0
    for first in range(begin, end, TOGETHER):
        here = first + tl.arange(0, TOGETHER)
        places = first * in_block + tl.arange(0, TOGETHER * in_block)
        there = (places < end * in_block) & (places * BLOCK < keys) & ((places + 1) * BLOCK > low)
        at, place = wide(item), places
        if PAGED != WHOLE_CACHE:
            of_page: tl.constexpr = PAGE // BLOCK
            columns = (places // of_page).to(tl.int64) * table_column
            page = tl.load(table_ptr + wide(item) * table_row + columns, mask=there, other=0)
            at, place = existing_page(page, pages), places % of_page
        line = (at * heads + head) * bounds + place
        offsets = line[:, None] * size + numbers[None, :]
        inside = there[:, None]
        if not WHOLE:
            inside = inside & (numbers < size)[None, :]
        middle = tl.load(middle_ptr + offsets, mask=inside, other=0.0)
        width = tl.load(width_ptr + offsets, mask=inside, other=0.0)
        radius = tl.load(radius_ptr + line, mask=there, other=0.0)
        near = product(q, tl.trans(middle)) * scale
        box, ball = product(absolute, tl.trans(width)), norm[:, None] * radius[None, :]
        upper = near + tl.where(box < ball, box, ball) * away
        upper = tl.where(upper == upper, upper, float("inf"))  # nothing is known
        upper = tl.where(there[None, :], upper, -float("inf"))
        if in_block > 1:
            upper = tl.max(tl.reshape(upper, [ROWS, TOGETHER, in_block]), 2)
        mine = (rows < count)[:, None] & (here < end)[None, :]
        offsets = lines[:, None] + here[None, :]
        tl.store(uppers_ptr + offsets, upper, mask=mine)
        tl.store(tops_ptr + offsets, -float("inf") + tl.zeros_like(upper), mask=mine)
        promised = tl.max(tl.where(mine, upper, -float("inf")), 0)
        top = tl.max(promised, 0)
        first_top = tl.min(tl.where(promised == top, here, end), 0)
        promising = tl.where((top > most) & (first_top < end), first_top, promising)
        most = tl.maximum(most, top)
    found = tl.full([ROWS], -float("inf"), tl.float32)
    if begin < end:
        s = key_scores(
            q, q_rows, k_ptr + wide(head) * k_head, item, promising, scale, queries, low, keys,
            size, left, right, k_item, k_row, k_part,
            table_ptr, table_row, table_column, pages, seen_here, seen_row, seen_column,
            CAUSAL, MASK, PAGED, PAGE, STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        found = maximum(s, 1)
    tl.store(found_ptr + wide(slot) * ROWS + tl.arange(0, ROWS), found)
    if PAGED != WHOLE_CACHE:
        lost = lost_pages(
            item, begin, end, low, keys, table_ptr, table_row, table_column, pages, PAGE, COLUMNS
        )  # fmt: skip
        if lost > 0:  # this must show, and nobody else write there
            tl.debug_barrier()
            tl.store(uppers_ptr + lines + begin, -float("inf"), mask=rows < count)
            tl.store(tops_ptr + lines + begin, float("nan"), mask=rows < count)


@triton.jit
def list_promising(
    uppers_ptr, found_ptr, reach, lines, there, list_ptr, tile, begin, end, part, parts, lookers,
    ROWS: tl.constexpr, REAL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Write one of several equal parts of the blocks that may have weight; how many there are.

    They may for some row come within ``reach`` of the largest score that has been found. If that is
    no number, all may.
    """
    rows = tl.arange(0, REAL)
    # reduced within the loop, it would not get through Triton 3.6's compiler
    tops = tl.full([REAL, _LOOKED_AT], -float("inf"), tl.float32)
    for first in range(0, lookers, _LOOKED_AT):
        looker = first + tl.arange(0, _LOOKED_AT)
        places = (wide(tile) * lookers + looker)[None, :] * ROWS + rows[:, None]
        found = tl.load(found_ptr + places, mask=(looker < lookers)[None, :], other=-float("inf"))
        tops = larger(tops, found)
    top = maximum(tops, 1)
    known = (top > -float("inf")) & (top < float("inf"))
    low = tl.where(known, top - reach, -float("inf"))
    low = tl.where(there, low, float("inf"))
    return list_above(uppers_ptr, lines, low, list_ptr, begin, end, part, parts, False, MANY)
