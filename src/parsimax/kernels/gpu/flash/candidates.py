"""Scores that lie above a first threshold, kept in lists.

A threshold that is found from below never falls, so that only these can have weight. Where they
are few, as they mostly are, keys are read once, and all steps towards the threshold look at the
lists. A query has one for each of the FOLDED columns of :func:`.blocks.fold`, so that a thread
appends to lists which no other writes: of scores or, if KEYS, of scores with their keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import INTERPRETED
from parsimax.kernels.gpu.newton import POWER

from . import problem
from .blocks import FOLDED, OF_KEYS, block_scores, unit, wide
from .weights import line, shares

FROM_BETA = tl.constexpr(problem.FROM_BETA)
FEW = tl.constexpr(24)  # blocks that are read again in less time than lists of scores alone take
FEW_OF_POWERS = tl.constexpr(4)  # which take longer than squares
_LOOK = tl.constexpr(16)  # blocks after which it is clear whether lists will be too short
AT_ONCE = tl.constexpr(8)  # scores of a list that are read together; HOLD is a multiple of it


@triton.jit
def worth_it(beta, count, KIND: tl.constexpr, KEPT_FROM: tl.constexpr):
    """Whether lists are likely to take less time than to read so many blocks once more.

    Where weights are no other powers, lists for fewer blocks than keys are kept for would save next
    to nothing, and as another way through the kernel they slow down all others.
    """
    if KIND == POWER:
        return (beta >= FROM_BETA) & (count > FEW_OF_POWERS)
    elif KEPT_FROM > 0:
        return count >= KEPT_FROM
    else:
        return count > FEW


@triton.jit
def take_place(taken_ptr, places):
    """One that no other program has; if there is none left, wait for it."""
    place = tl.program_id(0) % places
    while tl.atomic_cas(taken_ptr + place, 0, 1, sem="acquire") != 0:
        place = (place + 1) % places
    return place


@triton.jit
def give_place(taken_ptr, place):
    """Let others have it."""
    tl.debug_barrier()  # all have read what others may now write over
    tl.atomic_xchg(taken_ptr + place, 0, sem="release")


@triton.jit
def lists_of(ROWS: tl.constexpr):
    """Of all lists; the next score of one lies behind as many others as there are lists."""
    return tl.arange(0, ROWS)[:, None] * FOLDED + tl.arange(0, FOLDED)[None, :]


@triton.jit
def _halves(x, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """(ROWS, PARTS, FOLDED) into two with half as many parts; a thread has all parts of a list."""
    HALF: tl.constexpr = PARTS // 2
    return tl.split(tl.permute(tl.reshape(x, [ROWS, 2, HALF, FOLDED]), (0, 2, 3, 1)))


@triton.jit
def _append_above(
    s, number, a, b, ends, lists_ptr, ROWS: tl.constexpr, PARTS: tl.constexpr, KEYS: tl.constexpr
):
    """Write those of (ROWS, PARTS, FOLDED) scores that lie above; where lists then end.

    The first part of all keys has this number.
    """
    if PARTS > 1:
        HALF: tl.constexpr = PARTS // 2
        first, second = _halves(s, ROWS, PARTS)
        ends = _append_above(first, number, a, b, ends, lists_ptr, ROWS, HALF, KEYS)
        return _append_above(second, number + HALF, a, b, ends, lists_ptr, ROWS, HALF, KEYS)
    else:
        s = tl.reshape(s, [ROWS, FOLDED])
        return _write_above(s, number, tl.fma(s, a, b), ends, lists_ptr, ROWS * FOLDED, KEYS)


@triton.jit
def _write_above(s, number, v, ends, lists_ptr, STEP: tl.constexpr, KEYS: tl.constexpr):
    """Write the scores of which v is above 0, each where its list ends; where lists end then.

    As a store of Triton's all of them would first change threads, so that they lie side by side. Of
    64 scores that a warp has mostly none is above, and all but the comparison is left out.
    """
    if INTERPRETED:
        if KEYS:
            tl.store(_pairs(lists_ptr) + ends, _paired(s, number), mask=v > 0.0)
        else:
            tl.store(lists_ptr + ends, s, mask=v > 0.0)
        return tl.where(v > 0.0, ends + STEP, ends)
    else:
        SCORES: tl.constexpr = (
            " mad.wide.s32 place, $0, 4, $8; @one st.global.b32 [place], $2;"
            " mad.wide.s32 place, $1, 4, $9; @two st.global.b32 [place], $3;"
        )
        PAIRS: tl.constexpr = (
            " mad.wide.s32 place, $0, 8, $8; @one st.global.v2.b32 [place], {$2, $12};"
            " mad.wide.s32 place, $1, 8, $9; @two st.global.v2.b32 [place], {$3, $13};"
        )
        return tl.inline_asm_elementwise(
            "{ .reg .pred one, two, any; .reg .b64 place;"
            " setp.gt.f32 one, $4, 0f00000000; setp.gt.f32 two, $5, 0f00000000;"
            " or.pred any, one, two; vote.sync.any.pred any, any, 0xffffffff; @!any bra DONE;"
            + (PAIRS if KEYS else SCORES)
            + " @one add.s32 $0, $0, $10; @two add.s32 $1, $1, $11; DONE: }",
            "=&r,=&r,r,r,f,f,0,1,l,l,r,r,r,r",
            [
                s.to(tl.int32, bitcast=True), v, ends, lists_ptr.to(tl.int64),
                tl.full([], STEP, tl.int32), tl.full([], 0, tl.int32) + number,
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=2,
        )  # fmt: skip


@triton.jit
def _pairs(lists_ptr):
    """Scores with their keys have 64 bits."""
    return lists_ptr.to(tl.pointer_type(tl.int64))


@triton.jit
def _paired(s, number):
    bits = s.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return (wide(number) << 32) | bits


@triton.jit
def load_pairs(lists_ptr, here):
    """(scores, keys) of lists that have both; a list has one of the FOLDED keys of each part."""
    pairs = tl.load(_pairs(lists_ptr) + here)
    keys = (pairs >> 32).to(tl.int32) * FOLDED + here % FOLDED
    return pairs.to(tl.int32).to(tl.float32, bitcast=True), keys


@triton.jit
def gather(
    x, good, top, beta, q, k_ptr, k_row, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer, list_ptr, count, lists_ptr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, HOLD: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """(how long lists are, the longest one, whether they hold all that lies above x).

    Whether they will is asked after ever more blocks, since what is read in vain takes as long.
    """
    PARTS: tl.constexpr = COLUMNS // FOLDED
    starts = lists_of(ROWS)
    ends = starts
    a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
    b = tl.where(good, b, -float("inf"))
    last = starts + (HOLD - PARTS) * ROWS * FOLDED  # beyond, a block may not fit any more
    done, most, full = 0, 0, 0
    lengths = tl.zeros([ROWS, FOLDED], tl.int32)
    while (done < count) & (full == 0):
        until = tl.minimum(tl.where(count > 2 * _LOOK, tl.maximum(2 * done, _LOOK), count), count)
        for index in range(done, until):
            block = tl.load(list_ptr + index).to(tl.int32)
            s = block_scores(
                q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
                seen_ptr, seen_row, seen_column, inner, outer, CAUSAL, MASK,
                CAUSAL or not EVEN or MASK == OF_KEYS, EVEN, COLUMNS, WHOLE, SIZE,
            )  # fmt: skip
            limit = tl.where(ends <= last, b[:, None], -float("inf"))
            ends = _append_above(
                tl.reshape(s, [ROWS, PARTS, FOLDED]), block * PARTS, a, limit, ends, lists_ptr,
                ROWS, PARTS, KEYS,
            )  # fmt: skip
        lengths = (ends - starts) // (ROWS * FOLDED)
        most = tl.max(tl.max(lengths, 1), 0)
        # a list that may not have had room for the last block, or will not have for all of them
        too_many = (most > HOLD - PARTS) | (most * count > 2 * HOLD * until)
        full = tl.where(too_many, 1, 0)
        done = until
    tl.debug_barrier()
    return lengths, most, full == 0


@triton.jit
def _of_lists(first, lengths, lists_ptr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """(AT_ONCE, ROWS * FOLDED) scores from the first one on; -inf where lists have ended.

    Lists lie side by side, and so do the threads that read them: each has all of its own.
    """
    places = (first + tl.arange(0, AT_ONCE))[:, None]
    here = places * (ROWS * FOLDED) + tl.arange(0, ROWS * FOLDED)[None, :]
    # there is room for all of them, and a mask would have every number be read by itself
    ended = places >= tl.reshape(lengths, [ROWS * FOLDED])[None, :]
    if KEYS:
        s, _keys = load_pairs(lists_ptr, here)
    else:
        s = tl.load(lists_ptr + here)
    return tl.where(ended, -float("inf"), s)


@triton.jit
def first_of_lists(lengths, lists_ptr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """What :func:`sums` can look at again and again without reading it."""
    return _of_lists(0, lengths, lists_ptr, ROWS, KEYS)


@triton.jit
def _terms(s, a, b, beta, gamma, KIND: tl.constexpr, NEAR: tl.constexpr):
    p, u = shares(tl.fma(s, a, b[None, :]), beta, gamma, KIND, NEAR)
    return tl.sum(p, 0), tl.sum(u, 0)


@triton.jit
def sums(
    held, x, top, beta, gamma, scale, lengths, most, lists_ptr,
    MASK: tl.constexpr, KIND: tl.constexpr, NEAR: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """(mass up to a factor, minus its derivative) over what the lists hold."""
    a, b = line(top, x, unit(scale, MASK), beta, KIND, NEAR)
    b = tl.reshape(tl.broadcast_to(b[:, None], [ROWS, FOLDED]), [ROWS * FOLDED])
    totals, slopes = _terms(held, a, b, beta, gamma, KIND, NEAR)
    for first in range(AT_ONCE, most, AT_ONCE):
        s = _of_lists(first, lengths, lists_ptr, ROWS, KEYS)
        p, u = _terms(s, a, b, beta, gamma, KIND, NEAR)
        totals += p
        slopes += u
    totals, slopes = tl.reshape(totals, [ROWS, FOLDED]), tl.reshape(slopes, [ROWS, FOLDED])
    return tl.sum(totals, 1), tl.sum(slopes, 1)
