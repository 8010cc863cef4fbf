"""The sum of the parts that programs have found, which makes the output of some queries."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, rounded
from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.flash.weights import LOG2E, boost
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .places import item_keys


@triton.jit
def _places(rows, first_place, there, first, parts, ROWS: tl.constexpr, MANY: tl.constexpr):
    """Where MANY parts of some rows lie, (rows, parts), and which of them there are."""
    part = first + tl.arange(0, MANY)
    inside = there[:, None] & (part < parts)[None, :]
    return first_place + rows[:, None] + part[None, :] * ROWS, inside


@triton.jit
def _largest(
    top_ptr, rows, first_place, there, parts, ROWS: tl.constexpr, MANY: tl.constexpr
):  # fmt: skip
    """Of all parts."""
    top = tl.full([rows.numel], -float("inf"), tl.float32)
    for first in range(0, parts, MANY):
        place, inside = _places(rows, first_place, there, first, parts, ROWS, MANY)
        tops = tl.load(top_ptr + place, mask=inside, other=-float("inf"))
        top = larger(top, maximum(tops, 1))
    return top


@triton.jit
def sum_rows(
    rows, tile, parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
    heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
    SOFT: tl.constexpr, TENSOR: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, VALUES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Rows of a tile: their parts, MANY at a time and always in the same order.

    The largest score is one of a query or, for SOFT, one of each part, to which its weights relate.
    Parts are read past the first cache: other programs may have written them a moment ago.
    """
    item_head, count = tile // row_tiles, group * queries
    item, head = item_head // heads, item_head % heads
    at = (tile % row_tiles) * ROWS + rows
    there = at < count
    line = wide(item_head) * count + at
    first_place = wide(tile) * parts * ROWS
    columns = tl.arange(0, VALUES)
    out = tl.zeros([rows.numel, VALUES], tl.float32)
    mass = tl.zeros([rows.numel], tl.float32)
    if SOFT:
        top = _largest(top_ptr, rows, first_place, there, parts, ROWS, MANY)
    else:
        top = tl.load(top_ptr + line, mask=there, other=0.0)
    # a row that is no row of numbers, an alpha or a length that cannot be
    wrong = (top != top) | (top == float("inf"))
    if TENSOR:
        alpha = tl.load(a_ptr + head * group + at // queries, mask=there, other=1.0)
        wrong = wrong | ~((alpha >= 1.0) & (alpha < 1e30))
    _keys, bad = item_keys(lengths_ptr, lengths_step, item, capacity, LENGTHS)
    base = tl.where((top > -float("inf")) & (top < float("inf")), top, 0.0)
    for first in range(0, parts, MANY):
        place, inside = _places(rows, first_place, there, first, parts, ROWS, MANY)
        masses = tl.load(mass_ptr + place, mask=inside, other=0.0, cache_modifier=".cg")
        offsets = place[:, :, None] * VALUES + columns[None, None, :]
        values = tl.load(
            parts_ptr + offsets, mask=inside[:, :, None], other=0.0, cache_modifier=".cg"
        )
        if SOFT:
            tops = tl.load(top_ptr + place, mask=inside, other=-float("inf"))
            smaller = exp2((tops - base[:, None]) * LOG2E)
            masses *= smaller
            values *= smaller[:, :, None]
        mass += tl.sum(masses, 1)
        out += tl.sum(values, 1)
    share = tl.where(mass > 0.0, mass, 1.0) * boost(out_ptr.dtype.element_ty)
    mean = tl.where(wrong[:, None], float("nan"), out / share[:, None])
    if LENGTHS:
        mean = tl.where(bad, float("nan"), mean)
    place = line[:, None] * value_size + columns[None, :]
    inside = there[:, None] & (columns < value_size)[None, :]
    tl.store(out_ptr + place, rounded(mean, out_ptr.dtype.element_ty), mask=inside)


@quick
@triton.jit(do_not_specialize=["queries", "capacity"])
def sum_kernel(
    parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
    heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
    SOFT: tl.constexpr, TENSOR: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, VALUES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One query, where there is too much to add up for the last program of a tile."""
    row = tl.program_id(0)
    item_head, at = row // (group * queries), row % (group * queries)
    tile = item_head * row_tiles + at // ROWS
    sum_rows(
        at % ROWS + tl.arange(0, 1), tile,
        parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
        heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
        SOFT, TENSOR, LENGTHS, ROWS, VALUES, MANY,
    )  # fmt: skip
