"""Attention tile by tile: memory grows with the length, not with its square.

The numbers are those of the plain path of :mod:`.functional`. The backward computes scores and
weights of a tile once more, so nothing is kept but the inputs, unless all weights together are few.
What differentiates the gradient again, or is traced, takes the plain path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parsimax._core.dtypes import HALF, exact_dtype, working
from parsimax._core.validation import (
    exporting,
    recorded,
    transform_or_forward_mode,
    without_values,
)
from parsimax.mappings.rowmap import kernels_allowed

from .again import gradients_again, gradients_wanted
from .dropping import Dropping
from .precision import without_autocast
from .products import matmul_heads, matmul_lengths
from .rowwise import Rows
from .tiles import Tile, fill_hidden, tiles
from .visibility import Band, band_mask, intersect

_LARGE = {"cpu": 1 << 21, "cuda": 1 << 28}  # scores from which on tiles are taken
_ROOM = {"cpu": 1 << 18, "cuda": 1 << 26}  # scores of a tile
_KEPT = {"cpu": 1 << 24, "cuda": 1 << 28}  # scores whose weights may be kept for the backward


@dataclass(frozen=True)
class Problem:
    """What is not a tensor, and does not change from tile to tile.

    Args:
        shape: Of the scores, (..., Lq, Lk).
        longest: Keys of each item, if that is known.
        threads: That share a tile on the CPU. They decide how large it is, and the backward, which
            may find others, must cut as the forward did.
    """

    shape: torch.Size
    band: Band
    scale: float
    grouped: bool
    rows: Rows
    longest: tuple[int, ...] | None = None
    dropping: Dropping | None = None
    threads: int = field(default_factory=torch.get_num_threads)

    def group(self, keys: Tensor) -> int:
        """Query heads that share a head of these keys or values."""
        return self.shape[-3] // keys.shape[-3] if self.grouped else 1

    def tiles(self, k: Tensor, v: Tensor, block: int = 1) -> Iterator[Tile]:
        """Those that have anything visible."""
        together = math.lcm(self.group(k), self.group(v))
        room = _ROOM.get(k.device.type, _ROOM["cuda"])
        if k.device.type == "cpu":  # enough for every thread
            room *= min(8, self.threads)
        return tiles(self.shape, self.band, room, heads=together, longest=self.longest, block=block)

    def few(self, device: torch.device) -> bool:
        """Whether the weights may be kept."""
        return self.shape.numel() <= _KEPT.get(device.type, _KEPT["cuda"])


def large(shape: torch.Size, q: Tensor) -> bool:
    """Whether the matrix of weights is one to avoid, and nothing forbids to."""
    limit = _LARGE.get(q.device.type, _LARGE["cuda"])
    if transform_or_forward_mode():
        return False
    if recorded():
        return _known_larger(shape, limit)
    return not without_values(q) and shape.numel() > limit


def _known_larger(shape: torch.Size, limit: int) -> bool:
    """Where sizes may be symbols; an exported program must not depend on the answer."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

    larger = math.prod(shape) > limit  # numel() would make a number of a symbol
    if exporting():
        return statically_known_true(larger)
    return guard_or_false(larger)


def known_lengths(key_lengths: Tensor | None, shape: torch.Size) -> tuple[int, ...] | None:
    """Keys of each item of the first dimension, where looking at them is free."""
    if key_lengths is None or key_lengths.device.type != "cpu":
        return None
    return tuple(key_lengths.expand(shape[0] if len(shape) > 2 else 1).tolist())


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    masks: tuple[Tensor | None, Tensor | None],
    problem: Problem,
    parameters: Sequence[Tensor],
) -> Tensor:
    """Context (..., Hq, Lq, Ev).

    ``bias``, ``masks`` and ``parameters``, the tensors of the mapping, broadcast to the scores; a
    mask is True where a key may be seen.
    """
    tensors = (q, k, v, bias, *masks)
    if not gradients_wanted(q, k, v, bias, *parameters):
        return context_of_tiles(tensors, problem, parameters, None)
    out: Tensor = _Tiled.apply(*tensors, problem, *parameters)  # type: ignore[no-untyped-call]
    return out


def context_of_tiles(
    tensors: tuple[Any, ...],
    problem: Problem,
    parameters: Sequence[Tensor],
    outputs: list[Tensor | None] | None,
) -> Tensor:
    """The context; what each tile's mapping put out is added to ``outputs``."""
    q, k, v, bias, *masks = tensors
    out: Tensor = q.new_zeros(*problem.shape[:-1], v.shape[-1])
    with without_autocast(q.device):
        wide_k, wide_v = working(k), working(v)
        for i, tile in enumerate(problem.tiles(k, v)):
            scores = tile_scores(q, wide_k, bias, masks, tile, problem)
            weights, output = problem.rows.solve(scores, [tile.cut(x) for x in parameters])
            if outputs is not None:
                outputs.append(output)
            if problem.dropping is not None:
                weights = weights * problem.dropping.factors(i, weights)
            values = tile.of_keys(wide_v, problem.group(v))
            tile.of_queries(out).copy_(matmul_heads(weights, values, problem.grouped))
    return out


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        allowed: Tensor | None,
        within: Tensor | None,
        problem: Problem,
        *parameters: Tensor,
    ) -> Tensor:
        tensors = (q, k, v, bias, allowed, within)
        outputs: list[Tensor | None] = []
        few = problem.few(q.device)
        out = context_of_tiles(tensors, problem, parameters, outputs if few else None)
        ctx.save_for_backward(*tensors, *parameters, *outputs)
        ctx.problem, ctx.given = problem, len(tensors) + len(parameters)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        saved = ctx.saved_tensors  # once: checkpoints give them no second time
        tensors, outputs = saved[: ctx.given], saved[ctx.given :]
        wanted = (*ctx.needs_input_grad[:4], *ctx.needs_input_grad[7:])
        if kernels_allowed(g):
            with without_autocast(g.device):
                found = gradients_of_tiles(tensors, outputs, ctx.problem, wanted, g)
        else:
            found = plain_gradients(tensors, ctx.problem, wanted, g)
        return *found[:4], None, None, None, *found[4:]


def tile_scores(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    masks: Sequence[Tensor | None],
    tile: Tile,
    problem: Problem,
) -> Tensor:
    """Scores of a tile, -inf where hidden."""
    asked = working(tile.of_queries(q)) * problem.scale
    keys = tile.of_keys(k, problem.group(k))
    scores = matmul_heads(asked, keys.mT, problem.grouped)
    if bias is not None:
        scores = scores + tile.cut(bias).to(scores.dtype)
    fill_hidden(scores, tile, problem.band, masks, -torch.inf)
    return scores


def gradients_of_tiles(
    tensors: Sequence[Any],
    outputs: Sequence[Tensor | None],
    problem: Problem,
    wanted: Sequence[bool],
    g: Tensor,
) -> list[Tensor | None]:
    """Of q, k, v, bias and the parameters, summed over tiles."""
    q, k, v, bias, *masks = tensors[:6]
    parameters = [working(x) for x in tensors[6:]]
    wide_k, wide_v = working(k), working(v)
    sums = [
        torch.zeros(x.shape, dtype=_sum_dtype(x, i), device=x.device) if want else None
        for i, (x, want) in enumerate(zip((q, k, v, bias, *parameters), wanted, strict=True))
    ]
    gq, gk, gv, gbias, *gparameters = sums
    for i, tile in enumerate(problem.tiles(k, v)):
        output = outputs[i] if outputs else None
        scores = None
        if output is None:
            scores = tile_scores(q, wide_k, bias, masks, tile, problem)
        weights, pulled = problem.rows.pull(
            scores, output, [tile.cut(x) for x in parameters], wanted[4:]
        )
        g_tile = working(tile.of_queries(g))
        factors = None
        if problem.dropping is not None:
            factors = problem.dropping.factors(i, weights)
        if gv is not None:
            part = weights if factors is None else weights * factors
            _add(tile.of_keys(gv, problem.group(v)), _to_keys(part, g_tile, v, problem))
        if not any((*wanted[:2], *wanted[3:])):
            continue
        values = tile.of_keys(wide_v, problem.group(v))
        g_weights = matmul_heads(g_tile, values.mT, problem.grouped)
        gs, found = pulled(g_weights if factors is None else g_weights * factors)
        # a row of NaN must not reach keys that it does not see
        fill_hidden(gs, tile, problem.band, masks, 0.0)
        if gbias is not None:
            _add(tile.cut(gbias), gs)
        for total, part in zip([x for x in gparameters if x is not None], found, strict=True):
            _add(tile.cut(total), part)
        if gq is not None:
            keys = tile.of_keys(wide_k, problem.group(k))
            _add(tile.of_queries(gq), matmul_heads(gs, keys, problem.grouped) * problem.scale)
        if gk is not None:
            asked = working(tile.of_queries(q)) * problem.scale
            _add(tile.of_keys(gk, problem.group(k)), _to_keys(gs, asked, k, problem))
    like = (q, k, v, bias, *tensors[6:])
    return [None if x is None else x.to(y.dtype) for x, y in zip(sums, like, strict=True)]


def _sum_dtype(x: Tensor, place: int) -> torch.dtype:
    """Parameters have a share in every row, and are summed in full precision."""
    if place > 3:
        return exact_dtype(x)
    return torch.float32 if x.dtype in HALF else x.dtype


def _to_keys(a: Tensor, b: Tensor, keys: Tensor, problem: Problem) -> Tensor:
    """``a.mT @ b`` in the heads of ``keys``."""
    heads = a.shape[-3] // problem.group(keys) if problem.grouped else None
    return matmul_lengths(a, b, heads)


def _add(total: Tensor, part: Tensor) -> None:
    """Add in place, summing over what was broadcast."""
    total += part if part.shape == total.shape else part.sum_to_size(total.shape)


def plain_gradients(
    tensors: Sequence[Any], problem: Problem, wanted: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """In operations that can be differentiated again; they hold the whole matrix."""
    from .functional import attend

    q, k, v, bias, allowed, within, *parameters = tensors
    visible = intersect(allowed, within, band_mask(problem.band, problem.shape, q.device))
    factors = None if problem.dropping is None else _all_factors(problem, q, k, v)

    def context_of(q: Tensor, k: Tensor, v: Tensor, bias: Any, *parameters: Tensor) -> Tensor:
        def weigh(scores: Tensor, seen: Tensor | None) -> Tensor:
            weights = problem.rows.with_tensors(parameters)(scores, mask=seen)
            return weights if factors is None else weights * factors

        return attend(q, k, v, weigh, visible, bias, 0.0, problem.scale, problem.grouped).context

    return gradients_again(context_of, (q, k, v, bias, *parameters), wanted, g)


def _all_factors(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the tiles multiply their weights with, in one matrix."""
    assert problem.dropping is not None
    factors = working(q).new_zeros(problem.shape)
    for i, tile in enumerate(problem.tiles(k, v)):
        part = tile.cut(factors)
        part.copy_(problem.dropping.factors(i, part))
    return factors
