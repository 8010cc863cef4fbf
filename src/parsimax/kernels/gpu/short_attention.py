"""Attention over few keys, fused: scores, entmax and the weighted sum in one kernel.

A program holds all keys of one head of one item, and some of its queries: their scores never leave
the registers. The backward computes the weights again from the scores and the thresholds that the
forward kept, and adds up the gradients of keys and values itself, so that its result is the same
every time. Results lie in memory as the inputs do, whether heads or positions come first: a model's
projections are read and written where they are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .approx import reciprocal, rounded
from .newton import ALWAYS, ENTMAX15, NEAR_ONE, NEVER, POWER, SOFTMAX, SPARSEMAX
from .passes import Pass, Room, run
from .products import precise, product
from .quick import quick
from .reductions import maximum, sum2
from .short_tile import (
    OF_KEYS,
    OF_SCORES,
    alpha_of,
    keys_seen,
    scores,
    weights,
    weights_again,
)
from .sizes import pieces, power_of_two

MOST_KEYS = 128
LARGEST_HEAD = 128
_MOST_PIECES = (1 << 16) - 1  # of queries: the second dimension of a grid ends there
_FARTHEST = (1 << 31) - 1  # from the first row of a head to its last, which 32 bits have to say


@triton.jit
def _load(pointer, rows, row, count, parts, size):
    """(rows, parts), 0 beyond ``count`` and ``size``."""
    inside = (rows < count)[:, None] & (parts < size)[None, :]
    return tl.load(pointer + rows[:, None] * row + parts[None, :], mask=inside, other=0.0)


@triton.jit
def _store(pointer, x, rows, row, count, parts, size):
    inside = (rows < count)[:, None] & (parts < size)[None, :]
    x = rounded(x, pointer.dtype.element_ty)
    tl.store(pointer + rows[:, None] * row + parts[None, :], x, mask=inside)


# --- kernels --------------------------------------------------------------------------------------


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def _forward(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, out_ptr, top_ptr, x_ptr,
    scale, value, heads, queries, keys, size, value_size, group,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column, out_item, out_head, out_row,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    item, head = program // heads, program % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns, parts, values = tl.arange(0, KEYS), tl.arange(0, SIZE), tl.arange(0, VALUES)
    seen_ptr += item * seen_item + head * seen_head
    beta, bad = alpha_of(a_ptr, value, head, TENSOR)
    q = _load(q_ptr + item * q_item + head * q_head, rows, q_row, queries, parts, size)
    k_ptr += item * k_item + head // group * k_head
    k = _load(k_ptr, columns, k_row, keys, parts, size)
    v_ptr += item * v_item + head // group * v_head
    v = _load(v_ptr, columns, v_row, keys, values, value_size)
    positions = keys_seen(columns, keys, seen_ptr, seen_column, MASK)
    s = scores(
        q, k, scale, rows, columns, positions, queries, keys, seen_ptr, seen_row, seen_column,
        CAUSAL, MASK,
    )  # fmt: skip
    top = maximum(s, 1)
    p, x = weights(s, top, beta, bad, KIND, TENSOR, NEAR)
    out = product(rounded(p, v.dtype), v)
    out_ptr += item * out_item + head * out_head
    _store(out_ptr, out, rows, out_row, queries, values, value_size)
    row = program * queries + rows
    tl.store(top_ptr + row, top, mask=rows < queries)
    tl.store(x_ptr + row, x, mask=rows < queries)


@triton.jit
def _rows_backward(
    q_ptr, k, v, positions, seen_ptr, top_ptr, x_ptr, g_ptr, gq_ptr, gv_ptr,
    scale, beta, bad, first, columns, parts, values, queries, keys, size, value_size,
    q_row, seen_row, seen_column, g_row, gq_row, gv_row,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """(gradients of the keys but for the scale, of the values, and of alpha a row).

    Those of the queries are written here, and those of the values if there are no others to add:
    what is written soon needs no registers.
    """
    rows = first + tl.arange(0, ROWS)
    q = _load(q_ptr, rows, q_row, queries, parts, size)
    g = _load(g_ptr, rows, g_row, queries, values, value_size)
    top = tl.load(top_ptr + rows, mask=rows < queries, other=-float("inf"))
    x = tl.load(x_ptr + rows, mask=rows < queries, other=0.0)
    s = scores(
        q, k, scale, rows, columns, positions, queries, keys, seen_ptr, seen_row, seen_column,
        CAUSAL, MASK,
    )  # fmt: skip
    p, w, direct = weights_again(s, top, x, beta, bad, KIND, TENSOR, NEAR)
    total = tl.sum(p, 1)
    p = p * reciprocal(tl.where(total == 0.0, 1.0, total))[:, None]
    if KIND == SOFTMAX:
        w = p
    gv = product(tl.trans(rounded(p, g.dtype)), g)
    if ONCE:
        _store(gv_ptr, gv, columns, gv_row, keys, values, value_size)
    # a gradient of inf or NaN off the support stays there
    gp = tl.where(w == 0.0, 0.0, product(g, tl.trans(v)))
    against, mass = sum2(w * gp, w, 1)
    centred = gp - (against / tl.where(mass == 0.0, 1.0, mass))[:, None]
    gs = tl.where(w == 0.0, 0.0, w * centred)
    changes = tl.sum(gs * direct, 1)
    # A row sums to zero, which takes what all keys have in common out of this one. Once rounded it
    # does not.
    gq = precise(gs, k) * scale
    _store(gq_ptr, gq, rows, gq_row, queries, parts, size)
    return product(tl.trans(rounded(gs, q.dtype)), q), gv, changes


@quick
@triton.jit(do_not_specialize=["queries", "keys"])
def _backward(
    q_ptr, k_ptr, v_ptr, seen_ptr, a_ptr, top_ptr, x_ptr, g_ptr, gq_ptr, gk_ptr, gv_ptr, change_ptr,
    scale, value, heads, queries, keys, size, value_size, group,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row,
    seen_item, seen_head, seen_row, seen_column, g_item, g_head, g_row,
    gq_item, gq_head, gq_row, gk_item, gk_head, gk_row, gv_item, gv_head, gv_row,
    KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, VALUES: tl.constexpr,
    WANT: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """ONCE promises that there are no more than ROWS queries."""
    program = tl.program_id(0).to(tl.int64)
    item, head = program // heads, program % heads
    columns, parts, values = tl.arange(0, KEYS), tl.arange(0, SIZE), tl.arange(0, VALUES)
    beta, bad = alpha_of(a_ptr, value, head, TENSOR)
    q_ptr += item * q_item + head * q_head
    k_ptr += item * k_item + head // group * k_head
    v_ptr += item * v_item + head // group * v_head
    seen_ptr += item * seen_item + head * seen_head
    g_ptr += item * g_item + head * g_head
    gq_ptr += item * gq_item + head * gq_head
    gk_ptr += item * gk_item + head * gk_head
    gv_ptr += item * gv_item + head * gv_head
    top_ptr += program * queries
    x_ptr += program * queries
    k = _load(k_ptr, columns, k_row, keys, parts, size)
    v = _load(v_ptr, columns, v_row, keys, values, value_size)
    positions = keys_seen(columns, keys, seen_ptr, seen_column, MASK)
    if ONCE:
        gk, gv, changes = _rows_backward(
            q_ptr, k, v, positions, seen_ptr, top_ptr, x_ptr, g_ptr, gq_ptr, gv_ptr,
            scale, beta, bad, 0, columns, parts, values, queries, keys, size, value_size,
            q_row, seen_row, seen_column, g_row, gq_row, gv_row,
            KIND, NEAR, TENSOR, CAUSAL, MASK, ROWS, ONCE,
        )  # fmt: skip
    else:
        gk = tl.zeros([KEYS, SIZE], tl.float32)
        gv = tl.zeros([KEYS, VALUES], tl.float32)
        changes = tl.zeros([ROWS], tl.float32)
        for first in range(0, queries, ROWS):
            more_gk, more_gv, more = _rows_backward(
                q_ptr, k, v, positions, seen_ptr, top_ptr, x_ptr, g_ptr, gq_ptr, gv_ptr,
                scale, beta, bad, first, columns, parts, values, queries, keys, size, value_size,
                q_row, seen_row, seen_column, g_row, gq_row, gv_row,
                KIND, NEAR, TENSOR, CAUSAL, MASK, ROWS, ONCE,
            )  # fmt: skip
            gk += more_gk
            gv += more_gv
            changes += more
    _store(gk_ptr, gk * scale, columns, gk_row, keys, parts, size)
    if not ONCE:
        _store(gv_ptr, gv, columns, gv_row, keys, values, value_size)
    if WANT:
        tl.store(change_ptr + program, tl.sum(changes, 0))


# --- what the host calls --------------------------------------------------------------------------


def _kind(alpha: float | Tensor) -> tuple[int, int]:
    if isinstance(alpha, Tensor):
        return POWER.value, NEVER.value
    kinds = {1.0: SOFTMAX.value, 1.5: ENTMAX15.value, 2.0: SPARSEMAX.value}
    return kinds.get(
        alpha, POWER.value
    ), ALWAYS.value if alpha - 1 < NEAR_ONE.value else NEVER.value


def _mask_kind(seen: Tensor | None) -> int:
    if seen is None:
        return 0
    of_keys = seen.stride(2) == 0 or seen.shape[2] == 1
    return int((OF_KEYS if of_keys else OF_SCORES).value)


def _constants(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    backward: bool,
) -> dict[str, int | bool]:  # fmt: skip
    kind, near = _kind(alpha)
    keys = max(16, power_of_two(k.shape[2]))
    size, values = (max(16, power_of_two(x.shape[3])) for x in (q, v))
    queries, mask = max(16, power_of_two(q.shape[2])), _mask_kind(seen)
    of_scores = mask == OF_SCORES.value
    rows, warps = _tile(queries, keys, max(size, values), of_scores, backward)
    return {
        "KIND": kind,
        "NEAR": near,
        "TENSOR": isinstance(alpha, Tensor),
        "CAUSAL": causal,
        "MASK": mask,
        "ROWS": rows,
        "KEYS": keys,
        "SIZE": size,
        "VALUES": values,
        "num_warps": warps,
        "num_stages": 1,
        "enable_fp_fusion": False,  # see reductions.solid
    }


def _tile(queries: int, keys: int, size: int, of_scores: bool, backward: bool) -> tuple[int, int]:
    """(rows, warps): a warp has 16 whole rows where its registers hold them.

    Then no two of them need to agree on the sum of a row, and none searches for another's. A mask
    of scores brings its own order of reading, in which that cannot be had.
    """
    if not backward:
        if of_scores:
            return 16, 2 if keys * size <= 4096 else 4
        warps = min(max(1, keys * size // 4096), 4)
        return min(16 * warps, queries), warps
    if queries <= 64 and keys <= 64:
        return queries, max(queries // 16, min(4, keys * size // 1024))
    if keys < 64:
        return min(queries, 16), 4
    return min(queries, 32 if keys * size <= 8192 else 16), 8


def _numbers(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, alpha: float | Tensor, scale: float,
    *others: tuple[int, ...],
) -> tuple[float | int, ...]:  # fmt: skip
    """With the strides of what else is read or written."""
    return (
        scale,
        0.0 if isinstance(alpha, Tensor) else alpha - 1.0,
        q.shape[1],
        q.shape[2],
        k.shape[2],
        q.shape[3],
        v.shape[3],
        q.shape[1] // k.shape[1],
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        *((0, 0, 0, 0) if seen is None else seen.stride()),
        *(step for strides in others for step in strides[:3]),
    )


def _result(like: Tensor, heads: int, size: int) -> Room:
    """(items, heads, length, size), which lies as ``like`` does."""
    items, _, length, _ = like.shape
    return Room.of_heads(items, heads, length, size, like.dtype, like.stride(1) < like.stride(2))


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
        and pieces(q.shape[2], 16) <= _MOST_PIECES
        and q.shape[2] * q.stride(2) <= _FARTHEST
        and k.shape[2] * max(k.stride(2), v.stride(2)) <= _FARTHEST
        and q.shape[1] * q.shape[2] * max(q.shape[3], v.shape[3]) <= _FARTHEST
    )


def _near(seen: Tensor | None) -> Tensor | None:
    """A mask in which no two rows of a head are too far apart."""
    if seen is None:
        return None
    _, _, row, column = seen.stride()
    far = seen.shape[2] * row + seen.shape[3] * column > _FARTHEST
    return seen.contiguous() if far else seen


class Saved(NamedTuple):
    """The largest score and the unknown of each row."""

    top: Tensor
    x: Tensor


# Passes that were made, by all that decides them
_FORWARDS: dict[Hashable, Pass] = {}
_BACKWARDS: dict[Hashable, Pass] = {}
_GIVEN = "q k v seen alphas"


def _key(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float,
) -> tuple[Hashable, ...]:  # fmt: skip
    """What decides a launch; the dtype of all three is the same."""
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, q.get_device(),
        None if seen is None else seen.stride(), causal,
        alpha.dtype if isinstance(alpha, Tensor) else alpha, scale,
    )  # fmt: skip


def forward(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float,
) -> tuple[Tensor, Saved]:  # fmt: skip
    """Context (items, heads, Lq, Ev) of q (items, heads, Lq, E), and k and v of no more heads.

    The last stride of q, k and v is 1; ``seen`` is bool, (items, heads, Lq, Lk) with any strides;
    alpha is a number from 1 to 2, or one value a head.
    """
    seen = _near(seen)
    arguments = (q, k, v, seen, causal, alpha, scale)
    given = (q, k, v, q if seen is None else seen, alpha if isinstance(alpha, Tensor) else q)
    made = run(_FORWARDS, _key(*arguments), given, lambda: _forward_pass(*arguments))
    return made["out"], Saved(made["top"], made["x"])


def _forward_pass(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float,
) -> Pass:  # fmt: skip
    items, heads, queries, _ = q.shape
    a_pass, out = Pass(_GIVEN), _result(q, heads, v.shape[3])
    a_pass.room("out", out)
    for name in Saved._fields:
        a_pass.room(name, Room((items, heads, queries), torch.float32))
    constants = _constants(q, k, v, seen, causal, alpha, False)
    a_pass.launch(
        _forward, (items * heads, pieces(queries, int(constants["ROWS"]))), f"{_GIVEN} out top x",
        _numbers(q, k, v, seen, alpha, scale, out.steps), constants,
    )  # fmt: skip
    return a_pass


def backward(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float, saved: Saved, g: Tensor, want: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k and v (of each query head), and of alpha (items, heads) if wanted."""
    g = g if g.stride(3) == 1 and g.shape[2] * g.stride(2) <= _FARTHEST else g.contiguous()
    seen = _near(seen)
    arguments = (q, k, v, seen, causal, alpha, scale)
    given = (
        q, k, v, q if seen is None else seen, alpha if isinstance(alpha, Tensor) else q, *saved, g
    )  # fmt: skip
    key = (*_key(*arguments), g.stride(), want)
    made = run(_BACKWARDS, key, given, lambda: _backward_pass(*arguments, g.stride(), want))
    return made["gq"], made["gk"], made["gv"], made.get("change")


def _backward_pass(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, alpha: float | Tensor,
    scale: float, g_strides: tuple[int, ...], want: bool,
) -> Pass:  # fmt: skip
    items, heads, queries, size = q.shape
    a_pass = Pass(f"{_GIVEN} top x g")
    sizes = {"gq": (q, size), "gk": (k, size), "gv": (v, v.shape[3])}
    rooms = {name: _result(like, heads, of_each) for name, (like, of_each) in sizes.items()}
    for name, room in rooms.items():
        a_pass.room(name, room)
    if want:
        a_pass.room("change", Room((items, heads), torch.float32))
    else:
        a_pass.same("change", "q")
    constants = _constants(q, k, v, seen, causal, alpha, True)
    a_pass.launch(
        _backward, (items * heads,), f"{_GIVEN} top x g gq gk gv change",
        _numbers(q, k, v, seen, alpha, scale, g_strides, *(room.steps for room in rooms.values())),
        constants | {"WANT": want, "ONCE": queries <= int(constants["ROWS"])},
    )  # fmt: skip
    return a_pass
