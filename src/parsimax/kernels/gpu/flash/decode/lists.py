"""Lists of the blocks that reach above the thresholds of some queries."""

from __future__ import annotations

import triton
import triton.language as tl

from .places import share


@triton.jit
def _above(tops_ptr, lines, low, first, begin, end, MANY: tl.constexpr):
    """(MANY,), 1 for blocks from ``first`` in which some row has a score above ``low``, or 0.

    ``lines`` say where the largest scores of each row begin; a row whose ``low`` is +inf has none.
    """
    here = first + tl.arange(0, MANY)
    inside = (low < float("inf"))[:, None] & ((here >= begin) & (here < end))[None, :]
    tops = tl.load(tops_ptr + lines[:, None] + here[None, :], mask=inside, other=-float("inf"))
    return tl.max(tl.where(tops > low[:, None], 1, 0), 0)


@triton.jit
def list_above(
    tops_ptr, lines, low, list_ptr, begin, end, part, parts,
    ALL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Write one of several equal parts of the blocks above, in order; how many there are.

    ALL says that there is one part.
    """
    mine, last = 0, end
    if not ALL:
        total = 0
        for first in range(begin, end, MANY):
            total += tl.sum(_above(tops_ptr, lines, low, first, begin, end, MANY), 0)
        mine, last = share(0, total, part, parts)
    count = 0
    for first in range(begin, end, MANY):
        if count < last:
            found = _above(tops_ptr, lines, low, first, begin, end, MANY)
            place = count + tl.cumsum(found, 0) - found
            taken = (found > 0) & (place >= mine) & (place < last)
            tl.store(list_ptr + place - mine, first + tl.arange(0, MANY), mask=taken)
            count += tl.sum(found, 0)
    tl.debug_barrier()  # others read it
    return tl.minimum(count, last) - mine
