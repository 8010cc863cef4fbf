"""From a map of live blocks to lists of them: for each block of queries, and for each of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from .sequences import blocks_of_queries


@triton.jit(do_not_specialize=["length"])
def compact(
    live_ptr, list_ptr, count_ptr, table_ptr, lines, length, size, line_step, step,
    PACKED: tl.constexpr, ROWS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """One line of the map a program: the places that are set, in order, and how many.

    A line is a row of the map if ``step`` is 1, and a column if ``line_step`` is. A map has
    ``size`` places. PACKED is for columns of packed sequences, which have rows of their own.
    """
    line = tl.program_id(0)
    matrix = tl.program_id(1).to(tl.int64)
    here = live_ptr + matrix * size
    out = list_ptr + (matrix * lines + line) * length
    if PACKED:
        block, first_row, length = blocks_of_queries(table_ptr, line, ROWS)
        here += first_row.to(tl.int64) * step + block
    else:
        here += line.to(tl.int64) * line_step
    count = 0
    for first in range(0, length, MANY):
        places = first + tl.arange(0, MANY)
        alive = tl.load(here + places.to(tl.int64) * step, mask=places < length, other=0).to(
            tl.int32
        )
        at = count + tl.cumsum(alive, 0) - alive
        tl.store(out + at, places.to(tl.int16), mask=alive > 0)
        count += tl.sum(alive, 0)
    tl.store(count_ptr + matrix * lines + line, count)
