"""Softmax gives weight to all keys: keys and values are read together, in one pass.

There is no threshold to find, and what was added up before a larger score came is made smaller.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, rounded
from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.flash.weights import LOG2E, boost
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .places import WHOLE_CACHE, cache_rows, lost_pages
from .tile import key_scores, tile_of_program


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "parts", "pages"])
def soft_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, lengths_ptr, table_ptr, parts_ptr, mass_ptr, top_ptr,
    scale, heads, group, queries, capacity, size, value_size, row_tiles, parts, left, right,
    pages, lengths_step, table_row, table_column, q_item, q_head, q_row,
    k_item, k_head, k_row, k_part, v_item, v_head, v_row, v_part,
    seen_item, seen_head, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    PAGED: tl.constexpr, PAGE: tl.constexpr, K_STRIDED: tl.constexpr, V_STRIDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, SIZE: tl.constexpr, WHOLE_VALUES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One of several equal parts of the keys that one tile of queries sees.

    Written are values under exp(score - largest), its mass, and the largest score of the part.
    """
    which, asking, asked = tile_of_program(
        q_ptr, seen_ptr, lengths_ptr, heads, group, queries, capacity, size, row_tiles, parts,
        left, right, lengths_step, q_item, q_head, q_row, seen_item, seen_head,
        CAUSAL, MASK, LENGTHS, ROWS, COLUMNS, WHOLE, SIZE,
    )  # fmt: skip
    _item_head, item, head, slot = which
    q, q_rows, rows, count, seen_here = asking
    low, keys, begin, end = asked
    k_here, v_here = k_ptr + wide(head) * k_head, v_ptr + wide(head) * v_head
    top = tl.full([ROWS], -float("inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, VALUES], tl.float32)
    for block in range(begin, end):
        s = key_scores(
            q, q_rows, k_here, item, block, scale, queries, low, keys, size, left, right,
            k_item, k_row, k_part, table_ptr, table_row, table_column, pages,
            seen_here, seen_row, seen_column,
            CAUSAL, MASK, PAGED, PAGE, K_STRIDED, COLUMNS, WHOLE, SIZE,
        )  # fmt: skip
        above = larger(top, maximum(s, 1))
        # a row that has seen nothing has no largest score
        base = tl.where(above == -float("inf"), 0.0, above)
        smaller = exp2((top - base) * LOG2E)
        p = exp2((s - base[:, None]) * LOG2E)
        top = above
        v = cache_rows(
            v_here, item, block, low, keys, value_size, v_item, v_row, v_part,
            table_ptr, table_row, table_column, pages,
            PAGED, PAGE, V_STRIDED, COLUMNS, WHOLE_VALUES, VALUES, CAUSAL,
        )  # fmt: skip
        mass = mass * smaller + tl.sum(p, 1)
        out = out * smaller[:, None] + product(rounded(p * boost(v.dtype), v.dtype), v)
    if PAGED != WHOLE_CACHE:  # what should be on a page that does not exist must show
        lost = lost_pages(
            item, begin, end, low, keys, table_ptr, table_row, table_column, pages, PAGE, COLUMNS
        )  # fmt: skip
        top = tl.where(lost > 0, float("nan"), top)
    columns = tl.arange(0, VALUES)
    row = wide(slot) * ROWS + tl.arange(0, ROWS)
    there = rows < count
    tl.store(parts_ptr + row[:, None] * VALUES + columns[None, :], out, mask=there[:, None])
    tl.store(mass_ptr + row, mass, mask=there)
    tl.store(top_ptr + row, top, mask=there)
