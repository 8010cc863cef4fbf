"""Pairs of blocks between which there is little that has no weight.

Such a pair is one tile for a program of twice as many threads, which looks at all that it may see
and at no list. What it reads of the other side then comes from the cache once and not twice, and
that is what kernels with large heads wait for. All other blocks have programs of their own, which
share nothing, since blocks side by side need not have weight at the same places.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import visible_range, wide
from .spans import span_of

TOGETHER = tl.constexpr(64)  # pairs that a program looks at before it works on some of them

# Who works on such pairs
NOBODY = tl.constexpr(0)  # every program has one block
OTHERS = tl.constexpr(1)  # so has this one, unless it is one of a pair
THESE = tl.constexpr(2)  # this one: few programs, which look for them


@triton.jit
def _crowded(line, both, count_ptr, begin, end):
    """Whether two blocks have weight in three quarters of those from ``begin`` to ``end``."""
    live = tl.load(count_ptr + line) + tl.load(count_ptr + line + 1, mask=both, other=0)
    return both & (live * 2 >= (end - begin) * 3)


@triton.jit
def crowded_queries(
    pair, item_head, item, queries, keys, row_blocks, offset, left, right, lengths_ptr, count_ptr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(whether two blocks of ROWS queries are such a pair, the blocks of keys [begin, end))."""
    keys, first_key, _run_start, _run_stop = span_of(lengths_ptr, item, keys, LENGTHS)
    first, last = pair * 2 * ROWS, tl.minimum(pair * 2 * ROWS + 2 * ROWS, queries) - 1
    begin, end = visible_range(first, last, offset, first_key, keys, left, right, CAUSAL, COLUMNS)
    line = wide(item_head) * row_blocks + pair * 2
    return _crowded(line, pair * 2 + 1 < row_blocks, count_ptr, begin, end), begin, end


@triton.jit
def crowded_keys(
    pair, query_head, group, queries, key_blocks, offset, left, right, count_ptr,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same of two blocks of keys, for all heads of queries that share them from the first."""
    begin, end = 0, tl.cdiv(queries, ROWS)
    if CAUSAL:
        low = tl.maximum(pair * 2 * COLUMNS - offset - right, 0)
        high = tl.minimum((pair * 2 + 2) * COLUMNS - offset + left, queries)
        begin = tl.minimum(low // ROWS, end)
        end = tl.maximum(tl.cdiv(tl.maximum(high, 0), ROWS), begin)
    both = pair * 2 + 1 < key_blocks
    all_are = both
    for member in range(group):
        line = (query_head + member) * key_blocks + pair * 2
        all_are = all_are & _crowded(line, both, count_ptr, begin, end)
    return all_are, begin, end


@triton.jit
def pairs_of_program(first, total):
    """(pairs among which a program looks for its own, whether there are so many)."""
    pairs = first + tl.arange(0, TOGETHER) * tl.num_programs(0)
    return tl.where(pairs < total, pairs, 0), pairs < total


@triton.jit
def nth_of(values, chosen, index):
    """The value at place ``index``, from 0, among those with ``chosen`` = 1."""
    place = tl.cumsum(chosen, 0) - chosen
    return tl.max(tl.where((chosen > 0) & (place == index), values, 0), 0)


@triton.jit
def nth_block(blocks, index, PAIRS: tl.constexpr):
    """Of a list, or from the first on."""
    if PAIRS == THESE:
        return blocks + index
    else:
        return tl.load(blocks + index).to(tl.int32)
