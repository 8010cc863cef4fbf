"""From a map of live blocks to lists for each block of keys; those of queries come with the map."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.quick import quick

from .blocks import block_of_head
from .sequences import blocks_of_queries


@quick
@triton.jit(do_not_specialize=["rows", "length"])
def compact(
    live_ptr, list_ptr, count_ptr, table_ptr, lines, length, rows, columns,
    PACKED: tl.constexpr, ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One column of a map a program: the places that are set, in order, and how many.

    There are so many lists of some length for a map of rows and columns. Of packed sequences each
    has rows of its own, and they share columns.
    """
    line, matrix = block_of_head(lines)
    matrix = matrix.to(tl.int64)
    here = live_ptr + matrix * rows * columns
    out = list_ptr + (matrix * lines + line) * length
    if PACKED:
        column, first_row, rows = blocks_of_queries(table_ptr, line, ROWS)
        here += first_row.to(tl.int64) * columns + column
    else:
        here += line
    count = 0
    for first in range(0, rows, MANY):
        places = first + tl.arange(0, MANY)
        steps = places.to(tl.int64) * columns
        alive = tl.load(here + steps, mask=places < rows, other=0).to(tl.int32)
        at = count + tl.cumsum(alive, 0) - alive
        tl.store(out + at, places.to(tl.int16), mask=alive > 0)
        count += tl.sum(alive, 0)
    tl.store(count_ptr + matrix * lines + line, count)
