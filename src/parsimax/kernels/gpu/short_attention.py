"""Attention over few keys, fused: scores, entmax and the weighted sum in one kernel.

A program holds all keys of one head of one item, and some of its queries: their scores never leave
the registers. The backward computes the weights again from the scores and the thresholds that the
forward kept, and adds up the gradients of keys and values itself, so that its result is the same
every time. Products in half precision take the weights in two parts, the second being what rounding
took from the first: they are as good as in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .approx import INTERPRETED, exp2, reciprocal, rounded
from .entmax_backward import _direct, _weights
from .newton import (
    ALWAYS,
    ENTMAX15,
    NEAR_ONE,
    NEVER,
    POWER,
    SOFTMAX,
    SPARSEMAX,
    climb,
    relative,
    start,
    terms,
)
from .quick import quick
from .reductions import maximum, sum2
from .sizes import pieces, power_of_two

MOST_KEYS = 128
LARGEST_HEAD = 128
_LOG2E = tl.constexpr(1.4426950408889634)
_ENOUGH = tl.constexpr(1e-6)  # surplus of mass that ends the search for a threshold
_HALVINGS = tl.constexpr(40)


# --- one tile of scores ---------------------------------------------------------------------------


@triton.jit
def _product(a, b):
    """In float32: what Triton would round to TF32, and its interpreter would get wrong, is not."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _precise(a, b):
    """``a @ b`` for float32 ``a``, and ``b`` of any dtype, in two parts if that is half."""
    if INTERPRETED or b.dtype == tl.float32:
        return _product(a, b)
    else:
        high = a.to(b.dtype)
        low = (a - high.to(tl.float32)).to(b.dtype)
        return _product(high, b) + _product(low, b)


@triton.jit
def _halve(y, good, beta, gamma):
    """The largest weight above alpha = 2, where Newton has no slope to hold on to."""
    low = tl.zeros([y.shape[1]], tl.float32)
    high = low + 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        w = tl.maximum(tl.fma(y, beta[None, :, None], middle[None, :, None]), 0.0)
        q = tl.where(w > 0.0, exp2(gamma[None, :, None] * tl.log2(tl.maximum(w, 1e-37))), 0.0)
        enough = tl.sum(tl.sum(q, 0), 1) >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def _unknown(s, largest, good, beta, KIND: tl.constexpr, TENSOR: tl.constexpr, NEAR: tl.constexpr):
    """What :func:`_shares` needs besides the largest score, for each row."""
    rows = tl.zeros([s.shape[0]], tl.float32)
    if KIND == SOFTMAX:
        return rows
    else:
        y = relative(s, largest[:, None], KIND)[None, :, :]
        betas = rows + beta
        gammas = 1.0 / tl.maximum(betas, 1e-30)
        one = rows + 1.0
        if TENSOR:
            if beta < NEAR_ONE:
                x = start(betas, one, POWER, ALWAYS)
                x = climb(
                    y, x, good, betas, gammas, one, True, _ENOUGH, POWER, ALWAYS, False
                )  # fmt: skip
            elif beta <= 1.0:
                x = start(betas, one, POWER, NEVER)
                x = climb(
                    y, x, good, betas, gammas, one, False, _ENOUGH, POWER, NEVER, False
                )  # fmt: skip
            else:
                x = _halve(y, good, betas, gammas)
            return x
        else:
            x = start(betas, one, KIND, NEAR)
            return climb(y, x, good, betas, gammas, one, NEAR == ALWAYS, _ENOUGH, KIND, NEAR, False)


@triton.jit
def _shares(
    s, largest, x, beta, KIND: tl.constexpr, TENSOR: tl.constexpr, NEAR: tl.constexpr
):  # fmt: skip
    """Weights up to a factor near 1, which makes up for what the search left."""
    y = relative(s, largest[:, None], KIND)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    if KIND == SOFTMAX:
        return exp2(y * _LOG2E)
    elif TENSOR:
        if beta < NEAR_ONE:
            q, _slope = terms(y, x[:, None], beta, gamma, True, POWER, ALWAYS)
        elif beta <= 1.0:
            q, _slope = terms(y, x[:, None], beta, gamma, False, POWER, NEVER)
        else:
            w = tl.maximum(tl.fma(y, beta, x[:, None]), 0.0)
            q = tl.where(w > 0.0, exp2(gamma * tl.log2(tl.maximum(w, 1e-37))), 0.0)
        return q
    else:
        q, _slope = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
        return q


@triton.jit
def _normalised(q, good, fill):
    total = tl.sum(q, 1)
    scale = tl.where(good, reciprocal(tl.where(total > 0.0, total, 1.0)), 0.0)
    return tl.fma(q, scale[:, None], fill[:, None])


@triton.jit
def _scores(q, k, scale, rows, columns, queries, keys, seen_ptr, seen_row, seen_column,
            CAUSAL: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """(rows, columns) in float32, -inf where a key may not be seen."""
    s = _product(q, tl.trans(k)) * scale
    visible = (columns < keys)[None, :] & (rows < queries)[:, None]
    if CAUSAL:
        visible = visible & (columns[None, :] <= rows[:, None])
    if MASKED:
        offsets = rows[:, None] * seen_row + columns[None, :] * seen_column
        visible = visible & (tl.load(seen_ptr + offsets, mask=visible, other=0) != 0)
    return tl.where(visible, s, -float("inf"))


@triton.jit
def _alpha(a_ptr, value, head, TENSOR: tl.constexpr):
    """(alpha - 1, 0 or NaN where there is no such entmax)."""
    if TENSOR:
        alpha = tl.load(a_ptr + head)
        beta = (alpha - 1.0).to(tl.float32)
        bad = tl.where((beta >= 0.0) & (beta < 1e30), 0.0, float("nan"))
        return tl.where(bad == 0.0, beta, 0.5), bad
    else:
        return value, 0.0


# --- kernels --------------------------------------------------------------------------------------


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def _forward(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, out_ptr, top_ptr, x_ptr,
    scale, value, heads, queries, keys, size, value_size,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column, group,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    item, head = program // heads, program % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns, parts, values = tl.arange(0, KEYS), tl.arange(0, SIZE), tl.arange(0, VALUES)
    beta, bad = _alpha(a_ptr, value, head, TENSOR)
    in_q = (rows < queries)[:, None] & (parts < size)[None, :]
    in_k = (columns < keys)[:, None] & (parts < size)[None, :]
    in_v = (columns < keys)[:, None] & (values < value_size)[None, :]
    q = tl.load(
        q_ptr + item * q_item + head * q_head + rows[:, None] * q_row + parts[None, :],
        mask=in_q, other=0.0,
    )  # fmt: skip
    k = tl.load(
        k_ptr + item * k_item + head // group * k_head + columns[:, None] * k_row + parts[None, :],
        mask=in_k, other=0.0,
    )  # fmt: skip
    v = tl.load(
        v_ptr + item * v_item + head // group * v_head + columns[:, None] * v_row + values[None, :],
        mask=in_v, other=0.0,
    )  # fmt: skip
    s = _scores(
        q, k, scale, rows, columns, queries, keys,
        seen_ptr + item * seen_item + head * seen_head, seen_row, seen_column, CAUSAL, MASKED,
    )  # fmt: skip
    top = maximum(s, 1)
    good = (top > -float("inf")) & (top < float("inf"))
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan")) + bad
    largest = tl.where(good, top, 0.0)
    x = _unknown(s, largest, good, beta, KIND, TENSOR, NEAR)
    p = _normalised(_shares(s, largest, x, beta, KIND, TENSOR, NEAR), good, fill)
    out = _precise(p, v)
    row = program * queries + rows
    tl.store(
        out_ptr + row[:, None] * value_size + values[None, :],
        rounded(out, out_ptr.dtype.element_ty),
        mask=(rows < queries)[:, None] & (values < value_size)[None, :],
    )
    tl.store(top_ptr + row, top, mask=rows < queries)
    tl.store(x_ptr + row, x, mask=rows < queries)


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def _backward(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, top_ptr, x_ptr, g_ptr, gq_ptr, gk_ptr, gv_ptr, change_ptr,
    scale, value, heads, queries, keys, size, value_size,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column, group,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr, WANT: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    item, head = program // heads, program % heads
    columns, parts, values = tl.arange(0, KEYS), tl.arange(0, SIZE), tl.arange(0, VALUES)
    beta, bad = _alpha(a_ptr, value, head, TENSOR)
    inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
    in_k = (columns < keys)[:, None] & (parts < size)[None, :]
    in_v = (columns < keys)[:, None] & (values < value_size)[None, :]
    k = tl.load(
        k_ptr + item * k_item + head // group * k_head + columns[:, None] * k_row + parts[None, :],
        mask=in_k, other=0.0,
    )  # fmt: skip
    v = tl.load(
        v_ptr + item * v_item + head // group * v_head + columns[:, None] * v_row + values[None, :],
        mask=in_v, other=0.0,
    )  # fmt: skip
    gk = tl.zeros([KEYS, SIZE], tl.float32)
    gv = tl.zeros([KEYS, VALUES], tl.float32)
    changes = tl.zeros([ROWS], tl.float32)
    for first in range(0, queries, ROWS):
        rows = first + tl.arange(0, ROWS)
        row = program * queries + rows
        in_q = (rows < queries)[:, None] & (parts < size)[None, :]
        in_g = (rows < queries)[:, None] & (values < value_size)[None, :]
        q = tl.load(
            q_ptr + item * q_item + head * q_head + rows[:, None] * q_row + parts[None, :],
            mask=in_q, other=0.0,
        )  # fmt: skip
        g = tl.load(g_ptr + row[:, None] * value_size + values[None, :], mask=in_g, other=0.0)
        top = tl.load(top_ptr + row, mask=rows < queries, other=-float("inf"))
        x = tl.load(x_ptr + row, mask=rows < queries, other=0.0)
        s = _scores(
            q, k, scale, rows, columns, queries, keys,
            seen_ptr + item * seen_item + head * seen_head, seen_row, seen_column, CAUSAL, MASKED,
        )  # fmt: skip
        good = (top > -float("inf")) & (top < float("inf"))
        fill = tl.where(good | (top == -float("inf")), 0.0, float("nan")) + bad
        largest = tl.where(good, top, 0.0)
        p = _normalised(_shares(s, largest, x, beta, KIND, TENSOR, NEAR), good, fill)
        gp = _product(g, tl.trans(v))
        w = _weights(p, beta, KIND)
        against, total = sum2(tl.where(w == 0.0, 0.0, w * gp), w, 1)
        centred = gp - (against / tl.where(total == 0.0, 1.0, total))[:, None]
        gs = tl.where(w == 0.0, 0.0, w * centred)
        if WANT:
            direct = _direct(p, w, beta, inverse_square, KIND)
            changes += tl.sum(tl.where(w == 0.0, 0.0, centred * direct), 1)
        gq = _precise(gs, k) * scale
        tl.store(
            gq_ptr + row[:, None] * size + parts[None, :],
            rounded(gq, gq_ptr.dtype.element_ty), mask=in_q,
        )  # fmt: skip
        gk += _precise(tl.trans(gs), q)
        gv += _precise(tl.trans(p), g)
    key = program * keys + columns
    tl.store(
        gk_ptr + key[:, None] * size + parts[None, :],
        rounded(gk * scale, gk_ptr.dtype.element_ty), mask=in_k,
    )  # fmt: skip
    tl.store(
        gv_ptr + key[:, None] * value_size + values[None, :],
        rounded(gv, gv_ptr.dtype.element_ty), mask=in_v,
    )  # fmt: skip
    if WANT:
        tl.store(change_ptr + program, tl.sum(changes, 0))


# --- what the host calls --------------------------------------------------------------------------


class Saved(NamedTuple):
    """The largest score and the unknown of each row."""

    top: Tensor
    x: Tensor


def _kind(alpha: float | Tensor) -> tuple[int, int]:
    if isinstance(alpha, Tensor):
        return POWER.value, NEVER.value
    kinds = {1.0: SOFTMAX.value, 1.5: ENTMAX15.value, 2.0: SPARSEMAX.value}
    return kinds.get(
        alpha, POWER.value
    ), ALWAYS.value if alpha - 1 < NEAR_ONE.value else NEVER.value


def _sizes(q: Tensor, k: Tensor, v: Tensor, backward: bool) -> dict[str, int | bool]:
    keys = max(16, power_of_two(k.shape[2]))
    size, values = (max(16, power_of_two(x.shape[3])) for x in (q, v))
    rows = min(32 if backward and keys * max(size, values) > 4096 else 64, 4096 // keys)
    rows = min(max(16, rows), max(16, power_of_two(q.shape[2])))
    warps = 8 if keys * max(size, values) >= 4096 else 4
    return {
        "ROWS": rows,
        "KEYS": keys,
        "SIZE": size,
        "VALUES": values,
        "num_warps": warps,
        "num_stages": 1,
        "enable_fp_fusion": False,  # see reductions.solid
    }


def _numbers(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, alpha: float | Tensor, scale: float
) -> tuple[float | int, ...]:
    mask = (0, 0, 0, 0) if seen is None else seen.stride()
    return (
        scale,
        0.0 if isinstance(alpha, Tensor) else alpha - 1.0,
        q.shape[1],
        q.shape[2],
        k.shape[2],
        q.shape[3],
        v.shape[3],
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *mask,
        q.shape[1] // k.shape[1],
    )


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these (items, heads, length, size) are few enough keys of a small enough size.

    Half precision only: Triton spells exact products of float32 out on the general cores, which
    takes minutes to compile and spills.
    """
    return (
        q.element_size() == 2
        and 0 < k.shape[2] <= MOST_KEYS
        and q.numel() > 0
        and v.numel() > 0
        and q.shape[1] % k.shape[1] == 0  # one head of queries may broadcast to many of keys
        and max(q.shape[3], v.shape[3]) <= LARGEST_HEAD
    )


def forward(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float,
) -> tuple[Tensor, Saved]:  # fmt: skip
    """Context (items, heads, Lq, Ev) of q (items, heads, Lq, E), and k and v of no more heads.

    The last stride of q, k and v is 1; ``seen`` is bool, (items, heads, Lq, Lk) with any strides;
    alpha is a number from 1 to 2, or one value a head.
    """
    items, heads, queries, _ = q.shape
    out = torch.empty(items, heads, queries, v.shape[3], dtype=q.dtype, device=q.device)
    top, x = (q.new_empty(items, heads, queries, dtype=torch.float32) for _ in range(2))
    kind, near = _kind(alpha)
    sizes = _sizes(q, k, v, False)
    _forward[(items * heads, pieces(queries, int(sizes["ROWS"])))](
        q, k, v, q if seen is None else seen, alpha if isinstance(alpha, Tensor) else q,
        out, top, x,
        *_numbers(q, k, v, seen, alpha, scale),
        KIND=kind, NEAR=near, TENSOR=isinstance(alpha, Tensor), CAUSAL=causal,
        MASKED=seen is not None, **sizes,
    )  # fmt: skip
    return out, Saved(top, x)


def backward(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float, saved: Saved, g: Tensor, want: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k and v (of each query head), and of alpha (items, heads) if wanted."""
    items, heads, _, size = q.shape
    gq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    gk = torch.empty(items, heads, k.shape[2], size, dtype=k.dtype, device=k.device)
    gv = torch.empty(items, heads, v.shape[2], v.shape[3], dtype=v.dtype, device=v.device)
    change = q.new_empty(items, heads, dtype=torch.float32) if want else None
    kind, near = _kind(alpha)
    _backward[(items * heads,)](
        q, k, v, q if seen is None else seen, alpha if isinstance(alpha, Tensor) else q,
        saved.top, saved.x, g.contiguous(), gq, gk, gv, gq if change is None else change,
        *_numbers(q, k, v, seen, alpha, scale),
        KIND=kind, NEAR=near, TENSOR=isinstance(alpha, Tensor), WANT=want, CAUSAL=causal,
        MASKED=seen is not None, **_sizes(q, k, v, True),
    )  # fmt: skip
    return gq, gk, gv, change
