"""Sequences packed one after the other: which of them a block belongs to.

Blocks of queries are counted through all sequences, and so are blocks of keys; a table says of each
where its sequence lies. It is made on the GPU, so that nobody waits for lengths: there is room for
as many blocks as there can be, and those at its end that there are not have no queries and no keys.

Starts that cannot be are taken for one sequence that is wrong: all its results are NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.quick import quick

FIELDS = 8  # of a line of the table
_SEQUENCE_FIELDS = tl.constexpr(FIELDS)


@triton.jit
def sequence(table_ptr, place, PACKED: tl.constexpr):
    """What the table says of one block.

    PACKED is 1 if query i stands at key i of its sequence, and 2 if the last at the last.

    Returns:
        Which block of its sequence it is; the first query and how many there are; the first key,
        how many there are, and may be seen; the offset of the queries; -inf, or NaN if wrong.
    """
    line = table_ptr + place * _SEQUENCE_FIELDS
    block = tl.load(line)
    first_query, queries = tl.load(line + 1), tl.load(line + 2)
    first_key, keys, seen = tl.load(line + 3), tl.load(line + 4), tl.load(line + 5)
    offset = queries * 0
    if PACKED == 2:
        offset = keys - queries
    nothing = tl.where(tl.load(line + 7) > 0, float("nan"), -float("inf"))
    return block, first_query, queries, first_key, keys, seen, offset, nothing


@triton.jit
def blocks_of_queries(table_ptr, place, ROWS: tl.constexpr):
    """(block of keys of its sequence, the sequence's first block of queries, how many it has)."""
    line = table_ptr + place * _SEQUENCE_FIELDS
    return tl.load(line), tl.load(line + 6), tl.cdiv(tl.load(line + 2), ROWS)


@triton.jit
def _write(
    table_ptr, begin, count, stop, first_query, queries, first_key, keys, seen, first_row, wrong,
    MANY: tl.constexpr,
):  # fmt: skip
    """Lines of ``count`` blocks from ``begin``, and of blocks that are none up to ``stop``."""
    for first in range(0, stop - begin, MANY):
        block = first + tl.arange(0, MANY)
        line = table_ptr + (begin + block) * _SEQUENCE_FIELDS
        inside = begin + block < stop
        real = tl.where(block < count, 1, 0)
        tl.store(line, block * real, mask=inside)
        tl.store(line + 1, first_query * real, mask=inside)
        tl.store(line + 2, queries * real, mask=inside)
        tl.store(line + 3, first_key * real, mask=inside)
        tl.store(line + 4, keys * real, mask=inside)
        tl.store(line + 5, seen * real, mask=inside)
        tl.store(line + 6, first_row * real, mask=inside)
        tl.store(line + 7, wrong * real, mask=inside)


@quick
@triton.jit(do_not_specialize=["items", "all_queries", "all_keys", "most_queries", "most_keys"])
def tables_kernel(
    q_starts_ptr, k_starts_ptr, rows_ptr, columns_ptr,
    items, all_queries, all_keys, most_queries, most_keys, row_room, column_room,
    ROWS: tl.constexpr, TALL: tl.constexpr, COLUMNS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Both tables, one sequence a program; blocks of ROWS queries come in groups of TALL."""
    item = tl.program_id(0)
    wrong = 0
    first_row = 0
    first_column = 0
    for first in range(0, items, MANY):
        index = first + tl.arange(0, MANY)
        inside = index < items
        q_from = tl.load(q_starts_ptr + index, mask=inside, other=0)
        q_to = tl.load(q_starts_ptr + index + 1, mask=inside, other=0)
        k_from = tl.load(k_starts_ptr + index, mask=inside, other=0)
        k_to = tl.load(k_starts_ptr + index + 1, mask=inside, other=0)
        queries, keys = q_to - q_from, k_to - k_from
        odd = (queries < 0) | (queries > most_queries) | (keys < 0) | (keys > most_keys)
        odd = odd | ((index == 0) & ((q_from != 0) | (k_from != 0)))
        odd = odd | ((index == items - 1) & ((q_to != all_queries) | (k_to != all_keys)))
        wrong += tl.sum(tl.where(odd & inside, 1, 0), 0)
        before = inside & (index < item)
        rows = tl.cdiv(queries, TALL) * (TALL // ROWS)
        first_row += tl.sum(tl.where(before, rows, 0).to(tl.int32), 0)
        first_column += tl.sum(tl.where(before, tl.cdiv(keys, COLUMNS), 0).to(tl.int32), 0)
    first_query = tl.load(q_starts_ptr + item).to(tl.int32)
    queries = tl.load(q_starts_ptr + item + 1).to(tl.int32) - first_query
    first_key = tl.load(k_starts_ptr + item).to(tl.int32)
    keys = tl.load(k_starts_ptr + item + 1).to(tl.int32) - first_key
    seen = keys
    last = items - 1
    if wrong > 0:  # one sequence has all of it and sees nothing, and the others are empty
        wrong, last, first_query, first_key, seen = 1, 0, 0, 0, 0
        first_row, first_column = 0, 0
        queries = tl.where(item == 0, all_queries, 0)
        keys = tl.where(item == 0, all_keys, 0)
    rows = tl.cdiv(queries, TALL) * (TALL // ROWS)
    columns = tl.cdiv(keys, COLUMNS)
    _write(
        rows_ptr, first_row, rows, tl.where(item == last, row_room, first_row + rows),
        first_query, queries, first_key, keys, seen, first_row, wrong, MANY,
    )  # fmt: skip
    _write(
        columns_ptr, first_column, columns,
        tl.where(item == last, column_room, first_column + columns),
        first_query, queries, first_key, keys, seen, first_row, wrong, MANY,
    )  # fmt: skip
