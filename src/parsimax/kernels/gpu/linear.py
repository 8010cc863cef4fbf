"""The loss of a linear layer on the GPU: losses and supports forward, two products backward.

Forward, a chunk of rows at a time: a matrix product writes float32 logits into a buffer (rounded to
bfloat16, a logit of 30 would be off by 0.06, and its probability by several percent), and
:mod:`.linear_solve` turns them into losses, thresholds and lists of supports.

Backward, either the lists are whole, and both products are sums over supports
(:mod:`.linear_support`), or there were too many entries for them, and both are matrix products
(:mod:`.linear_dense`). The number of entries is known on the device only and the host never waits
for it: kernels of both ways are launched, and those of one leave at once.

A call is some twenty launches, which take the host about as long as they take a fast GPU. So what
is done with targets and factors is done inside the kernels, and nothing is launched for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import linear_dense, linear_solve, linear_support, linear_target
from .entmax import kind_of
from .newton import NEVER, POWER, SOFTMAX, SOME
from .quick import current_device
from .sizes import multiprocessors, pieces, power_of_two

_CHUNK = 3 << 27  # bytes of logits at a time
_LEAST_ROWS = 64
_BLOCK = 1 << 28  # bytes of dense gradients in logits at a time
_SPARSE = 256  # lists hold one in so many logits; beyond that dense products are faster
_LEAST_LIST, _MOST_LIST = 1 << 16, 1 << 23
_TILE = 256  # what blocks of words are multiples of
_SPAN = 256  # rows that one program of a weighted sum adds up
_LANES, _LANE_WARPS, _UNROLL = 1024, 8, 4  # of a program that solves a row
_REGISTERS = 64  # of its threads, so that four programs share a multiprocessor
_CANDIDATES = 512  # scores of a row that are solved without reading it again
_ENTRIES, _GATHER_WARPS = 8, 4  # at a time, in a sum over a list
_HIDDEN_BLOCK, _WEIGHT_BLOCK = 1024, 1024  # elements of a row that one such sum is for
_FILLERS = 128  # programs that mark what is left of the lists


class Lists(NamedTuple):
    """The supports of all rows, and what else the backward needs.

    An entry is a key, word * rows + row, and the gradient in that logit but for ``divisor`` and
    what comes from above. Row n has spans[1, n] entries from spans[0, n] on. ``total`` is how many
    entries there would be; if that is more than there is room for, some rows have none.
    ``records`` says how to compute a row's probabilities from its logits.
    """

    keys: Tensor
    grads: Tensor
    spans: Tensor
    total: Tensor
    records: Tensor
    divisor: Tensor


class Rows(NamedTuple):
    """Rows (N, D) of a layer (V, D), their targets, and how the terms of each row's loss count.

    ``alpha`` is a number, or a vector of one value or one a row.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    alpha: float | Tensor
    target: Tensor
    class_weight: Tensor | None
    ignore_index: int
    smoothing: float
    reduction: str


def capacity(tokens: int, words: int, alpha: float | None) -> int:
    """How many entries the lists have room for; the supports of softmax are not listed."""
    if alpha == 1.0:
        return 0
    return min(tokens * (words + 1), max(tokens * words // _SPARSE, _LEAST_LIST), _MOST_LIST)


def key_dtype(tokens: int, words: int) -> torch.dtype:
    """Wide enough for every key, and for one beyond them."""
    return torch.int32 if tokens * (words + 1) < 2**31 else torch.int64


def empty_lists(tokens: int, words: int, alpha: float | None, like: Tensor) -> Lists:
    """Lists of the right sizes, ``total`` at 0 and the rest not yet written."""
    room, new = capacity(tokens, words, alpha), like.new_empty
    return Lists(
        new(room, dtype=key_dtype(tokens, words)),
        new(room, dtype=torch.float32),
        new((2, tokens), dtype=torch.int32),
        like.new_zeros((), dtype=torch.int64),
        new((linear_solve.FIELDS, tokens), dtype=torch.float32),
        new((), dtype=torch.float64),
    )


def _kind(alpha: float | Tensor) -> tuple[Any, Any, Any]:
    """(solver, which rows lie near alpha = 1, where alpha comes from)."""
    if isinstance(alpha, Tensor):
        source = linear_solve.EACH if len(alpha) > 1 else linear_solve.SHARED
        return linear_solve.ANY.value, SOME.value, source.value
    if alpha > 2:
        return linear_solve.STEEP.value, NEVER.value, linear_solve.GIVEN.value
    kind, near = kind_of(alpha)
    return kind, near if kind == POWER.value else NEVER.value, linear_solve.GIVEN.value


def _full_at(lists: Lists, alpha: float | Tensor) -> int:
    """More entries than this make the lists incomplete; those of softmax always are."""
    return lists.keys.shape[0] or -1


# --- forward --------------------------------------------------------------------------------------


def solve(rows: Rows, want_change: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Lists]:
    """(loss or losses in ``dtype``; d gap / d alpha, weighted, or nothing; lists)."""
    hidden, weight = rows.hidden.contiguous(), rows.weight.contiguous()
    alpha, bias, class_weight = rows.alpha, rows.bias, rows.class_weight
    tokens, words = hidden.shape[0], weight.shape[0]
    number = None if isinstance(alpha, Tensor) else alpha
    lists = empty_lists(tokens, words, number, hidden)
    keys, grads, spans, total, records, divisor = lists
    kind, near, source = _kind(alpha)
    values = hidden.new_empty(tokens, dtype=torch.float64)
    change = hidden.new_empty(tokens if want_change else 0, dtype=torch.float64)
    smooth, weighted = rows.smoothing > 0, class_weight is not None
    class_total = values if class_weight is None or not smooth else class_weight.double().sum()
    beta = 0.0 if number is None else number - 1
    alphas = alpha if isinstance(alpha, Tensor) else values
    room = _full_at(lists, alpha)
    block = min(_LANES, power_of_two(words))
    warps = _LANE_WARPS if block >= 1024 else 4
    most = min(_CANDIDATES, power_of_two(words))
    options = {
        "KIND": kind, "NEAR": near, "ALPHAS": source, "BIAS": bias is not None, "SMOOTH": smooth,
        "WEIGHTED": weighted, "CHANGE": want_change, "LIST": room > 0,
        "BITS": (words // block).bit_length(), "BLOCK": block, "MOST": most,
        "UNROLL": _UNROLL, "FEW": min(block, most) <= 32 * warps,
        "num_warps": warps, "maxnreg": _REGISTERS,
        "enable_fp_fusion": False,  # see reductions.solid
    }  # fmt: skip
    step = min(_chunk_rows(tokens, words), tokens)
    with _on(hidden):
        if tokens > 0:
            buffer = hidden.new_empty((step, _padded(words)), dtype=torch.float32)
            scratch = hidden.new_empty(
                (step, most if kind != SOFTMAX.value else 0), dtype=torch.int32
            )
            stride = buffer.stride(0)
            logits = buffer[:, :words]
            columns = weight.t()
            for first in range(0, tokens, step):
                count = min(step, tokens - first)
                part = logits if count == step else logits[:count]
                _product(hidden[first : first + count], columns, part)
                linear_solve.solve_kernel[(count,)](
                    buffer, stride, _or(bias, values), alphas, beta,
                    rows.target, _or(class_weight, values), class_total, rows.smoothing,
                    scratch, values, change, records, spans, keys, grads, total,
                    first, tokens, words, room, rows.ignore_index, **options,
                )  # fmt: skip
        reduced = rows.reduction != "none"
        out = hidden.new_empty((), dtype=dtype) if reduced else values.to(dtype)
        fillers = _FILLERS if room > 0 else 0
        linear_target.finish_kernel[(1 + fillers,)](
            out, divisor, values, rows.target, _or(class_weight, values), keys, total,
            tokens, words, room, rows.ignore_index, 1 + fillers,
            TOTAL=reduced, MEAN=rows.reduction == "mean", WEIGHTED=weighted, LIST=room > 0,
            BLOCK=1024,
        )  # fmt: skip
    return out, change, lists


def _chunk_rows(tokens: int, words: int) -> int:
    """As few chunks as there is room for, of about the same size: thin products are slow."""
    each = 4 * (_padded(words) + min(_CANDIDATES, power_of_two(words)))
    rows = max(_CHUNK // each, _LEAST_ROWS)
    if rows < 128:
        return rows
    chunks = pieces(tokens, rows // 128 * 128)
    return pieces(pieces(tokens, max(chunks, 1)), 128) * 128


def _padded(words: int) -> int:
    """So that rows begin where Triton may read several numbers at once."""
    return -(-words // 16) * 16


def _product(hidden: Tensor, columns: Tensor, out: Tensor) -> None:
    """``out = hidden @ columns`` in float32; half precision is multiplied exactly.

    Without TF32, whatever the user allows: the backward may compute the logits again, and they must
    be the ones that the thresholds were found for.
    """
    if hidden.dtype == torch.float32:
        allowed = hidden.is_cuda and torch.backends.cuda.matmul.allow_tf32
        if allowed:
            torch.backends.cuda.matmul.allow_tf32 = False
        try:
            torch.mm(hidden, columns, out=out)
        finally:
            if allowed:
                torch.backends.cuda.matmul.allow_tf32 = True
    elif hidden.is_cuda:
        torch.mm(hidden, columns, out_dtype=torch.float32, out=out)
    else:
        torch.mm(hidden.float(), columns.float(), out=out)


# --- backward -------------------------------------------------------------------------------------


class _Above(NamedTuple):
    """What multiplies the rows' gradients: one number a row or one for all, over the divisor."""

    grads: Tensor
    stride: int
    divisor: Tensor
    mean: bool


class _Shared(NamedTuple):
    """What smoothing takes off: each_n W'w from row n, w_c sum(each h) from word c."""

    each: Tensor
    hidden: Tensor
    weight: Tensor
    bias: Tensor


_Outs = tuple[Tensor | None, Tensor | None, Tensor | None]


def pull_back(
    rows: Rows, lists: Lists, g: Tensor, want_hidden: bool, want_weight: bool, want_bias: bool
) -> _Outs:
    """Gradients in hidden, weight and bias, in their dtypes; None where not wanted."""
    rows = rows._replace(hidden=rows.hidden.contiguous(), weight=rows.weight.contiguous())
    hidden, weight = rows.hidden, rows.weight
    outs = (
        torch.empty_like(hidden) if want_hidden else None,
        torch.empty_like(weight) if want_weight else None,
        weight.new_empty(weight.shape[0]) if want_bias else None,
    )
    (tokens, _), words, room = hidden.shape, weight.shape[0], lists.keys.shape[0]
    if tokens == 0:
        for out in outs:
            if out is not None:
                out.zero_()
        return outs
    stride = g.stride(0) if g.ndim > 0 and tokens > 1 else 0
    above = _Above(g, stride, lists.divisor, rows.reduction == "mean")
    with _on(hidden):
        shared = _rank_one(rows, lists, above, want_hidden)
        if room > 0:
            _sparse_products(rows, lists, above, shared, outs)
        if room < tokens * (words + 1):
            _dense_products(rows, lists, above, shared, outs)
    return outs


def _rank_one(rows: Rows, lists: Lists, above: _Above, want_hidden: bool) -> _Shared:
    nothing = lists.records
    if rows.smoothing == 0:
        return _Shared(nothing, nothing, nothing, nothing)
    factor = above.grads.double() / lists.divisor if above.mean else above.grads.double()
    each = (lists.records[5] * factor).float()
    return _Shared(
        each,
        _weighted_sum(rows.class_weight, rows.weight) if want_hidden else nothing,
        _weighted_sum(each, rows.hidden),
        each.sum(),
    )


def _weighted_sum(factors: Tensor | None, x: Tensor) -> Tensor:
    """sum_i factor_i x_i in float32."""
    count, size = x.shape
    parts = pieces(count, _SPAN)
    out = x.new_empty((parts, size), dtype=torch.float32)
    block = min(1024, power_of_two(size))
    linear_support.weighted_sum_kernel[(parts, pieces(size, block))](
        out, x if factors is None else factors, x, count, size,
        FACTORS=factors is not None, SPAN=_SPAN, ENTRIES=8, BLOCK=block,
    )  # fmt: skip
    return out.sum(0)


def _sparse_products(rows: Rows, lists: Lists, above: _Above, shared: _Shared, outs: _Outs) -> None:
    out_hidden, out_weight, out_bias = outs
    hidden, weight, smooth = rows.hidden, rows.weight, rows.smoothing > 0
    (tokens, size), words, room = hidden.shape, weight.shape[0], lists.keys.shape[0]
    if out_hidden is not None:
        block = min(_HIDDEN_BLOCK, power_of_two(size))
        linear_support.hidden_kernel[(tokens, pieces(size, block))](
            out_hidden, weight, lists.keys, lists.grads, lists.spans, lists.total,
            above.grads, above.stride, above.divisor, shared.each, shared.hidden,
            tokens, size, room,
            MEAN=above.mean, SMOOTH=smooth, ENTRIES=_ENTRIES, BLOCK=block, num_warps=_GATHER_WARPS,
        )  # fmt: skip
    if out_weight is None and out_bias is None:
        return
    keys, order = torch.sort(lists.keys)
    edges = torch.arange(0, words * tokens + 1, tokens, dtype=keys.dtype, device=keys.device)
    edges = torch.searchsorted(keys, edges, out_int32=True)
    block = min(_WEIGHT_BLOCK, power_of_two(size))
    across = pieces(size, block) if out_weight is not None else 1
    linear_support.weight_kernel[(words, across)](
        _or(out_weight, hidden), _or(out_bias, hidden), hidden,
        keys, order, lists.grads, edges, lists.total,
        above.grads, above.stride, above.divisor,
        _or(rows.class_weight, hidden), shared.weight, shared.bias, tokens, size, room,
        MEAN=above.mean, EACH=above.stride > 0,
        WEIGHT=out_weight is not None, BIAS=out_bias is not None,
        SMOOTH=smooth, WEIGHTED=rows.class_weight is not None,
        ENTRIES=_ENTRIES, BLOCK=block, num_warps=_GATHER_WARPS,
    )  # fmt: skip


def _dense_products(rows: Rows, lists: Lists, above: _Above, shared: _Shared, outs: _Outs) -> None:
    out_hidden, out_weight, out_bias = outs
    hidden, weight, alpha, smooth = rows.hidden, rows.weight, rows.alpha, rows.smoothing > 0
    (tokens, size), words = hidden.shape, weight.shape[0]
    room, total, programs = _full_at(lists, alpha), lists.total, multiprocessors(hidden.device)
    scaled = torch.empty_like(hidden)
    units = hidden.new_empty(tokens + 1, dtype=torch.float32)  # the last is their largest
    linear_dense.scale_kernel[(programs,)](
        scaled, units, hidden, lists.records, above.grads, above.stride, above.divisor,
        total, tokens, size, room, programs,
        MEAN=above.mean, ROWS=4, COLUMNS=min(1024, power_of_two(size)), BLOCK=1024,
    )  # fmt: skip
    width = _block_words(tokens, words, hidden.element_size())
    g = hidden.new_empty((tokens, width))
    sums = hidden.new_empty((tokens, size) if out_hidden is not None else 0, dtype=torch.float32)
    kind, near, source = _kind(alpha)
    beta = 0.0 if isinstance(alpha, Tensor) else alpha - 1
    alphas = alpha if isinstance(alpha, Tensor) else units
    narrow, tiles = _tiles(hidden, 128), _tiles(hidden, 256)
    # tiles that fit need no masks
    even_size = size % narrow["DEPTH"] == 0
    even_across = size % tiles["COLUMNS"] == 0
    even_tokens = even_across and tokens % tiles["DEPTH"] == 0
    for first in range(0, words, width):
        last = first + width >= words
        even_words = even_across and first + width <= words
        place = (tokens, words, size, first, width, room, programs)
        linear_dense.logits_kernel[(programs,)](
            g, hidden, weight, _or(rows.bias, hidden), alphas, beta, lists.records, rows.target,
            total, *place,
            KIND=kind, NEAR=near, ALPHAS=source,
            HAS_BIAS=rows.bias is not None, EVEN=even_size, **narrow,
        )  # fmt: skip
        if out_weight is not None or out_bias is not None:
            linear_dense.weight_product_kernel[(programs,)](
                _or(out_weight, hidden), _or(out_bias, hidden), g, scaled, units,
                _or(rows.class_weight, hidden), shared.weight, shared.bias, total, *place,
                WEIGHT=out_weight is not None, BIAS=out_bias is not None,
                SMOOTH=smooth, WEIGHTED=rows.class_weight is not None,
                EVEN=even_tokens, **tiles,
            )  # fmt: skip
        if out_hidden is not None:
            linear_dense.hidden_product_kernel[(programs,)](
                out_hidden, sums, g, weight, units, shared.each, shared.hidden, total, *place,
                FIRST=first == 0, LAST=last, SMOOTH=smooth, EVEN=even_words, **tiles,
            )  # fmt: skip


def _block_words(tokens: int, words: int, itemsize: int) -> int:
    """A multiple of the tiles' sides."""
    most = max(_BLOCK // (tokens * itemsize) // _TILE, 1)
    return int(min(most, -(-words // _TILE)) * _TILE)


def _tiles(x: Tensor, columns: int) -> dict[str, Any]:
    half = x.dtype != torch.float32
    return {
        # float32 products of three tf32 ones lose nothing that float32 would have kept
        "PRECISION": "tf32" if half else "tf32x3",
        "UPCAST": not x.is_cuda,
        "ROWS": 128,
        "COLUMNS": columns if half else 128,
        "DEPTH": 64 if half else 32,
        "num_warps": 8,
        "num_stages": 3,
    }


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A tensor in place of one that is not there and not used."""
    return other if x is None else x


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current GPU, which need not be the one that holds ``x``."""
    device = x.get_device()
    return nullcontext() if device < 0 or device == current_device() else torch.cuda.device(device)
