"""Attention over many keys by kernels that never hold the matrix of weights.

Its thresholds come first, and with them the blocks of keys that have any weight; the output and the
gradients are then summed over those alone. :mod:`.functional` says which problems come here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from parsimax._core.validation import exporting, recorded
from parsimax.mappings.rowmap import fit, kernels_allowed

from .again import gradients_again, gradients_wanted
from .visibility import Band, as_counts, band_mask, hide_beyond, intersect

if TYPE_CHECKING:
    from parsimax.kernels.gpu.flash.launch import Counts, Gradients
    from parsimax.kernels.gpu.flash.problem import Problem

UNLIMITED = 1 << 30
_TENSORS = 8  # q, k, v, seen, alpha, lengths, starts of queries, starts of keys
_GRADIENTS = 5  # of the first of them
LARGEST_HEAD = 256
# Weights come from sums that float32 rounds, and one that it cannot tell from 0 may be as large as
# 1e-7^(1 / (alpha - 1)): half a percent here, and a tenth at 8.
_STEEPEST = 4.0


def _numbers(band: Band) -> tuple[int, int, int]:
    """Left, right and offset, without None."""
    sides = [UNLIMITED if x is None else min(x, UNLIMITED) for x in (band.left, band.right)]
    return sides[0], sides[1], band.offset


def not_too_steep(alpha: float | Tensor) -> bool:
    """Whether weights have enough digits; the values of a tensor are not looked at."""
    return isinstance(alpha, Tensor) or alpha <= _STEEPEST


def fits(q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor) -> bool:
    """Whether sizes and alpha are such that the kernels know them, and no size is 0."""
    if 0 in (*q.shape, *k.shape, *v.shape) or not not_too_steep(alpha):
        return False
    # one head of queries may broadcast to many of keys, which the kernels do not know
    if max(q.shape[-1], v.shape[-1]) > LARGEST_HEAD or q.shape[1] % k.shape[1]:
        return False
    from parsimax.kernels.gpu.flash.problem import countable

    return countable(q, k, v)


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
    seen, lengths = expand(q, k, seen, lengths)
    numbers = (*_numbers(band), 0, 0, False)
    return _call((q, k, v, seen), alpha, (lengths, None, None), scale, numbers)


def expand(
    q: Tensor, k: Tensor, seen: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Numbers to add in the shape of the scores, as their gradient is; lengths (B,) that can be.

    A bool mask is what broadcasts to that shape: torch.compile might write down the rest. An item
    whose length cannot be has queries of NaN, and sees all keys, so that it shows.
    """
    if seen is not None and seen.dtype != torch.bool:
        seen = seen.expand(*q.shape[:3], k.shape[2])
    elif seen is not None:
        for dim in range(seen.ndim):
            seen = seen.narrow(dim, 0, 1) if seen.stride(dim) == 0 else seen
    if lengths is not None:
        keys = k.shape[2]
        lengths = lengths.expand(q.shape[0]).to(torch.int64)
        lengths = torch.where(lengths < 0, keys, lengths).clamp(max=keys).to(torch.int32)
    return seen, lengths


def positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """The same scores; kernels compare them before they are multiplied by the scale."""
    if scale < 0:
        return -q, -scale
    return (q * 0, 1.0) if scale == 0 else (q, scale)


def count(
    q: Tensor,
    k: Tensor,
    seen: Tensor | None,
    band: Band,
    lengths: Tensor | None,
    alpha: float | Tensor,
    scale: float,
    block: int,
) -> Counts:
    """Thresholds, supports and live blocks, without gradients; ``block`` is a multiple of 16."""
    seen, lengths = expand(q, k, seen, lengths)
    q, scale = positive_scale(q, scale)
    tensor, value = (alpha, 0.0) if isinstance(alpha, Tensor) else (None, alpha)
    tensors = (q, k, k, seen, tensor, lengths, None, None)
    arguments = (*tensors, value, scale, *_numbers(band), 0, 0, False, block)
    if not recorded():
        return _count(*arguments)
    from parsimax.kernels.gpu.flash.launch import Counts

    return Counts(*_count_operator(*arguments))


def _count(*arguments: Any) -> Counts:
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import count

    *rest, block = arguments
    with on_device_of(arguments[0]):
        return count(_problem(*rest), block)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    band: Band,
    bottom_right: bool,
    alpha: float | Tensor,
    scale: float,
) -> Tensor:
    """Context (total, Hq, Ev) of q (total, Hq, E): sequences one after the other.

    Args:
        q: Queries of all sequences, as keys and values.
        k: Keys (total, H, E).
        v: Values (total, H, Ev).
        starts: Where the queries of each sequence begin, and the keys. They are not read on the
            host; if they cannot be, or a sequence is longer than the longest, all results are NaN.
        longest: The most queries that a sequence has, and the most keys.
        band: Without its offset.
        bottom_right: Whether the last query of a sequence stands at its last key.
        alpha: A number or (Hq,).
        scale: Of the scores.
    """
    items = tuple(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    inside = (min(longest[0], q.shape[0]), min(longest[1], k.shape[0]))
    places = [as_counts(x).contiguous() for x in starts]  # kernels count on from the first
    numbers = (*_numbers(band), *inside, bottom_right)
    out = _call((*items, None), alpha, (None, *places), scale, numbers)
    return out.squeeze(0).transpose(0, 1)


def _call(
    inputs: tuple[Any, ...],
    alpha: float | Tensor,
    integers: tuple[Tensor | None, ...],
    scale: float,
    numbers: tuple[int, ...],
) -> Tensor:
    q, scale = positive_scale(inputs[0], scale)
    tensor = alpha if isinstance(alpha, Tensor) else None
    value = 0.0 if isinstance(alpha, Tensor) else alpha
    arguments = (q, *inputs[1:], tensor, *integers, value, scale, *numbers)
    wanted = gradients_wanted(*arguments[:_TENSORS])
    if recorded():
        # what is exported or recorded otherwise may be asked for gradients later
        if wanted or exporting() or not torch.compiler.is_compiling():
            trained: Tensor = _operator(*arguments)[0]
            return trained
        compiled: Tensor = _inference_operator(*arguments)
        return compiled
    if not wanted:
        return _inference(*arguments)
    out: Tensor = _Flash.apply(*arguments)  # type: ignore[no-untyped-call]
    return out


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor | None,
    tensor: Tensor | None,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    value: float,
    scale: float,
    left: int,
    right: int,
    offset: int,
    most_queries: int,
    most_keys: int,
    bottom_right: bool,
) -> Problem:
    from parsimax.kernels.gpu.flash.problem import Packed, Problem, tiles_for

    # a row of a head must lie in one piece
    q, k, v = (x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in (q, k, v))
    band = None if left == right == UNLIMITED else (left, right)
    alpha = value if tensor is None else tensor.detach().float().contiguous()
    seen = None if seen is None else seen.detach().expand(*q.shape[:3], k.shape[2])
    packed = None
    if q_starts is not None and k_starts is not None:
        packed = Packed(q_starts, k_starts, most_queries, most_keys, bottom_right)
    return Problem(q, k, v, seen, alpha, scale, band, offset, lengths, tiles_for(q, v), packed)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The context, and all that the backward needs."""
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import forward

    with on_device_of(arguments[0]):
        out, saved = forward(_problem(*arguments), train=True)
    return out, *saved


def _backward(
    g: Tensor, kept: tuple[Tensor, ...], arguments: tuple[Any, ...], alpha: bool, scores: bool
) -> Gradients:
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import Saved, backward

    with on_device_of(g):
        return backward(_problem(*arguments), Saved(*kept), g, alpha, scores)


def _inference(*arguments: Any) -> Tensor:
    from parsimax.kernels.gpu import on_device_of
    from parsimax.kernels.gpu.flash.launch import forward

    with on_device_of(arguments[0]):
        return forward(_problem(*arguments), train=False)[0]


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        out, *kept = _forward(*arguments)
        ctx.save_for_backward(*arguments[:_TENSORS], *kept)
        ctx.numbers = arguments[_TENSORS:]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        saved = ctx.saved_tensors  # once: checkpoints give them no second time
        tensors, kept = saved[:_TENSORS], saved[_TENSORS:]
        scores, alpha = ctx.needs_input_grad[3:_GRADIENTS]
        if not kernels_allowed(g):
            found = _plain_gradients(tensors, ctx.numbers, g)
        else:
            made = _backward(g, kept, (*tensors, *ctx.numbers), alpha, scores)
            found = _fitted(made, tensors)
        return *found, *_without(ctx)


def _without(ctx: Any) -> tuple[None, ...]:
    """Arguments that have no gradient."""
    return (None,) * (_TENSORS - _GRADIENTS + len(ctx.numbers))


def _fitted(made: Gradients, tensors: Any) -> tuple[Tensor | None, ...]:
    """Of q, k, v, seen and alpha."""
    seen, alpha = tensors[3:5]
    gs = None if made.scores is None else made.scores.to(seen.dtype)
    ga = None if made.alpha is None else fit(made.alpha.sum(0), alpha)
    return made.q, made.k, made.v, gs, ga


def _plain_gradients(tensors: Any, numbers: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """In operations that can be differentiated again; they hold the whole matrix."""
    inputs, rest = tensors[:_GRADIENTS], tensors[_GRADIENTS:]
    wanted = [x is not None and x.requires_grad for x in inputs]
    return tuple(gradients_again(lambda *x: _plain((*x, *rest), numbers), inputs, wanted, g))


def _plain(tensors: Any, numbers: Any) -> Tensor:
    from .choice import entmax_of_heads
    from .functional import attend

    q, k, v, seen, tensor, lengths, q_starts, k_starts = tensors
    value, scale, left, right, offset, _, _, bottom_right = numbers
    if q_starts is not None:
        # each sequence as a problem of its own
        parts = [
            torch.split(x, starts.diff().tolist(), dim=2)
            for x, starts in ((q, q_starts), (k, k_starts), (v, k_starts))
        ]
        return torch.cat(
            [
                _plain(
                    (*part, None, tensor, None, None, None),
                    (value, scale, left, right, _apart(part) if bottom_right else 0, 0, 0, False),
                )
                for part in zip(*parts, strict=True)
            ],
            dim=2,
        )
    visible = seen if seen is not None and seen.dtype == torch.bool else None
    bias = seen if seen is not None and seen.dtype != torch.bool else None
    shape = torch.Size((*q.shape[:3], k.shape[2]))
    visible = intersect(visible, band_mask(Band(left, right, offset), shape, q.device))
    if lengths is not None:
        keys = torch.arange(k.shape[2], device=q.device)
        within = keys < lengths[:, None, None, None]
        visible, (k, v) = intersect(visible, within), hide_beyond(within, k, v)
    alpha = value if tensor is None else tensor
    grouped = q.shape[1] != k.shape[1]
    return attend(
        q, k, v, lambda s, m: entmax_of_heads(s, alpha, m), visible, bias, 0.0, scale, grouped
    ).context


def _apart(part: tuple[Tensor, ...]) -> int:
    """How many keys more than queries."""
    return part[1].shape[2] - part[0].shape[2]


# --- torch.compile --------------------------------------------------------------------------------


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? seen, Tensor? alpha, Tensor? lengths, "
    "Tensor? q_starts, Tensor? k_starts, float value, float scale, SymInt left, SymInt right, "
    "SymInt offset, SymInt most_queries, SymInt most_keys, bool bottom_right"
)


def _tensors(many: int) -> str:
    return f"({', '.join(['Tensor'] * many)})"


@torch.library.custom_op(
    "parsimax::flash_attention", mutates_args=(), schema=f"({_ARGUMENTS}) -> {_tensors(10)}"
)
def _operator(*arguments: Any) -> tuple[Tensor, ...]:
    return _forward(*arguments)


@_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    from parsimax.kernels.gpu.flash.rooms import of_forward

    problem = _problem(*arguments)
    return tuple(room.allocate(problem.q) for room in of_forward(problem, train=True).values())


@torch.library.custom_op(
    "parsimax::flash_attention_inference", mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor"
)
def _inference_operator(*arguments: Any) -> Tensor:
    return _inference(*arguments)


@_inference_operator.register_fake
def _(*arguments: Any) -> Tensor:
    from parsimax.kernels.gpu.flash.rooms import of_forward

    problem = _problem(*arguments)
    return of_forward(problem, train=False)["out"].allocate(problem.q)


@torch.library.custom_op(
    "parsimax::flash_attention_statistics",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, SymInt block) -> {_tensors(6)}",
)
def _count_operator(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(_count(*arguments))


@_count_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    q, block = arguments[0], arguments[-1]
    of_queries, blocks = q.shape[:3], (*q.shape[:2], -(-q.shape[2] // block))
    thresholds = [q.new_empty(of_queries, dtype=torch.float32) for _ in range(2)]
    counts = [q.new_empty(of_queries, dtype=torch.int64) for _ in range(2)]
    return *thresholds, *counts, *(q.new_empty(blocks, dtype=torch.int64) for _ in range(2))


@torch.library.custom_op(
    "parsimax::flash_attention_backward",
    mutates_args=(),
    schema=f"(Tensor g, Tensor[] kept, {_ARGUMENTS}, bool want_alpha, bool want_scores) -> "
    + _tensors(_GRADIENTS),
)
def _backward_operator(g: Tensor, kept: list[Tensor], *rest: Any) -> tuple[Tensor, ...]:
    *arguments, want_alpha, want_scores = rest
    made = _backward(g, tuple(kept), tuple(arguments), want_alpha, want_scores)
    nothing = g.new_empty(0, dtype=torch.float32)
    ga, gs = (nothing.clone() if x is None else x for x in (made.alpha, made.scores))
    return made.q, made.k, made.v, ga, gs


@_backward_operator.register_fake
def _(
    _g: Tensor, _kept: list[Tensor], q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from parsimax.kernels.gpu.flash.rooms import of_gradients

    want_alpha, want_scores = rest[-2:]
    rooms = of_gradients(_problem(q, k, v, *rest[:-2]))
    gradients = [room.allocate(q) for room in rooms.values()]
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
    saved = ctx.saved_tensors
    tensors, kept = saved[:_TENSORS], saved[_TENSORS:]
    nothing = _without(ctx)
    if g is None:
        return None, None, None, None, None, *nothing
    if torch.is_grad_enabled():  # differentiated twice
        return *_plain_gradients(tensors, ctx.numbers, g), *nothing
    scores, alpha = ctx.needs_input_grad[3:_GRADIENTS]
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
