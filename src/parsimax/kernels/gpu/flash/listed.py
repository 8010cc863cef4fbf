"""The weighted sum of values straight from lists of scores, where these are short.

A block of 64 keys that has any weight mostly has it at a few keys a query. Where a threshold was
found from lists of scores and of their keys (see :mod:`.candidates`), the few values are read one
by one, each by the query that needs it, and no product is taken of all others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import INTERPRETED, rounded

from . import problem
from .blocks import FOLDED, unit
from .candidates import keys_of
from .weights import STEEP, line, shares

# What a kernel is to write
NOTHING = tl.constexpr(0)
CONTEXT = tl.constexpr(1)
TRAINING = tl.constexpr(2)  # w, too

LINE = tl.constexpr(128)  # scores of a query that there is room for
MOST_CHOSEN = tl.constexpr(problem.MOST_CHOSEN)
_MOVED = tl.constexpr(2)  # scores of a list that are moved together
_A_BLOCK = tl.constexpr(3)  # scores a query for which to read a block of keys takes as long


@triton.jit
def _put(pointer, x, inside):
    """A store by the threads that have x; Triton's would first lay numbers side by side."""
    SHORT: tl.constexpr = pointer.dtype.element_ty == tl.int16
    if INTERPRETED:
        tl.store(pointer, x.to(tl.int16) if SHORT else x, mask=inside)
    elif SHORT:
        tl.inline_asm_elementwise(
            "{ .reg .pred in; .reg .b16 half; setp.ne.s32 in, $3, 0; cvt.u16.u32 half, $2;"
            " @in st.global.b16 [$1], half; mov.b32 $0, 0; }",
            "=r,l,r,r",
            [pointer.to(tl.int64), x, inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred in; setp.ne.s32 in, $3, 0; @in st.global.b32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,r,r",
            [pointer.to(tl.int64), x.to(tl.int32, bitcast=True), inside.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def get(pointer):
    """A load by the threads that need it, each for itself; of 32 bits, or of 16 without a sign."""
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
def _line_up(
    lengths, most, lists_ptr, chosen_ptr, keep,
    ROWS: tl.constexpr, HOLD: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """Put the lists of each query one behind the other; where that is. The keys may be kept."""
    STEP: tl.constexpr = ROWS * FOLDED
    starts = tl.reshape(tl.cumsum(lengths, 1) - lengths, [1, STEP])
    lengths = tl.reshape(lengths, [1, STEP])
    kept = tl.where(keep, lengths, 0)
    of_list = tl.arange(0, STEP)[None, :]
    line_ptr = lists_ptr + 2 * HOLD * STEP
    for first in range(0, most, _MOVED):
        places = (first + tl.arange(0, _MOVED))[:, None]
        here = places * STEP + of_list
        there = (starts + places) * ROWS + of_list // FOLDED
        keys = tl.load(keys_of(lists_ptr, HOLD * STEP) + here)
        _put(line_ptr + there, tl.load(lists_ptr + here), places < lengths)
        _put(keys_of(line_ptr, LINE * ROWS) + there, keys, places < lengths)
        if TRAIN:
            _put(chosen_ptr + there, keys, places < kept)
    return line_ptr


@triton.jit
def _weighted(
    place, count, line_ptr, a, b, beta, gamma, v_ptr, v_row, parts, value_size,
    KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(p, u, value) of the score of every query at one place of its line; 0 beyond its end."""
    here = place * ROWS + tl.arange(0, ROWS)
    inside = place < count
    s = get(line_ptr + here).to(tl.float32, bitcast=True)
    key = get(keys_of(line_ptr, LINE * ROWS) + here)
    p, u = shares(tl.where(inside, tl.fma(s, a, b), 0.0), beta, gamma, KIND, NEAR)
    v = load_each(v_ptr, tl.where(inside, key, 0), v_row, p > 0.0, parts, value_size, WHOLE)
    return p, u, v


@triton.jit
def write_output(
    x, top, beta, gamma, scale, lengths, most, blocks, lists_ptr, rows, queries, writing,
    MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr,
    HOLD: tl.constexpr, OUTPUT: tl.constexpr, VALUES: tl.constexpr, CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Context and w, as :mod:`.output` has them; 0 if it is left to that, which may be quicker."""
    v_ptr, v_row, value_size, out_ptr, mean_ptr, first_row, step, chosen_ptr, count_ptr = writing
    TRAIN: tl.constexpr = OUTPUT == TRAINING
    longest = tl.max(tl.sum(lengths, 1), 0)
    written = 0
    if longest <= tl.minimum(_A_BLOCK * blocks, LINE):
        # the backward takes longer for a score: it reads a key and a value
        keep = longest <= tl.minimum(blocks * 3 // 2, MOST_CHOSEN)
        if KIND == STEEP:  # there, it needs the very same scores, to the last digit
            keep = longest < 0
        line_ptr = _line_up(lengths, most, lists_ptr, chosen_ptr, keep, ROWS, HOLD, TRAIN)
        a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
        # Through memory, so that what is found for a score is where the values of its key are: the
        # threads that have these numbers would have it be exchanged for every score.
        here = tl.arange(0, ROWS)
        of_rows_ptr = line_ptr + 2 * LINE * ROWS
        tl.store(of_rows_ptr + here, b)
        tl.store(keys_of(of_rows_ptr, ROWS) + here, tl.sum(lengths, 1))
        if TRAIN:
            tl.store(count_ptr + here, tl.where(keep, tl.sum(lengths, 1), -1).to(tl.int16))
        tl.debug_barrier()
        b = get(of_rows_ptr + here).to(tl.float32, bitcast=True)
        count = get(keys_of(of_rows_ptr, ROWS) + here)
        for part in range(VALUES // CHUNK):
            parts = part * CHUNK + tl.arange(0, CHUNK)
            out = tl.zeros([ROWS, CHUNK], tl.float32)
            mean = tl.zeros([ROWS, CHUNK], tl.float32)
            mass = tl.zeros([ROWS], tl.float32)
            slope = tl.zeros([ROWS], tl.float32)
            for place in range(0, longest, 2):  # two, so that one need not wait for the other
                p, u, v = _weighted(
                    place, count, line_ptr, a, b, beta, gamma, v_ptr, v_row, parts, value_size,
                    KIND, NEAR, ROWS, WHOLE,
                )  # fmt: skip
                next_p, next_u, next_v = _weighted(
                    place + 1, count, line_ptr, a, b, beta, gamma, v_ptr, v_row, parts, value_size,
                    KIND, NEAR, ROWS, WHOLE,
                )  # fmt: skip
                out = tl.fma(next_p[:, None], next_v, tl.fma(p[:, None], v, out))
                mass += p + next_p
                if TRAIN:
                    mean = tl.fma(next_u[:, None], next_v, tl.fma(u[:, None], v, mean))
                    slope += u + next_u
            inside = (rows < queries)[:, None] & (parts < value_size)[None, :]
            places = (first_row + rows * step)[:, None] * value_size + parts[None, :]
            out = out / tl.where(mass > 0.0, mass, 1.0)[:, None]
            tl.store(out_ptr + places, rounded(out, out_ptr.dtype.element_ty), mask=inside)
            if TRAIN:
                mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
                tl.store(mean_ptr + places, mean, mask=inside)
        written = 1
    return written
