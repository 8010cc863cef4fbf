"""The weighted sum over the live blocks of each tile, in equal parts, and of these the output."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.flash.blocks import block_of_head, wide
from parsimax.kernels.gpu.flash.weights import boost, line, shares
from parsimax.kernels.gpu.products import product
from parsimax.kernels.gpu.quick import quick

from .lists import list_above
from .places import cache_rows, first_seen, item_keys, seen_blocks
from .total import sum_rows


@quick
@triton.jit(do_not_specialize=["queries", "capacity", "parts", "pages"])
def parts_kernel(
    v_ptr, a_ptr, lengths_ptr, table_ptr, scores_ptr, tops_ptr, top_ptr, x_ptr, low_ptr,
    list_ptr, parts_ptr, mass_ptr, arrived_ptr, out_ptr,
    value, heads, group, queries, capacity, value_size, row_tiles, parts, blocks, longest,
    left, right,
    pages, lengths_step, table_row, table_column, v_item, v_head, v_row, v_part,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, ROUGH: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, PAGED: tl.constexpr, PAGE: tl.constexpr,
    STRIDED: tl.constexpr, ROWS: tl.constexpr, REAL: tl.constexpr, COLUMNS: tl.constexpr,
    MANY: tl.constexpr, WHOLE: tl.constexpr, VALUES: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Values under p, and its mass, over one of several equal parts of the live blocks.

    Of the ROWS of a tile at most REAL are there. The last program of a tile to come here adds up
    its parts, ADD at a time, unless that is 0; who was here is counted from the 0 that is found.
    """
    part, tile = block_of_head(parts)
    item_head = tile // row_tiles
    item, head = item_head // heads, item_head % heads
    count = group * queries
    keys, _bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    begin, end = seen_blocks(queries, keys, left, right, CAUSAL, COLUMNS)
    seen_from = first_seen(queries, keys, left, CAUSAL)
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
        v = cache_rows(
            v_here, item, block, seen_from, keys, value_size, v_item, v_row, v_part,
            table_ptr, table_row, table_column, pages,
            PAGED, PAGE, STRIDED, COLUMNS, WHOLE, VALUES, CAUSAL,
        )  # fmt: skip
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        places = lines[:, None] * COLUMNS + columns[None, :]
        s = tl.load(scores_ptr + places, mask=there[:, None], other=-float("inf"))
        p, _u = shares(
            tl.fma(s, a[:, None], b[:, None]), beta, gamma, KIND, NEAR, ROUGH
        )  # fmt: skip
        out += product(rounded(p * boost(v.dtype), v.dtype), v)
        mass += p
    columns = tl.arange(0, VALUES)
    row = slot * ROWS + tl.arange(0, ROWS)
    tl.store(parts_ptr + row[:, None] * VALUES + columns[None, :], out, mask=there[:, None])
    tl.store(mass_ptr + row, tl.sum(mass, 1), mask=there)
    if ADD > 0:
        tl.debug_barrier()  # of one thread that counts, and all that have written
        before = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel")
        if before == parts - 1:
            sum_rows(
                tl.arange(0, REAL), tile,
                parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
                heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
                False, TENSOR, LENGTHS, ROWS, VALUES, ADD,
            )  # fmt: skip
