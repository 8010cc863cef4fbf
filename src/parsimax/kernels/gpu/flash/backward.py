"""Gradients over live blocks: of queries and alpha by blocks of queries, the rest by keys."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.entmax_backward import _direct
from parsimax.kernels.gpu.quick import quick

from .blocks import hide_at_edges, load_rows, product, whole_blocks, wide
from .weights import weigh


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def query_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    g_ptr, mean_ptr, gq_ptr, against_ptr, change_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, WANT: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Also <dO, w>, one value a query, for the other kernel."""
    row_block = row_blocks - 1 - tl.program_id(1)
    item_head = tl.program_id(0)
    item, head = item_head // heads, item_head % heads
    rows = row_block * ROWS + tl.arange(0, ROWS)
    row = wide(item_head) * queries + rows
    if LENGTHS:
        keys = tl.minimum(tl.load(lengths_ptr + item), keys)
    beta = value
    if TENSOR:
        beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
    inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
    q = load_rows(
        q_ptr + wide(item) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(item) * k_item + wide(head // group) * k_head
    v_here = v_ptr + wide(item) * v_item + wide(head // group) * v_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    start = wide(item_head) * queries * value_size
    g = load_rows(g_ptr + start, rows, value_size, queries, value_size, WHOLE, VALUES)
    mean = load_rows(mean_ptr + start, rows, value_size, queries, value_size, WHOLE, VALUES)
    against = tl.sum(g.to(tl.float32) * mean.to(tl.float32), 1)
    tl.store(against_ptr + row, against, mask=rows < queries)
    top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
    x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
    good = (top > -float("inf")) & (top < float("inf"))
    largest = tl.where(good, top, 0.0)
    inner, outer = whole_blocks(
        row_block, offset, queries, keys, left, right, CAUSAL, ROWS, COLUMNS
    )
    gq = tl.zeros([ROWS, SIZE], tl.float32)
    changes = tl.zeros([ROWS], tl.float32)
    line = wide(item_head) * row_blocks + row_block
    count = tl.load(count_ptr + line)
    for index in range(count):
        block = tl.load(list_ptr + line * key_blocks + index).to(tl.int32)
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
        k = load_rows(k_here, columns, k_row, keys, size, WHOLE, SIZE)
        v = load_rows(v_here, columns, v_row, keys, value_size, WHOLE, VALUES)
        s = product(q, tl.trans(k)) * scale
        s = hide_at_edges(
            s, block, inner, outer, rows, columns, offset, queries, keys, left, right,
            seen_here, seen_row, seen_column, CAUSAL, MASK,
        )  # fmt: skip
        p, u = weigh(s, largest, x, beta, KIND, NEAR, TENSOR)
        centred = product(g, tl.trans(v)) - against[:, None]
        gs = tl.where(p > 0.0, u * centred, 0.0)
        gq += product(gs.to(k.dtype), k)
        if WANT:
            direct = _direct(p, u, beta, inverse_square, KIND)
            changes += tl.sum(tl.where(p > 0.0, centred * direct, 0.0), 1)
    parts = tl.arange(0, SIZE)
    inside = (rows < queries)[:, None] & (parts < size)[None, :]
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan"))
    gq = gq * scale + fill[:, None]
    tl.store(
        gq_ptr + row[:, None] * size + parts[None, :],
        rounded(gq, gq_ptr.dtype.element_ty), mask=inside,
    )  # fmt: skip
    if WANT:
        tl.store(change_ptr + line, tl.sum(changes + fill, 0))


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def key_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    g_ptr, against_ptr, gk_ptr, gv_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """One block of keys of one *key* head: the query heads that share it add up here."""
    block = tl.program_id(1)
    item_head = tl.program_id(0)
    key_heads = heads // group
    item, key_head = item_head // key_heads, item_head % key_heads
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    all_keys = keys
    if LENGTHS:
        keys = tl.minimum(tl.load(lengths_ptr + item), keys)
    k = load_rows(
        k_ptr + wide(item) * k_item + wide(key_head) * k_head,
        columns, k_row, keys, size, WHOLE, SIZE,
    )  # fmt: skip
    v = load_rows(
        v_ptr + wide(item) * v_item + wide(key_head) * v_head,
        columns, v_row, keys, value_size, WHOLE, VALUES,
    )  # fmt: skip
    gk = tl.zeros([COLUMNS, SIZE], tl.float32)
    gv = tl.zeros([COLUMNS, VALUES], tl.float32)
    for member in range(group):
        head = key_head * group + member
        beta = value
        if TENSOR:
            beta = (tl.load(a_ptr + head) - 1.0).to(tl.float32)
        query_head = wide(item) * heads + head
        q_here = q_ptr + wide(item) * q_item + wide(head) * q_head
        seen_here = seen_ptr
        if MASK > 0:
            seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
        g_here = g_ptr + query_head * queries * value_size
        line = query_head * key_blocks + block
        count = tl.load(count_ptr + line)
        for index in range(count):
            row_block = tl.load(list_ptr + line * row_blocks + index).to(tl.int32)
            rows = row_block * ROWS + tl.arange(0, ROWS)
            row = query_head * queries + rows
            q = load_rows(q_here, rows, q_row, queries, size, WHOLE, SIZE)
            g = load_rows(g_here, rows, value_size, queries, value_size, WHOLE, VALUES)
            top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
            x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
            against = tl.load(against_ptr + row, mask=rows < queries, other=0.0)
            good = (top > -float("inf")) & (top < float("inf"))
            s = product(q, tl.trans(k)) * scale
            inner, outer = whole_blocks(
                row_block, offset, queries, keys, left, right, CAUSAL, ROWS, COLUMNS
            )
            s = hide_at_edges(
                s, block, inner, outer, rows, columns, offset, queries, keys, left, right,
                seen_here, seen_row, seen_column, CAUSAL, MASK,
            )  # fmt: skip
            p, u = weigh(s, tl.where(good, top, 0.0), x, beta, KIND, NEAR, TENSOR)
            gv += product(tl.trans(p.to(g.dtype)), g)
            centred = product(g, tl.trans(v)) - against[:, None]
            gs = tl.where(p > 0.0, u * centred, 0.0)
            gk += product(tl.trans(gs.to(q.dtype)), q)
    parts, values = tl.arange(0, SIZE), tl.arange(0, VALUES)
    row = wide(item_head) * all_keys + columns
    tl.store(
        gk_ptr + row[:, None] * size + parts[None, :],
        rounded(gk * scale, gk_ptr.dtype.element_ty),
        mask=(columns < all_keys)[:, None] & (parts < size)[None, :],
    )  # fmt: skip
    tl.store(
        gv_ptr + row[:, None] * value_size + values[None, :],
        rounded(gv, gv_ptr.dtype.element_ty),
        mask=(columns < all_keys)[:, None] & (values < value_size)[None, :],
    )  # fmt: skip
