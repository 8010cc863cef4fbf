"""Attention tile by tile: memory grows with the length, not with its square.

The numbers are those of the plain path of :mod:`.functional`. The backward computes scores and
weights of a tile once more, so nothing is kept but the inputs. What differentiates the gradient
again, or is traced, takes the plain path.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parsimax._core.dtypes import HALF, exact_dtype, working
from parsimax._core.validation import transform_or_forward_mode, without_values
from parsimax.mappings.rowmap import kernels_allowed

from .choice import RowWeigh
from .precision import without_autocast
from .products import matmul_heads, matmul_lengths
from .tiles import Tile, fill_hidden, tiles
from .visibility import Band, band_mask, intersect

_LARGE = {"cpu": 1 << 21, "cuda": 1 << 28}  # scores from which on tiles are taken
_ROOM = {"cpu": 1 << 18, "cuda": 1 << 26}  # scores of a tile


@dataclass(frozen=True)
class Problem:
    """What is not a tensor, and does not change from tile to tile.

    Args:
        shape: Of the scores, (..., Lq, Lk).
        longest: Keys of each item, if that is known.
    """

    shape: torch.Size
    band: Band
    scale: float
    grouped: bool
    weigh: RowWeigh
    longest: tuple[int, ...] | None = None

    def group(self, keys: Tensor) -> int:
        """Query heads that share a head of these keys or values."""
        return self.shape[-3] // keys.shape[-3] if self.grouped else 1

    def tiles(self, k: Tensor, v: Tensor, block: int = 1) -> Iterator[Tile]:
        """Those that have anything visible."""
        together = math.lcm(self.group(k), self.group(v))
        room = _ROOM.get(k.device.type, _ROOM["cuda"])
        return tiles(self.shape, self.band, room, heads=together, longest=self.longest, block=block)


def large(shape: torch.Size, q: Tensor) -> bool:
    """Whether the matrix of weights is one to avoid, and nothing forbids to."""
    if torch.compiler.is_compiling() or transform_or_forward_mode() or without_values(q):
        return False
    return shape.numel() > _LARGE.get(q.device.type, _LARGE["cuda"])


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
    out: Tensor = _Tiled.apply(q, k, v, bias, *masks, problem, *parameters)  # type: ignore[no-untyped-call]
    return out


_BEFORE = 7  # arguments of _Tiled before the parameters


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
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(q, k, v, bias, allowed, within, *parameters)
            ctx.problem = problem
        out = q.new_zeros(*problem.shape[:-1], v.shape[-1])
        with without_autocast(q.device):
            wide_k, wide_v = working(k), working(v)
            for tile in problem.tiles(k, v):
                scores = tile_scores(q, wide_k, bias, (allowed, within), tile, problem)
                weights = problem.weigh(scores, [tile.cut(x) for x in parameters])
                values = tile.of_keys(wide_v, problem.group(v))
                tile.of_queries(out).copy_(matmul_heads(weights, values, problem.grouped))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        tensors = ctx.saved_tensors
        wanted = (*ctx.needs_input_grad[:4], *ctx.needs_input_grad[_BEFORE:])
        if kernels_allowed(g):
            with without_autocast(g.device):
                found = _gradients(tensors, ctx.problem, wanted, g)
        else:
            found = _plain_gradients(tensors, ctx.problem, wanted, g)
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


def _gradients(
    tensors: tuple[Any, ...], problem: Problem, wanted: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """Of q, k, v, bias and the parameters, summed over tiles."""
    q, k, v, bias, *masks = tensors[:6]
    parameters = [working(x.detach()) for x in tensors[6:]]
    wide_k, wide_v = working(k.detach()), working(v.detach())
    sums = [
        torch.zeros(x.shape, dtype=_sum_dtype(x, i), device=x.device) if want else None
        for i, (x, want) in enumerate(zip((q, k, v, bias, *parameters), wanted, strict=True))
    ]
    gq, gk, gv, gbias, *gparameters = sums
    for tile in problem.tiles(k, v):
        scores = tile_scores(q.detach(), wide_k, bias, masks, tile, problem).requires_grad_()
        leaves = [
            tile.cut(x).requires_grad_(w) for x, w in zip(parameters, wanted[4:], strict=True)
        ]
        with torch.enable_grad():
            weights = problem.weigh(scores, leaves)
        pulled = working(tile.of_queries(g))
        if gv is not None:
            _add(tile.of_keys(gv, problem.group(v)), _to_keys(weights.detach(), pulled, v, problem))
        if not any((*wanted[:2], *wanted[3:])):
            continue
        values = tile.of_keys(wide_v, problem.group(v))
        pull = matmul_heads(pulled, values.mT, problem.grouped)
        learned = [x for x in leaves if x.requires_grad]
        gs, *found = torch.autograd.grad(weights, [scores, *learned], pull)
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
            asked = working(tile.of_queries(q.detach())) * problem.scale
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
    if not problem.grouped:
        return a.mT @ b
    return matmul_lengths(a, b, a.shape[-3] // problem.group(keys))


def _add(total: Tensor, part: Tensor) -> None:
    """Add in place, summing over what was broadcast."""
    total += part if part.shape == total.shape else part.sum_to_size(total.shape)


def _plain_gradients(
    tensors: tuple[Any, ...], problem: Problem, wanted: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """In operations that can be differentiated again; they hold the whole matrix."""
    from .functional import attend

    q, k, v, bias, allowed, within, *parameters = tensors
    visible = intersect(allowed, within, band_mask(problem.band, problem.shape, q.device))
    with torch.enable_grad():
        context = attend(
            q,
            k,
            v,
            lambda s, seen: problem.weigh(
                s if seen is None else torch.where(seen, s, -torch.inf), parameters
            ),
            visible,
            bias,
            0.0,
            problem.scale,
            problem.grouped,
        ).context
        inputs = (q, k, v, bias, *parameters)
        chosen = [x for x, want in zip(inputs, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(context, chosen, g, create_graph=True))
    return [next(found) if want else None for want in wanted]
