"""The weighted sum over live blocks, and the one that the backward needs.

The gradient in the scores of a query is u (g - m), where u = p^(2 - alpha), g_j = <dO, v_j> and m
is the mean of g under u. That mean is <dO, w> with w the mean of the values under u: it is added up
here, beside the output, so that the backward needs no pass of its own for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import rounded
from parsimax.kernels.gpu.quick import quick

from .blocks import hide_at_edges, load_rows, product, whole_blocks, wide
from .weights import weigh


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def output_kernel(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, lengths_ptr, top_ptr, x_ptr, list_ptr, count_ptr,
    out_ptr, mean_ptr,
    scale, value, heads, group, queries, keys, size, value_size, row_blocks, key_blocks,
    offset, left, right,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, TRAIN: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, LENGTHS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr,
    SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Context, and w if TRAIN, of one block of queries."""
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
    q = load_rows(
        q_ptr + wide(item) * q_item + wide(head) * q_head,
        rows, q_row, queries, size, WHOLE, SIZE,
    )  # fmt: skip
    k_here = k_ptr + wide(item) * k_item + wide(head // group) * k_head
    v_here = v_ptr + wide(item) * v_item + wide(head // group) * v_head
    seen_here = seen_ptr
    if MASK > 0:
        seen_here = seen_ptr + wide(item) * seen_item + wide(head) * seen_head
    top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
    x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
    good = (top > -float("inf")) & (top < float("inf"))
    largest = tl.where(good, top, 0.0)
    inner, outer = whole_blocks(
        row_block, offset, queries, keys, left, right, CAUSAL, ROWS, COLUMNS
    )
    out = tl.zeros([ROWS, VALUES], tl.float32)
    mean = tl.zeros([ROWS, VALUES], tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    slope = tl.zeros([ROWS], tl.float32)
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
        out += product(p.to(v.dtype), v)
        mass += tl.sum(p, 1)
        if TRAIN:
            mean += product(u.to(v.dtype), v)
            slope += tl.sum(u, 1)
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan"))
    if TENSOR:
        fill += tl.where((beta >= 0.0) & (beta < 1e30), 0.0, float("nan"))
    parts = tl.arange(0, VALUES)
    inside = (rows < queries)[:, None] & (parts < value_size)[None, :]
    places = row[:, None] * value_size + parts[None, :]
    out = out / tl.where(mass > 0.0, mass, 1.0)[:, None] + fill[:, None]
    tl.store(out_ptr + places, rounded(out, out_ptr.dtype.element_ty), mask=inside)
    if TRAIN:
        mean = mean / tl.where(slope > 0.0, slope, 1.0)[:, None]
        tl.store(mean_ptr + places, rounded(mean, mean_ptr.dtype.element_ty), mask=inside)
