"""The sum of the parts that programs have found, which makes the output of a query."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, rounded
from parsimax.kernels.gpu.flash.blocks import wide
from parsimax.kernels.gpu.flash.weights import _LOG2E, boost
from parsimax.kernels.gpu.quick import quick
from parsimax.kernels.gpu.reductions import larger, maximum

from .places import item_keys


@triton.jit
def _largest(top_ptr, first_place, parts, ROWS: tl.constexpr, MANY: tl.constexpr):
    """Of all parts."""
    tops = tl.full([MANY], -float("inf"), tl.float32)
    for first in range(0, parts, MANY):
        part = first + tl.arange(0, MANY)
        place = first_place + part * ROWS
        tops = larger(tops, tl.load(top_ptr + place, mask=part < parts, other=-float("inf")))
    return maximum(tops, 0)


@quick
@triton.jit(do_not_specialize=["queries", "capacity"])
def sum_kernel(
    parts_ptr, mass_ptr, a_ptr, lengths_ptr, top_ptr, out_ptr,
    heads, group, queries, capacity, value_size, row_tiles, parts, lengths_step,
    SOFT: tl.constexpr, TENSOR: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, VALUES: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One query: its parts, always in the same order.

    The largest score is one of a query or, for SOFT, one of each part, to which its weights relate.
    """
    row = tl.program_id(0)
    item = row // (heads * group * queries)
    item_head, at = row // (group * queries), row % (group * queries)
    tile = item_head * row_tiles + at // ROWS
    first_place = wide(tile) * parts * ROWS + at % ROWS
    columns = tl.arange(0, VALUES)
    out = tl.zeros([MANY, VALUES], tl.float32)
    mass = tl.zeros([MANY], tl.float32)
    if SOFT:
        top = _largest(top_ptr, first_place, parts, ROWS, MANY)
    else:
        top = tl.load(top_ptr + row)
    base = tl.where((top > -float("inf")) & (top < float("inf")), top, 0.0)
    for first in range(0, parts, MANY):
        part = first + tl.arange(0, MANY)
        place = first_place + part * ROWS
        inside = part < parts
        masses = tl.load(mass_ptr + place, mask=inside, other=0.0)
        offsets = place[:, None] * VALUES + columns[None, :]
        values = tl.load(parts_ptr + offsets, mask=inside[:, None], other=0.0)
        if SOFT:
            tops = tl.load(top_ptr + place, mask=inside, other=-float("inf"))
            smaller = exp2((tops - base) * _LOG2E)
            masses *= smaller
            values *= smaller[:, None]
        mass += masses
        out += values
    total = tl.sum(mass, 0)
    mean = tl.sum(out, 0) / (tl.where(total > 0.0, total, 1.0) * boost(out_ptr.dtype.element_ty))
    # a row that is no row of numbers, an alpha or a length that cannot be
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
