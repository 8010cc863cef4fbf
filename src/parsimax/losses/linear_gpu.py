"""The loss of a linear layer with autograd where its supports are kept in lists of a fixed size.

That is what the kernels for the GPU do (:mod:`parsimax.kernels.gpu.linear`): the host knows every
shape beforehand and never waits. So torch.compile gets the same two steps as eager mode, the losses
with the lists, and the gradients from the lists.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax.mappings.rowmap import kernels_allowed

from .linear_autograd import alpha_gradient, plain_backward, precisely
from .linear_products import Wanted

_INPUTS = 9  # hidden, weight, bias, alpha, index, scale, own, each, class_weight


def support_rows(arguments: tuple[Any, ...]) -> Tensor:
    """Losses of the rows or their total; the arguments are those of the operators below."""
    *tensors, value, smoothed, backend, total, wanted = arguments
    if torch.compiler.is_compiling():
        values: Tensor = _operator(*tensors, value, smoothed, wanted[3])[0]
    else:
        values = _SupportFunction.apply(*tensors, value, smoothed, backend, wanted)  # type: ignore[no-untyped-call]
    return values.sum() if total else values


def _rows(tensors: Any, value: float, smoothed: bool, g: Tensor | None) -> Any:
    """The problem as the kernels take it, its factors times what comes from above."""
    from parsimax.kernels.gpu import linear

    hidden, weight, bias, alpha, index, scale, own, each, class_weight = tensors
    if alpha is None:
        beta = torch.full((1,), value - 1, dtype=torch.float32, device=hidden.device)
    else:
        beta = (alpha.double() - 1).float().reshape(-1)
    if g is not None:
        scale, own, each = (g.to(x.dtype) * x for x in (scale, own, each))
    return linear.Rows(
        hidden,
        weight,
        None if bias is None else bias.contiguous(),
        beta,
        value if alpha is None else None,
        index.contiguous(),
        scale.contiguous(),
        own.contiguous(),
        each.contiguous(),
        None if class_weight is None else class_weight.contiguous(),
        smoothed,
    )


def _solve(tensors: Any, value: float, smoothed: bool, change: bool) -> tuple[Tensor, ...]:
    """(values, d gap / d alpha, the six tensors of the lists)."""
    from parsimax.kernels.gpu import linear

    with precisely(tensors[0]):
        values, slope, lists = linear.solve(_rows(tensors, value, smoothed, None), change)
    return values, slope, *lists


def _pull_back(
    tensors: Any, value: float, smoothed: bool, lists: Any, wanted: list[bool], g: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    from parsimax.kernels.gpu import linear

    rows = _rows(tensors, value, smoothed, g)
    with precisely(g):
        return linear.pull_back(rows, linear.Lists(*lists), *wanted[:3])


class _SupportFunction(torch.autograd.Function):
    """Not for torch.func, where the plain path is taken."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        tensors = [None if x is None else x.detach() for x in args[:_INPUTS]]
        value, smoothed, backend, wanted = args[_INPUTS:]
        ctx.settings, ctx.wanted = (value, smoothed, backend), wanted
        values, change, *lists = _solve(tensors, value, smoothed, wanted[3])
        ctx.save_for_backward(*args[:_INPUTS], change, *lists)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, (value, smoothed, _) = grads[0], ctx.settings
        tensors, change = ctx.saved_tensors[:_INPUTS], ctx.saved_tensors[_INPUTS]
        nothing = (None,) * (len(ctx.needs_input_grad) - 4)
        if not kernels_allowed(g):
            with precisely(g):
                plain = plain_backward(tensors, ctx.settings, Wanted(*ctx.wanted), g)
            return *plain, *nothing
        lists = ctx.saved_tensors[_INPUTS + 1 :]
        parts = _pull_back(tensors, value, smoothed, lists, ctx.wanted, g)
        alpha = alpha_gradient(g, tensors[5], change, tensors[3]) if ctx.wanted[3] else None
        return *parts, alpha, *nothing


# --- torch.compile --------------------------------------------------------------------------------


@torch.library.custom_op("parsimax::linear_entmax_lists", mutates_args=())
def _operator(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    index: Tensor,
    scale: Tensor,
    own: Tensor,
    each: Tensor,
    class_weight: Tensor | None,
    value: float,
    smoothed: bool,
    want_change: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, index, scale, own, each, class_weight)
    values, change, *lists = _solve(tensors, value, smoothed, want_change)
    return values, change, lists[0], lists[1], lists[2], lists[3], lists[4], lists[5]


@_operator.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    index: Tensor,
    scale: Tensor,
    own: Tensor,
    each: Tensor,
    class_weight: Tensor | None,
    value: float,
    smoothed: bool,
    want_change: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from parsimax.kernels.gpu import linear, linear_solve

    tokens, words = len(hidden), len(weight)
    room = linear.capacity(tokens, words, value if alpha is None else None)
    new = hidden.new_empty
    return (
        new(tokens, dtype=torch.float64),
        new(tokens if want_change else 0, dtype=torch.float64),
        new(room, dtype=linear.key_dtype(tokens, words)),
        new(room, dtype=torch.float32),
        new(tokens, dtype=torch.int64),
        new(tokens, dtype=torch.int32),
        new((), dtype=torch.int64),
        new((linear_solve.FIELDS, tokens), dtype=torch.float32),
    )


@torch.library.custom_op("parsimax::linear_entmax_lists_backward", mutates_args=())
def _backward_operator(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    index: Tensor,
    scale: Tensor,
    own: Tensor,
    each: Tensor,
    class_weight: Tensor | None,
    lists: list[Tensor],
    value: float,
    smoothed: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, index, scale, own, each, class_weight)
    parts = _pull_back(tensors, value, smoothed, lists, wanted, g)
    results = [hidden.new_empty(0) if x is None else x for x in parts]
    return results[0], results[1], results[2]


@_backward_operator.register_fake
def _(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    index: Tensor,
    scale: Tensor,
    own: Tensor,
    each: Tensor,
    class_weight: Tensor | None,
    lists: list[Tensor],
    value: float,
    smoothed: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty(hidden.shape if wanted[0] else (0,)),
        weight.new_empty(weight.shape if wanted[1] else (0,)),
        weight.new_empty(weight.shape[:1] if wanted[2] else (0,)),
    )


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.settings = inputs[_INPUTS : _INPUTS + 2]
    ctx.save_for_backward(*inputs[:_INPUTS], *output[1:])
    ctx.set_materialize_grads(False)


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    g, tensors, kept = grads[0], ctx.saved_tensors[:_INPUTS], ctx.saved_tensors[_INPUTS:]
    nothing = (None,) * (_INPUTS + 3 - 4)
    if g is None:
        return None, None, None, None, *nothing
    wanted = list(ctx.needs_input_grad[:4])
    if torch.is_grad_enabled():  # differentiated twice
        plain = plain_backward(tensors, (*ctx.settings, "auto"), Wanted(*wanted), g)
        return *plain, *nothing
    parts = _backward_operator(g, *tensors, list(kept[1:]), *ctx.settings, wanted)
    chosen = [x if want else None for x, want in zip(parts, wanted, strict=False)]
    alpha = alpha_gradient(g, tensors[5], kept[0], tensors[3]) if wanted[3] else None
    return *chosen, alpha, *nothing


_operator.register_autograd(_operator_backward, setup_context=_setup_operator)
