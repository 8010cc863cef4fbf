"""Lists of the blocks that reach above the thresholds of some queries."""

from __future__ import annotations

import triton
import triton.language as tl

from .places import share

ALIGNED = tl.constexpr(16)  # largest scores that are read together: a line of them is as long


@triton.jit
def first_aligned(begin):
    """Where to begin to read largest scores."""
    return begin // ALIGNED * ALIGNED


@triton.jit
def load_tops(tops_ptr, here, begin, end):
    """Largest scores of the blocks ``here``, -inf outside of [begin, end).

    What lies between the last block and an aligned place is read as well, but not looked at.
    """
    last = tl.cdiv(end, ALIGNED) * ALIGNED
    tops = tl.load(tops_ptr + here, mask=here < last, other=-float("inf"))
    return tl.where((here >= begin) & (here < end), tops, -float("inf"))


@triton.jit
def _above(tops_ptr, lines, low, first, begin, end, MANY: tl.constexpr):
    """(MANY,), 1 for blocks from ``first`` in which some row has a score above ``low``, or 0.

    ``lines`` say where the largest scores of each row begin; a row whose ``low`` is +inf has none.
    """
    here = first + tl.arange(0, MANY)[None, :]
    tops = load_tops(tops_ptr + lines[:, None], here, begin, end)
    return tl.max(tl.where(tops > low[:, None], 1, 0), 0)


@triton.jit
def _write(list_ptr, found, first, count, mine, last, MANY: tl.constexpr):
    """Those of places [mine, last), of which ``count`` were found before; how many are now."""
    place = count + tl.cumsum(found, 0) - found
    taken = (found > 0) & (place >= mine) & (place < last)
    tl.store(list_ptr + place - mine, first + tl.arange(0, MANY), mask=taken)
    return count + tl.sum(found, 0)


@triton.jit
def list_above(
    tops_ptr, lines, low, list_ptr, begin, end, part, parts,
    ALL: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Write one of several equal parts of the blocks above, in order; how many there are.

    ALL says that there is one part. The first MANY blocks, which often are all, are read once.
    """
    aligned = first_aligned(begin)
    held = _above(tops_ptr, lines, low, aligned, begin, end, MANY)
    mine, last = 0, end
    if not ALL:
        total = tl.sum(held, 0)
        for first in range(aligned + MANY, end, MANY):
            total += tl.sum(_above(tops_ptr, lines, low, first, begin, end, MANY), 0)
        mine, last = share(0, total, part, parts)
    count = _write(list_ptr, held, aligned, 0, mine, last, MANY)
    for first in range(aligned + MANY, end, MANY):
        if count < last:
            found = _above(tops_ptr, lines, low, first, begin, end, MANY)
            count = _write(list_ptr, found, first, count, mine, last, MANY)
    tl.debug_barrier()  # others read it
    return tl.minimum(count, last) - mine
