"""Tiles of scores: where they lie, and which keys a query may see.

A program works on some queries of one head of one item, and looks at blocks of their keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.products import product

OF_KEYS = tl.constexpr(3)  # of MASK: bool, the same for all heads and queries; see spans.py
BITS = tl.constexpr(32)  # of a word of such a mask
FOLDED = tl.constexpr(8)  # columns after which a product's layout begins again with the same thread


@triton.jit
def wide(x):
    """An index as a 64-bit number; in the interpreter, that of a loop is a plain int."""
    return tl.full([], 0, tl.int64) + x


@triton.jit
def block_of_head(blocks):
    """(block, which head of which item) of a program; one of a head follows the other.

    The grid has one dimension, since the others may not be larger than 65,535.
    """
    program = tl.program_id(0)
    return program % blocks, program // blocks


@triton.jit
def block_of_slot(slot, tile, tall_blocks, GRAINS: tl.constexpr):
    """The same of queries, where slots are counted from the tall block ``tile`` on.

    Those with many keys come first where it is causal.
    """
    tall = tile + slot // GRAINS
    block = (tall_blocks - 1 - tall % tall_blocks) * GRAINS + slot % GRAINS
    return block, tall // tall_blocks


@triton.jit
def numbers_of(item_head, at, head, heads, count, PACKED: tl.constexpr):
    """Where the numbers of a head's queries begin: (items, heads, queries).

    Of packed sequences, each has (heads, its queries), and ``at`` is its first query.
    """
    if PACKED:
        return wide(at) * heads + wide(head) * count
    else:
        return wide(item_head) * count


@triton.jit
def rows_of(start, at, head, heads, BY_ROWS: tl.constexpr):
    """(first, step) of the rows of a head in a result: (items, heads, rows), or (rows, heads).

    ``at`` is the first of them, counted from that of the first item.
    """
    if BY_ROWS:
        return wide(at) * heads + head, heads
    else:
        return start, 1


@triton.jit
def fold(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums over those columns of a tile of scores that a thread has itself: (ROWS, FOLDED).

    What is left is added up once, after the last tile, and not between threads for each.
    """
    return tl.sum(tl.reshape(x, [ROWS, COLUMNS // FOLDED, FOLDED]), 1)


@triton.jit
def load_rows(
    pointer, rows, stride, count, size, WHOLE: tl.constexpr, SIZE: tl.constexpr,
    ALL: tl.constexpr = False,
):  # fmt: skip
    """Rows (len(rows), SIZE), zero from ``count`` on and beyond ``size``.

    WHOLE promises that the size is SIZE, ALL that there are all rows, and so they save a mask.
    """
    parts = tl.arange(0, SIZE)
    offsets = rows.to(tl.int64)[:, None] * stride + parts[None, :]
    if ALL and WHOLE:
        return tl.load(pointer + offsets)
    else:
        inside = (rows < count)[:, None]
        if not WHOLE:
            inside = inside & (parts < size)[None, :]
        return tl.load(pointer + offsets, mask=inside, other=0.0)


@triton.jit
def load_block(
    pointer, block, stride, count, size,
    SIDE: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr, ALL: tl.constexpr = False,
):  # fmt: skip
    """Rows of a block of SIDE; where they lie within it is known before a loop over blocks."""
    first = block * SIDE
    return load_rows(
        pointer + wide(first) * stride, tl.arange(0, SIDE), stride, count - first, size,
        WHOLE, SIZE, ALL,
    )  # fmt: skip


@triton.jit
def visible_range(
    first, last, offset, first_key, keys, left, right, CAUSAL: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Blocks [start, stop) of keys from ``first_key`` that queries ``first`` to ``last`` may see.

    Query i stands at key i + offset and sees from ``left`` before it to ``right`` after it; both
    count only if CAUSAL, which stands for any band.
    """
    if CAUSAL:
        low = tl.maximum(first + offset - left, first_key)
        high = tl.minimum(last + offset + right + 1, keys)
        start = tl.minimum(low // COLUMNS, tl.cdiv(keys, COLUMNS))
        return start, tl.maximum(tl.cdiv(tl.maximum(high, 0), COLUMNS), start)
    else:
        return first_key // COLUMNS, tl.cdiv(keys, COLUMNS)


@triton.jit
def whole_range(
    first, last, offset, run_start, run_stop, left, right,
    CAUSAL: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Blocks [start, stop) in which all queries see all keys, so that nothing has to be masked.

    Nothing but the band hides keys from ``run_start`` to ``run_stop``.
    """
    stop = run_stop // COLUMNS
    if CAUSAL:
        low = tl.maximum(last + offset - left, run_start)
        high = tl.minimum(first + offset + right + 1, run_stop)
        start = tl.cdiv(low, COLUMNS)
        stop = tl.minimum(tl.maximum(high, 0) // COLUMNS, stop)
        return start, tl.maximum(stop, start)
    else:
        return tl.cdiv(run_start, COLUMNS), stop


@triton.jit
def _seen_keys(words_ptr, columns):
    """Whether the bits of these columns are set; the words are those of their block.

    They are read one by one: of a vector, every thread would read all that it needs of it.
    Remainders, and not the bits that they are: these would be known before a loop over blocks, and
    be kept in registers all through it.
    """
    word = tl.load(words_ptr)
    for following in tl.static_range(1, columns.numel // BITS):
        later = tl.load(words_ptr + following)
        word = tl.where(columns % columns.numel >= following * BITS, later, word)
    return (word >> (columns % BITS)) & 1 != 0


@triton.jit
def hide(
    s, rows, columns, offset, queries, keys, left, right, seen_ptr, seen_row, seen_column,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Scores with -inf where a key may not be seen.

    MASK is 0 for none, 1 for bool, 2 for added, and OF_KEYS for the bits of this block of keys. Of
    rows and columns one stands and one lies, as the tile of scores has them.
    """
    # where the keys of a query end is found once for it, not for each key
    end = tl.where(rows < queries, keys, 0)
    if CAUSAL:
        here = rows + offset
        visible = (columns < tl.minimum(here + right + 1, end)) & (columns >= here - left)
    else:
        visible = columns < end
    if MASK == OF_KEYS:
        visible = visible & _seen_keys(seen_ptr, columns)
    elif MASK > 0:
        offsets = rows.to(tl.int64) * seen_row + columns.to(tl.int64) * seen_column
        mask = tl.load(seen_ptr + offsets, mask=visible, other=0)
        if MASK == 1:
            visible = visible & (mask != 0)
        else:
            s = s + mask.to(tl.float32)
    return tl.where(visible, s, -float("inf"))


@triton.jit
def tile_scores(
    products, scale, block, inner, outer, rows, columns, offset, queries, keys, left, right,
    seen_ptr, seen_row, seen_column, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    EDGE: tl.constexpr = True,
):  # fmt: skip
    """Scores in units of :func:`unit`: products are multiplied only if a mask is added to them.

    Nothing is hidden in a block from ``inner`` to ``outer`` if there is no mask, or only one of
    keys; EDGE is False if it is known to be one.
    """
    if MASK == 2:
        products = products * scale
    ANYWHERE: tl.constexpr = MASK == 1 or MASK == 2
    if ANYWHERE or EDGE:  # noqa: SIM102 (the first is known when it is compiled)
        if ANYWHERE or (block < inner) | (block >= outer):
            here = seen_ptr  # a name of its own, or the branch would have two results
            if MASK == OF_KEYS:
                here += block * columns.numel // BITS
            products = hide(
                products, rows, columns, offset, queries, keys, left, right,
                here, seen_row, seen_column, CAUSAL, MASK,
            )  # fmt: skip
    return products


@triton.jit
def unit(scale, MASK: tl.constexpr):
    """What one unit of :func:`tile_scores` is worth."""
    if MASK == 2:
        return scale * 0.0 + 1.0
    else:
        return scale


@triton.jit
def whole_blocks(row_block, offset, queries, run_start, run_stop, left, right,
                 CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Blocks [inner, outer) that a block of queries sees whole; none if it is not whole itself."""
    first = row_block * ROWS
    inner, outer = whole_range(
        first, first + ROWS - 1, offset, run_start, run_stop, left, right, CAUSAL, COLUMNS
    )  # fmt: skip
    return inner, tl.where(first + ROWS <= queries, outer, inner)


@triton.jit
def block_scores(
    q, k_ptr, k_row, block, rows, scale, keys, size, queries, offset, left, right,
    seen_ptr, seen_row, seen_column, inner, outer,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, EDGE: tl.constexpr, ALL: tl.constexpr,
    COLUMNS: tl.constexpr, WHOLE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """(rows, COLUMNS) of one block of keys; hidden ones are -inf."""
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    k = load_block(k_ptr, block, k_row, keys, size, COLUMNS, WHOLE, SIZE, ALL)
    return tile_scores(
        product(q, tl.trans(k)), scale, block, inner, outer, rows[:, None], columns[None, :],
        offset, queries, keys, left, right, seen_ptr, seen_row, seen_column, CAUSAL, MASK, EDGE,
    )  # fmt: skip
