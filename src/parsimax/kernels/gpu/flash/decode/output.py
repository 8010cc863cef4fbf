"""The weighted sum over the live blocks of each tile, in equal parts, and the sum of the parts."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.flash.blocks import product, wide
from parsimax.kernels.gpu.flash.weights import boost, line, shares
from parsimax.kernels.gpu.quick import quick

from .lists import list_above
from .places import cache_rows, item_keys, seen_blocks


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "blocks", "pages"])
def parts_kernel(
    v_ptr, a_ptr, lengths_ptr, table_ptr, scores_ptr, tops_ptr, top_ptr, x_ptr, low_ptr,
    list_ptr, parts_ptr, mass_ptr,
    value, heads, group, queries, capacity, value_size, row_tiles, blocks, longest, left, right,
    pages, page_size, lengths_step, table_row, table_column, v_item, v_head, v_row, v_part,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, PAGED: tl.constexpr, STRIDED: tl.constexpr,
    ROWS: tl.constexpr, REAL: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
    WHOLE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Values under p, and its mass, over one of several equal parts of the live blocks.

    Of the ROWS of a tile at most REAL are there.
    """
    part, parts = tl.program_id(0), tl.num_programs(0)
    tile = tl.program_id(1)
    item_head = tile // row_tiles
    item, head = item_head // heads, item_head % heads
    count = group * queries
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    first_row = (tile % row_tiles) * ROWS
    line_of_rows = wide(item_head) * count
    slot = wide(tile) * parts + part
    list_here = list_ptr + slot * longest
    few = first_row + tl.arange(0, REAL)
    low = tl.load(low_ptr + line_of_rows + few, mask=few < count, other=float("inf"))
    many = list_above(
        tops_ptr, (line_of_rows + few) * blocks, low, list_here, begin, end, part, parts,
        False, MANY,
    )  # fmt: skip
    rows = first_row + tl.arange(0, ROWS)
    there = rows < count
    top = tl.load(top_ptr + line_of_rows + rows, mask=there, other=0.0)
    top = tl.where((top > -float("inf")) & (top < float("inf")), top, 0.0)
    x = tl.load(x_ptr + line_of_rows + rows, mask=there, other=0.0)
    beta = value
    if TENSOR:
        alpha = tl.load(a_ptr + head * group + rows // queries, mask=there, other=1.5)
        beta = (alpha - 1.0).to(tl.float32)
    a, b = line(top, x, 1.0, beta, KIND, NEAR, ROUGH)
    a += tl.zeros([ROWS], tl.float32)
    if TENSOR:
        beta = beta[:, None]
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    v_here = v_ptr + wide(head) * v_head
    lines = (line_of_rows + rows) * blocks
    out = tl.zeros([ROWS, VALUES], tl.float32)
    mass = tl.zeros([ROWS, COLUMNS], tl.float32)
    for index in range(many):
        block = tl.load(list_here + index)
        v, _lost = cache_rows(
            v_here, item, block, keys, value_size, v_item, v_row, v_part,
            table_ptr, table_row, table_column, pages, page_size,
            PAGED, STRIDED, COLUMNS, WHOLE, VALUES,
        )  # fmt: skip
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        places = lines[:, None] * COLUMNS + columns[None, :]
        s = tl.load(scores_ptr + places, mask=there[:, None], other=-float("inf"))
        p, _u, _log = shares(
            tl.fma(s, a[:, None], b[:, None]), beta, gamma, KIND, NEAR, ROUGH
        )  # fmt: skip
        out += product(rounded(p * boost(v.dtype), v.dtype), v)
        mass += p
    columns = tl.arange(0, VALUES)
    row = slot * ROWS + tl.arange(0, ROWS)
    tl.store(parts_ptr + row[:, None] * VALUES + columns[None, :], out, mask=there[:, None])
    tl.store(mass_ptr + row, tl.sum(mass, 1), mask=there)


@quick
@triton.jit(do_not_specialize=["queries", "capacity"])
def sum_kernel(
    parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
    heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
    TENSOR: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, VALUES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One query: its parts one after the other, always in the same order."""
    row = tl.program_id(0)
    item = row // (heads * group * queries)
    item_head, at = row // (group * queries), row % (group * queries)
    tile = item_head * row_tiles + at // ROWS
    columns = tl.arange(0, VALUES)
    out = tl.zeros([MANY, VALUES], tl.float32)
    mass = tl.zeros([MANY], tl.float32)
    for first in range(0, parts, MANY):
        part = first + tl.arange(0, MANY)
        place = (wide(tile) * parts + part) * ROWS + at % ROWS
        inside = part < parts
        mass += tl.load(mass_ptr + place, mask=inside, other=0.0)
        offsets = place[:, None] * VALUES + columns[None, :]
        out += tl.load(parts_ptr + offsets, mask=inside[:, None], other=0.0)
    total = tl.sum(mass, 0)
    mean = tl.sum(out, 0) / (tl.where(total > 0.0, total, 1.0) * boost(out_ptr.dtype.element_ty))
    # a row that is no row of numbers, an alpha or a length that cannot be
    top = tl.load(top_ptr + row)
    wrong = (top != top) | (top == float("inf"))
    if LENGTHS:
        _keys, bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
        wrong = wrong | bad
    if TENSOR:
        alpha = tl.load(a_ptr + row // queries % (heads * group))
        wrong = wrong | ~((alpha >= 1.0) & (alpha < 1e30))
    mean = tl.where(wrong, float("nan"), mean)
    place = wide(row) * value_size + columns
    tl.store(out_ptr + place, rounded(mean, out_ptr.dtype.element_ty), mask=columns < value_size)
