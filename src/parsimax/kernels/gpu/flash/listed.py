"""Keys of queries that may have weight, where these are few.

A block of 64 keys that has any weight mostly has it at a few keys a query. Where a threshold was
found from lists of scores and of their keys (see :mod:`.candidates`), these are kept: values, and
keys in the backward, are then read one by one, each by the query that needs it, and no product is
taken of all others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import INTERPRETED

from .blocks import FOLDED
from .candidates import load_pairs

# Whether keys are kept, and for how long
NEVER_KEPT = tl.constexpr(0)
FOR_OUTPUT = tl.constexpr(1)
FOR_BACKWARD = tl.constexpr(2)

_MOVED = tl.constexpr(2)  # scores of a list that are moved together
_USUAL = tl.constexpr(50)  # scores of the query that has the most of its block


@triton.jit
def _put(start_ptr, place, x, inside):
    """A store by the threads that have x; Triton's would first lay numbers side by side."""
    SHORT: tl.constexpr = start_ptr.dtype.element_ty == tl.int16
    if INTERPRETED:
        tl.store(start_ptr + place, x.to(tl.int16) if SHORT else x, mask=inside)
    elif SHORT:
        tl.inline_asm_elementwise(
            "{ .reg .pred in; .reg .b16 half; .reg .b64 here; setp.ne.s32 in, $4, 0;"
            " cvt.u16.u32 half, $3; mad.wide.s32 here, $2, 2, $1; @in st.global.b16 [here], half;"
            " mov.b32 $0, 0; }",
            "=r,l,r,r,r",
            [start_ptr.to(tl.int64), place, x, inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred in; .reg .b64 here; setp.ne.s32 in, $4, 0;"
            " mad.wide.s32 here, $2, 4, $1; @in st.global.b32 [here], $3; mov.b32 $0, 0; }",
            "=r,l,r,r,r",
            [start_ptr.to(tl.int64), place, x.to(tl.int32, bitcast=True), inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def get(pointer):
    """A load by the threads that need it, each for itself; of 32 bits, or of 16 without a sign.

    Nothing orders it beside stores: a kernel may write there only what depends on what it has read.
    """
    SHORT: tl.constexpr = pointer.dtype.element_ty == tl.int16
    if INTERPRETED:
        x = tl.load(pointer)
        return x.to(tl.int32) & 0xFFFF if SHORT else x.to(tl.int32, bitcast=True)
    elif SHORT:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 half; ld.global.u16 half, [$1]; cvt.u32.u16 $0, half; }", "=r,l",
            [pointer.to(tl.int64)], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "ld.global.b32 $0, [$1];", "=r,l", [pointer.to(tl.int64)],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip


@triton.jit
def load_each(pointer, key, step, wanted, parts, size, WHOLE: tl.constexpr):
    """(queries, parts): those of the row of one key for each query, in float32."""
    wanted = wanted[:, None]
    if not WHOLE:
        wanted = wanted & (parts < size)[None, :]
    places = key.to(tl.int64)[:, None] * step + parts[None, :]
    return tl.load(pointer + places, mask=wanted, other=0.0).to(tl.float32)


@triton.jit
def few_enough(lengths, blocks, FROM_BLOCKS: tl.constexpr, MOST: tl.constexpr):
    """Whether there is room for lists, and they take less time than so many blocks, as a rule.

    A list of usual length takes about as long as FROM_BLOCKS of these.
    """
    longest = tl.max(tl.sum(lengths, 1), 0)
    return (longest <= MOST) & (longest * FROM_BLOCKS <= blocks * _USUAL)


@triton.jit
def keep(lengths, most, lists_ptr, scores_ptr, chosen_ptr, counts_ptr, ROWS: tl.constexpr):
    """Put the lists of each query one behind the other, where other kernels look for them."""
    STEP: tl.constexpr = ROWS * FOLDED
    starts = tl.reshape(tl.cumsum(lengths, 1) - lengths, [1, STEP])
    ends = tl.reshape(lengths, [1, STEP])
    of_list = tl.arange(0, STEP)[None, :]
    for first in range(0, most, _MOVED):
        places = (first + tl.arange(0, _MOVED))[:, None]
        there = (starts + places) * ROWS + of_list // FOLDED
        scores, keys = load_pairs(lists_ptr, places * STEP + of_list)
        _put(scores_ptr, there, scores, places < ends)
        _put(chosen_ptr, there, keys, places < ends)
    tl.store(counts_ptr + tl.arange(0, ROWS), tl.sum(lengths, 1).to(tl.int16))


@triton.jit
def enlist(work_ptr, number):
    """Add a block that has lists to those that wait for another kernel, in whatever order.

    There are first how many they are, and how many were taken by :func:`next_turn`.
    """
    place = tl.atomic_add(work_ptr, 1, sem="relaxed")
    tl.store(work_ptr + 2 + place, number)


@triton.jit
def turns(work_ptr, PARTS: tl.constexpr):
    """(the first of this program, where they end); each is one of the PARTS of a block.

    Programs go on by themselves: a GPU starts no more than one at a time, so that many that find
    nothing to do take longer than all that the others have to do.
    """
    return tl.program_id(0), tl.load(work_ptr) * PARTS


@triton.jit
def next_turn(work_ptr):
    """One that no other program has."""
    return tl.num_programs(0) + tl.atomic_add(work_ptr + 1, 1, sem="relaxed")


@triton.jit
def block_of_turn(work_ptr, turn, PARTS: tl.constexpr):
    """(the number that was enlisted, which of its parts)."""
    return tl.load(work_ptr + 2 + turn // PARTS), turn % PARTS


@triton.jit
def of_last(row, rows, queries):
    """The numbers of rows, but not beyond the last query; those there have no keys."""
    return row - tl.maximum(rows - queries + 1, 0)
