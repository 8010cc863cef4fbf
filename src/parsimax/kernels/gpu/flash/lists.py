"""From a map of live blocks to lists for each block of keys; those of queries come with the map."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def compact(live_ptr, list_ptr, count_ptr, columns, rows, MANY: tl.constexpr):
    """One column of a map a program: the places that are set, in order, and how many."""
    column = tl.program_id(0)
    matrix = tl.program_id(1).to(tl.int64)
    here = live_ptr + matrix * rows * columns + column
    out = list_ptr + (matrix * columns + column) * rows
    count = 0
    for first in range(0, rows, MANY):
        places = first + tl.arange(0, MANY)
        steps = places.to(tl.int64) * columns
        alive = tl.load(here + steps, mask=places < rows, other=0).to(tl.int32)
        at = count + tl.cumsum(alive, 0) - alive
        tl.store(out + at, places.to(tl.int16), mask=alive > 0)
        count += tl.sum(alive, 0)
    tl.store(count_ptr + matrix * columns + column, count)
