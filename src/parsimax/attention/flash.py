"""Attention over many keys by kernels that never hold the matrix of weights.

Its thresholds come first, and with them the blocks of keys that have any weight; the output and the
gradients are then summed over those alone. :mod:`.functional` says which problems come here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parsimax.mappings.rowmap import fit, kernels_allowed

from .visibility import Band, band_mask, intersect

if TYPE_CHECKING:
    from parsimax.kernels.gpu.flash.launch import Gradients, Problem

UNLIMITED = 1 << 30
# Not every case has been seen to work on a GPU yet, so it must be asked for.
ENABLED = os.environ.get("PARSIMAX_FLASH") == "1"
_TENSORS = 6  # q, k, v, seen, alpha, lengths
_LARGEST_HEAD = 256


def _numbers(band: Band) -> tuple[int, int, int]:
    """Left, right and offset, without None."""
    sides = [UNLIMITED if x is None else min(x, UNLIMITED) for x in (band.left, band.right)]
    return sides[0], sides[1], band.offset


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether heads are of a size that the kernels know, and none of the sizes is 0."""
    if not ENABLED:
        return False
    small = max(q.shape[-1], v.shape[-1]) <= _LARGEST_HEAD
    return small and min(*q.shape, *k.shape, *v.shape) > 0


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    band: Band,
    lengths: Tensor | None,
    alpha: float | Tensor,
    scale: float,
) -> Tensor:
    """Context (B, Hq, Lq, Ev).

    ``seen`` is bool or added to the scores and broadcasts to them; alpha is a number or (Hq,).
    """
    if seen is not None:
        seen = seen.expand(*q.shape[:3], k.shape[2])
    if lengths is not None:
        lengths = lengths.expand(q.shape[0]).to(torch.int32).clamp(0, k.shape[2])
    # scores are compared before they are multiplied by the scale
    if scale < 0:
        q, scale = -q, -scale
    elif scale == 0:
        q, scale = q * 0, 1.0
    tensor = alpha if isinstance(alpha, Tensor) else None
    value = 0.0 if isinstance(alpha, Tensor) else alpha
    arguments = (q, k, v, seen, tensor, lengths, value, scale, *_numbers(band))
    if torch.compiler.is_compiling():
        compiled: Tensor = _operator(*arguments)[0]
        return compiled
    out: Tensor = _Flash.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    tensor: Tensor | None,
    lengths: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    offset: int,
) -> Problem:
    from parsimax.kernels.gpu.flash.launch import Problem, tiles_for

    # a row of a head must lie in one piece
    q, k, v = (x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in (q, k, v))
    band = None if left == right == UNLIMITED else (left, right)
    alpha = value if tensor is None else tensor.detach().float().contiguous()
    seen = None if seen is None else seen.detach()
    return Problem(q, k, v, seen, alpha, scale, band, offset, lengths, tiles_for(q, v))


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The context, and all that the backward needs."""
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import forward

    with on_device_of(arguments[0]):
        out, saved = forward(_problem(*arguments), train=True)
    return out, saved.top, saved.x, saved.live, *saved.row_lists, saved.mean


def _backward(
    g: Tensor, kept: tuple[Tensor, ...], arguments: tuple[Any, ...], alpha: bool, scores: bool
) -> Gradients:
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import Saved, backward

    top, x, live, places, counts, mean = kept
    with on_device_of(g):
        return backward(
            _problem(*arguments), Saved(top, x, live, (places, counts), mean), g, alpha, scores
        )


def _inference(*arguments: Any) -> Tensor:
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import forward

    with on_device_of(arguments[0]):
        return forward(_problem(*arguments), train=False)[0]


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        if not any(ctx.needs_input_grad):
            return _inference(*arguments)
        out, *kept = _forward(*arguments)
        ctx.save_for_backward(*arguments[:_TENSORS], *kept)
        ctx.numbers = arguments[_TENSORS:]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        tensors, kept = ctx.saved_tensors[:_TENSORS], ctx.saved_tensors[_TENSORS:]
        _, _, _, scores, alpha, _ = ctx.needs_input_grad[:_TENSORS]
        if not kernels_allowed(g):
            found = _plain_gradients(tensors, ctx.numbers, g)
        else:
            made = _backward(g, kept, (*tensors, *ctx.numbers), alpha, scores)
            found = _fitted(made, tensors)
        return *found, None, *(None for _ in ctx.numbers)


def _fitted(made: Gradients, tensors: Any) -> tuple[Tensor | None, ...]:
    """Of q, k, v, seen and alpha."""
    seen, alpha = tensors[3:5]
    gs = None if made.scores is None else made.scores.to(seen.dtype)
    ga = None if made.alpha is None else fit(made.alpha.sum(0), alpha)
    return made.q, made.k, made.v, gs, ga


def _plain_gradients(tensors: Any, numbers: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """In operations that can be differentiated again; they hold the whole matrix."""
    from .choice import entmax_of_heads
    from .functional import attend

    q, k, v, seen, tensor, lengths = tensors
    value, scale, left, right, offset = numbers
    visible = seen if seen is not None and seen.dtype == torch.bool else None
    bias = seen if seen is not None and seen.dtype != torch.bool else None
    shape = torch.Size((*q.shape[:3], k.shape[2]))
    visible = intersect(visible, band_mask(Band(left, right, offset), shape, q.device))
    if lengths is not None:
        keys = torch.arange(k.shape[2], device=q.device)
        visible = intersect(visible, keys < lengths[:, None, None, None])
    alpha = value if tensor is None else tensor
    with torch.enable_grad():
        grouped = q.shape[1] != k.shape[1]
        context = attend(
            q, k, v, lambda s, m: entmax_of_heads(s, alpha, m), visible, bias, 0.0, scale, grouped
        ).context
        inputs = [q, k, v, bias, tensor]
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(context, wanted, g, create_graph=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in inputs)


# --- torch.compile --------------------------------------------------------------------------------


@torch.library.custom_op("parsimax::flash_attention", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    alpha: Tensor | None,
    lengths: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    out, top, x, live, places, counts, mean = _forward(
        q, k, v, seen, alpha, lengths, value, scale, left, right, offset
    )
    return out, top, x, live, places, counts, mean


@_operator.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, *_rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from parsimax.kernels.gpu.flash.launch import tiles_for

    tiles = tiles_for(q, v)
    items, heads, queries, _ = q.shape
    rows = (queries + tiles.rows - 1) // tiles.rows
    columns = (k.shape[2] + tiles.columns - 1) // tiles.columns
    out = q.new_empty(items, heads, queries, v.shape[3])
    top = q.new_empty(items, heads, queries, dtype=torch.float32)
    live = q.new_empty(items, heads, rows, columns, dtype=torch.int8)
    places = q.new_empty(items, heads, rows, columns, dtype=torch.int16)
    counts = q.new_empty(items, heads, rows, dtype=torch.int32)
    mean = torch.empty_like(out, dtype=torch.float32)
    return out, top, torch.empty_like(top), live, places, counts, mean


@torch.library.custom_op("parsimax::flash_attention_backward", mutates_args=())
def _backward_operator(
    g: Tensor,
    kept: list[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    alpha: Tensor | None,
    lengths: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    offset: int,
    want_alpha: bool,
    want_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    arguments = (q, k, v, seen, alpha, lengths, value, scale, left, right, offset)
    made = _backward(g, tuple(kept), arguments, want_alpha, want_scores)
    ga = q.new_empty(0, dtype=torch.float32) if made.alpha is None else made.alpha
    gs = q.new_empty(0, dtype=torch.float32) if made.scores is None else made.scores
    return made.q, made.k, made.v, ga, gs


@_backward_operator.register_fake
def _(
    _g: Tensor, _kept: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    want_alpha, want_scores = rest[-2:]
    gradients = [x.new_empty(x.shape) for x in (q, k, v)]
    ga = q.new_empty(q.shape[:2] if want_alpha else (0,), dtype=torch.float32)
    shape = (*q.shape[:3], k.shape[2]) if want_scores else (0,)
    gs = q.new_empty(shape, dtype=torch.float32)
    return gradients[0], gradients[1], gradients[2], ga, gs


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output[1:])
    ctx.numbers = inputs[_TENSORS:]
    ctx.set_materialize_grads(False)


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    g = grads[0]
    tensors, kept = ctx.saved_tensors[:_TENSORS], ctx.saved_tensors[_TENSORS:]
    nothing = (None, *(None for _ in ctx.numbers))
    if g is None:
        return None, None, None, None, None, *nothing
    if torch.is_grad_enabled():  # differentiated twice
        return *_plain_gradients(tensors, ctx.numbers, g), *nothing
    _, _, _, scores, alpha, _ = ctx.needs_input_grad[:_TENSORS]
    gq, gk, gv, ga, gs = _backward_operator(g, list(kept), *tensors, *ctx.numbers, alpha, scores)
    return (
        gq,
        gk,
        gv,
        gs.to(tensors[3].dtype) if scores else None,
        fit(ga.sum(0), tensors[4]) if alpha else None,
        *nothing,
    )


_operator.register_autograd(_operator_backward, setup_context=_setup_operator)
