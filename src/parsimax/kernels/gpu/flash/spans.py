"""Bool masks of keys alone, as of padding: what they hide is told by few numbers an item.

Keys before the first and after the last that is seen are never looked at. Of the others, a run
without a hidden one needs no mask; where padding is all that a mask hides, that is the whole rest.
In blocks that the run has no part in, or ends in, a key has one bit, the same for all queries.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.quick import quick

from .blocks import BITS, wide

FIELDS = 4  # of an item
_SPAN_FIELDS = tl.constexpr(FIELDS)
SPANS = tl.constexpr(2)  # LENGTHS if its numbers are where lengths would be


@triton.jit
def span_of(lengths_ptr, item, keys, LENGTHS: tl.constexpr):
    """What an item sees of its keys, apart from bands: two ranges.

    Returns:
        The end of the keys, and the first; where a run in which all are seen begins, and ends.
    """
    if LENGTHS == SPANS:
        here = lengths_ptr + item * _SPAN_FIELDS
        return tl.load(here), tl.load(here + 1), tl.load(here + 2), tl.load(here + 3)
    else:
        if LENGTHS:
            keys = tl.minimum(tl.load(lengths_ptr + item), keys)
        return keys, keys * 0, keys * 0, keys


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


@quick
@triton.jit(do_not_specialize=["keys"])
def spans_kernel(
    seen_ptr, lengths_ptr, spans_ptr, words_ptr, keys, words, seen_item, seen_column,
    LENGTHS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The numbers of one item, with the longest run there is, and its bits in so many words."""
    item = tl.program_id(0)
    words_ptr += wide(item) * words
    if LENGTHS:
        keys = tl.minimum(tl.load(lengths_ptr + item), keys)
    seen_ptr += wide(item) * seen_item
    end, begin, longest, run_end = keys * 0, keys, keys * 0, keys * 0
    hidden = keys * 0 - 1  # the last that is
    for first in range(0, words * BITS, MANY):
        places = first + tl.arange(0, MANY)
        mask = tl.load(seen_ptr + places.to(tl.int64) * seen_column, mask=places < keys, other=0)
        seen = mask != 0
        bits = tl.reshape(tl.where(seen, 1, 0) << (places % BITS), [MANY // BITS, BITS])
        word = first // BITS + tl.arange(0, MANY // BITS)
        tl.store(words_ptr + word, tl.sum(bits, 1), mask=word < words)
        begin = tl.minimum(begin, tl.min(tl.where(seen, places, keys), 0))
        end = tl.maximum(end, tl.max(tl.where(seen, places + 1, 0), 0))
        before = tl.associative_scan(tl.where(seen, hidden, places), 0, _later)
        run = places - before
        most = tl.max(run, 0)
        last = tl.max(tl.where(run == most, places + 1, 0), 0)
        run_end = tl.where(most > longest, last, run_end)
        longest = tl.maximum(longest, most)
        hidden = tl.max(before, 0)
    here = spans_ptr + item * _SPAN_FIELDS
    tl.store(here, end)
    tl.store(here + 1, tl.minimum(begin, end))
    tl.store(here + 2, run_end - longest)
    tl.store(here + 3, run_end)
