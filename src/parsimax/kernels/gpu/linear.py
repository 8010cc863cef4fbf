"""The loss of a linear layer on the GPU: losses and supports forward, two products backward.

Forward, a chunk of rows at a time: a matrix product writes float32 logits into a buffer (rounded to
bfloat16, a logit of 30 would be off by 0.06, and its probability by several percent), and
:mod:`.linear_solve` turns them into losses, thresholds and lists of supports.

Backward, either the lists are whole, and both products are sums over supports
(:mod:`.linear_support`), or there were too many entries for them, and both are matrix products
(:mod:`.linear_dense`). The number of entries is known on the device only and the host never waits
for it: kernels of both ways are launched, and those of one leave at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from . import linear_dense, linear_solve, linear_support

_CHUNK = 1 << 28  # bytes of logits at a time
_LEAST_ROWS = 64
_BLOCK = 1 << 28  # bytes of dense gradients in logits at a time
_SPARSE = 256  # lists hold one in so many logits; beyond that dense products are faster
_LEAST_LIST, _MOST_LIST = 1 << 16, 1 << 23
_TILE = 256  # what blocks of words are multiples of
_SPAN = 256  # rows that one program of a weighted sum adds up
_LANES, _LANE_WARPS, _STAGES = 2048, 8, 3  # of a program that solves a row
_ENTRIES, _GATHER_WARPS = 8, 4  # at a time, in a sum over a list
_HIDDEN_BLOCK, _WEIGHT_BLOCK = 1024, 512  # elements of a row that one such sum is for


class Lists(NamedTuple):
    """The supports of all rows: row n has ``counts[n]`` entries from ``starts[n]`` on.

    An entry is a key, word * rows + row, and a probability. ``total`` is how many entries there
    would be; if that is more than there is room for, some rows have none. ``records`` says how to
    compute a row's probabilities from its logits.
    """

    keys: Tensor
    probs: Tensor
    starts: Tensor
    counts: Tensor
    total: Tensor
    records: Tensor


@dataclass(frozen=True)
class Rows:
    """Rows (N, D) of a layer (V, D), and how the terms of each row's loss count.

    ``beta`` is alpha - 1 in float32, one value or one a row, and ``alpha`` its value where that is
    known; ``scale``, ``own`` and ``each`` are float64, and what they multiply is the row's gap, the
    lag of its target and, if ``smoothed``, the lags of all words, weighted by ``class_weight``.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    beta: Tensor
    alpha: float | None
    index: Tensor
    scale: Tensor
    own: Tensor
    each: Tensor
    class_weight: Tensor | None
    smoothed: bool

    @property
    def kind(self) -> Any:
        """Which solver."""
        if self.alpha is None:
            return linear_solve.ANY
        kinds = {1.0: linear_solve.SOFTMAX, 1.5: linear_solve.SQUARE, 2.0: linear_solve.LINEAR}
        return kinds.get(self.alpha, linear_solve.POWER if self.alpha < 2 else linear_solve.STEEP)

    @property
    def beta_stride(self) -> int:
        """How far apart the rows' betas are."""
        return 1 if len(self.beta) > 1 else 0


def capacity(tokens: int, words: int, alpha: float | None) -> int:
    """How many entries the lists have room for; the supports of softmax are not listed."""
    if alpha == 1.0:
        return 0
    return min(tokens * (words + 1), max(tokens * words // _SPARSE, _LEAST_LIST), _MOST_LIST)


def key_dtype(tokens: int, words: int) -> torch.dtype:
    """Wide enough for every key, and for one beyond them."""
    return torch.int32 if tokens * (words + 1) < 2**31 else torch.int64


# --- forward --------------------------------------------------------------------------------------


def solve(rows: Rows, want_change: bool) -> tuple[Tensor, Tensor, Lists]:
    """(losses, d gap / d alpha or nothing, both float64; lists)."""
    tokens, words = len(rows.hidden), len(rows.weight)
    new = rows.hidden.new_empty
    room = capacity(tokens, words, rows.alpha)
    values = new(tokens, dtype=torch.float64)
    change = new(tokens if want_change else 0, dtype=torch.float64)
    keys = torch.full(
        (room,), tokens * words, dtype=key_dtype(tokens, words), device=rows.hidden.device
    )
    lists = Lists(
        keys,
        new(room, dtype=torch.float32),
        new(tokens, dtype=torch.int64),
        new(tokens, dtype=torch.int32),
        # of softmax there are no lists, and they are not whole
        torch.full((), int(room == 0), dtype=torch.int64, device=rows.hidden.device),
        new((linear_solve.FIELDS, tokens), dtype=torch.float32),
    )
    if tokens == 0:
        return values, change, lists
    hidden, weight = rows.hidden.contiguous(), rows.weight.contiguous()
    step = min(_chunk_rows(words), tokens)
    buffer = new((step, _padded(words)), dtype=torch.float32)
    with _device(hidden):
        for start in range(0, tokens, step):
            stop = min(start + step, tokens)
            part = buffer[: stop - start, :words]
            _product(hidden[start:stop], weight, part)
            _solve_chunk(rows, start, part, values, change, lists, room)
    return values, change, lists


def _chunk_rows(words: int) -> int:
    rows = _CHUNK // (4 * _padded(words))
    return max(_LEAST_ROWS, rows // 128 * 128 if rows >= 128 else rows)


def _padded(words: int) -> int:
    """So that rows begin at multiples of 16 bytes."""
    return -(-words // 4) * 4


def _product(hidden: Tensor, weight: Tensor, out: Tensor) -> None:
    """``out = hidden @ weight.T`` in float32; half precision is multiplied exactly."""
    if hidden.dtype == torch.float32:
        torch.mm(hidden, weight.t(), out=out)
    elif hidden.is_cuda:
        torch.mm(hidden, weight.t(), out_dtype=torch.float32, out=out)
    else:
        torch.mm(hidden.float(), weight.float().t(), out=out)


def _solve_chunk(
    rows: Rows, start: int, z: Tensor, values: Tensor, change: Tensor, lists: Lists, room: int
) -> None:
    nothing = values  # in place of a tensor that is not there
    block = min(_LANES, triton.next_power_of_2(z.shape[1]))
    linear_solve.solve_kernel[(len(z),)](
        z, z.stride(0), rows.bias if rows.bias is not None else nothing,
        rows.beta, rows.beta_stride, rows.index, rows.scale, rows.own, rows.each,
        rows.class_weight if rows.class_weight is not None else nothing,
        values, change, lists.records, lists.starts, lists.counts,
        lists.keys, lists.probs, lists.total,
        start, len(rows.hidden), z.shape[1], room,
        KIND=rows.kind,
        BIAS=rows.bias is not None,
        SMOOTH=rows.smoothed,
        WEIGHTED=rows.class_weight is not None,
        CHANGE=change.numel() > 0,
        LIST=room > 0,
        BLOCK=block,
        STAGES=_STAGES,
        num_warps=_LANE_WARPS if block >= 1024 else 4,
    )  # fmt: skip


# --- backward -------------------------------------------------------------------------------------


def pull_back(
    rows: Rows, lists: Lists, want_hidden: bool, want_weight: bool, want_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients in hidden, weight and bias, in their dtypes; None where not wanted."""
    hidden, weight = rows.hidden.contiguous(), rows.weight.contiguous()
    out_hidden = torch.empty_like(hidden) if want_hidden else None
    out_weight = torch.empty_like(weight) if want_weight else None
    out_bias = weight.new_empty(len(weight)) if want_bias else None
    outs = (out_hidden, out_weight, out_bias)
    if len(hidden) == 0:
        for out in outs:
            if out is not None:
                out.zero_()
        return outs
    with _device(hidden):
        shared = _rank_one(rows, hidden, weight, want_hidden)
        if len(lists.keys) > 0:
            _sparse_products(rows, hidden, weight, lists, shared, outs)
        if len(lists.keys) < len(hidden) * (len(weight) + 1):
            _dense_products(rows, hidden, weight, lists, shared, outs)
    return outs


class _Shared(NamedTuple):
    """What smoothing takes off: each_n W'w from row n, w_c sum(each h) from word c."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor


_Outs = tuple[Tensor | None, Tensor | None, Tensor | None]


def _rank_one(rows: Rows, hidden: Tensor, weight: Tensor, want_hidden: bool) -> _Shared:
    if not rows.smoothed:
        return _Shared(rows.each, rows.each, rows.each)
    return _Shared(
        _weighted_sum(rows.class_weight, weight) if want_hidden else rows.each,
        _weighted_sum(rows.each, hidden),
        rows.each.sum().float(),
    )


def _weighted_sum(factors: Tensor | None, x: Tensor) -> Tensor:
    """sum_i factor_i x_i in float32."""
    count, size = x.shape
    parts = triton.cdiv(count, _SPAN)
    out = x.new_empty((parts, size), dtype=torch.float32)
    block = min(1024, triton.next_power_of_2(size))
    linear_support.weighted_sum_kernel[(parts, triton.cdiv(size, block))](
        out, x if factors is None else factors, x, count, size,
        FACTORS=factors is not None, SPAN=_SPAN, ENTRIES=8, BLOCK=block,
    )  # fmt: skip
    return out.sum(0)


def _sparse_products(
    rows: Rows, hidden: Tensor, weight: Tensor, lists: Lists, shared: _Shared, outs: _Outs
) -> None:
    out_hidden, out_weight, out_bias = outs
    tokens, words, size, room = len(hidden), len(weight), hidden.shape[1], len(lists.keys)
    block = min(_HIDDEN_BLOCK, triton.next_power_of_2(size))
    if out_hidden is not None:
        linear_support.hidden_kernel[(tokens, triton.cdiv(size, block))](
            out_hidden, weight, lists.keys, lists.probs, lists.starts, lists.counts, lists.total,
            rows.index, rows.scale, rows.own, rows.each, shared.hidden,
            tokens, size, room,
            SMOOTH=rows.smoothed, ENTRIES=_ENTRIES, BLOCK=block, num_warps=_GATHER_WARPS,
        )  # fmt: skip
    if out_weight is None and out_bias is None:
        return
    keys, order = torch.sort(lists.keys)
    edges = torch.arange(words + 1, dtype=keys.dtype, device=keys.device) * tokens
    edges = torch.searchsorted(keys, edges, out_int32=True)
    block = min(_WEIGHT_BLOCK, triton.next_power_of_2(size))
    across = triton.cdiv(size, block) if out_weight is not None else 1
    linear_support.weight_kernel[(words, across)](
        _or(out_weight, hidden), _or(out_bias, hidden), hidden,
        keys, order, lists.probs, edges, lists.total,
        rows.index, rows.scale, rows.own, _or(rows.class_weight, hidden),
        shared.weight, shared.bias, tokens, size, room,
        WEIGHT=out_weight is not None, BIAS=out_bias is not None,
        SMOOTH=rows.smoothed, WEIGHTED=rows.class_weight is not None,
        ENTRIES=_ENTRIES, BLOCK=block, num_warps=_GATHER_WARPS,
    )  # fmt: skip


def _dense_products(
    rows: Rows, hidden: Tensor, weight: Tensor, lists: Lists, shared: _Shared, outs: _Outs
) -> None:
    out_hidden, out_weight, out_bias = outs
    tokens, words, size, room = len(hidden), len(weight), hidden.shape[1], len(lists.keys)
    unit = torch.maximum(rows.scale.abs(), rows.own.abs())
    unit_max = unit.amax()
    share = torch.where(unit == 0, 0.0, unit / unit_max).float().unsqueeze(-1)
    scaled = torch.where(share == 0, 0.0, hidden * share).to(hidden.dtype)
    unit, unit_max = unit.float(), unit_max.float()
    width = _block_words(tokens, words, hidden.element_size())
    g = hidden.new_empty((tokens, width))
    sums = hidden.new_empty((tokens, size) if out_hidden is not None else 0, dtype=torch.float32)
    programs = _programs(hidden)
    narrow, tiles = _tiles(hidden, 128), _tiles(hidden, 256)
    common = (tokens, words, size)
    # tiles that fit need no masks
    even_size = size % narrow["DEPTH"] == 0
    even_across = size % tiles["COLUMNS"] == 0
    even_tokens = even_across and tokens % tiles["DEPTH"] == 0
    for first in range(0, words, width):
        last = first + width >= words
        even_words = even_across and first + width <= words
        linear_dense.logits_kernel[(programs,)](
            g, hidden, weight, _or(rows.bias, hidden), rows.beta, rows.beta_stride, lists.records,
            rows.index, rows.scale, rows.own, unit, lists.total,
            *common, first, width, room, programs,
            KIND=rows.kind, HAS_BIAS=rows.bias is not None, EVEN=even_size, **narrow,
        )  # fmt: skip
        if out_weight is not None or out_bias is not None:
            linear_dense.weight_product_kernel[(programs,)](
                _or(out_weight, hidden), _or(out_bias, hidden), g, scaled, unit, unit_max,
                _or(rows.class_weight, hidden), shared.weight, shared.bias, lists.total,
                *common, first, width, room, programs,
                WEIGHT=out_weight is not None, BIAS=out_bias is not None,
                SMOOTH=rows.smoothed, WEIGHTED=rows.class_weight is not None,
                EVEN=even_tokens, **tiles,
            )  # fmt: skip
        if out_hidden is not None:
            linear_dense.hidden_product_kernel[(programs,)](
                out_hidden, sums, g, weight, unit, rows.each, shared.hidden, lists.total,
                *common, first, width, room, programs,
                FIRST=first == 0, LAST=last, SMOOTH=rows.smoothed, EVEN=even_words, **tiles,
            )  # fmt: skip


def _block_words(tokens: int, words: int, itemsize: int) -> int:
    """A multiple of the tiles' sides."""
    most = max(_BLOCK // (tokens * itemsize) // _TILE, 1)
    return min(most, -(-words // _TILE)) * _TILE


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


def _programs(x: Tensor) -> int:
    """One a multiprocessor: each goes on to the next tile by itself."""
    if not x.is_cuda:
        return 2
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A tensor in place of one that is not there and not used."""
    return other if x is None else x


def _device(x: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
