"""The loss of a linear layer with autograd where its supports are kept in lists of a fixed size.

That is what the kernels for the GPU do (:mod:`parsimax.kernels.gpu.linear`): the host knows every
shape beforehand and never waits. So torch.compile gets the same two steps as eager mode, the loss
with the lists, and the gradients from the lists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax._core.dtypes import autocast_on
from parsimax._core.validation import recorded
from parsimax.mappings.rowmap import Parameter, fit, kernels_allowed

from .linear_autograd import plain_backward, precisely
from .linear_products import Wanted, as_rows
from .targets import Options, check_range, read_indices

_INPUTS = 6  # hidden, weight, bias, alpha, target, class_weight


class _Settings(NamedTuple):
    """What is no tensor; ``value`` is alpha where that is a number."""

    value: float
    ignore_index: int
    smoothing: float
    reduction: str
    dtype: torch.dtype


def support_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Parameter,
    target: Tensor,
    options: Options,
    backend: str,
    dtype: torch.dtype,
) -> Tensor:
    """The loss in ``dtype``, from arguments that have been checked."""
    check_range(target, len(weight), options)
    items = target.shape
    if hidden.ndim != 2:
        hidden = hidden.reshape(-1, hidden.shape[-1])
        target = target.reshape(-1)
    value, tensor = 0.0, None
    if isinstance(alpha, Tensor):
        tensor = alpha if alpha.numel() == 1 else alpha.expand(*items, 1)
        tensor = tensor.reshape(-1)
    else:
        value = float(alpha)
    class_weight = None if options.weight is None else options.weight.contiguous()
    settings = _Settings(value, options.ignore_index, options.smoothing, options.reduction, dtype)
    tensors = (hidden, weight, bias, tensor, target.contiguous(), class_weight)
    if recorded():
        change = torch.is_grad_enabled() and tensor is not None and tensor.requires_grad
        loss: Tensor = _operator(*tensors, *settings, change)[0]
    else:
        loss = _SupportFunction.apply(*tensors, settings, backend)  # type: ignore[no-untyped-call]
    return loss.reshape(items) if options.reduction == "none" and len(items) != 1 else loss


def _precisely(x: Tensor) -> AbstractContextManager[Any]:
    """As :func:`precisely`, at no cost where there is no autocast."""
    return precisely(x) if autocast_on(x.device) else nullcontext()


def _rows(tensors: Any, settings: _Settings) -> Any:
    """The problem as the kernels take it."""
    from parsimax.kernels.gpu import linear

    hidden, weight, bias, alpha, target, class_weight = tensors
    if alpha is None:
        alpha = settings.value
    elif alpha.dtype not in (torch.float32, torch.float64):
        alpha = alpha.float()
    return linear.Rows(
        hidden,
        weight,
        None if bias is None else bias.contiguous(),
        alpha,
        target,
        class_weight,
        settings.ignore_index,
        settings.smoothing,
        settings.reduction,
    )


def _solve(tensors: Any, settings: _Settings, change: bool) -> tuple[Tensor, Tensor, Any]:
    """(loss, d gap / d alpha, weighted; lists)."""
    from parsimax.kernels.gpu import linear

    with _precisely(tensors[0]):
        solved: tuple[Tensor, Tensor, Any] = linear.solve(
            _rows(tensors, settings), change, settings.dtype
        )
    return solved


def _pull_back(
    tensors: Any, settings: _Settings, lists: Any, wanted: Any, g: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    from parsimax.kernels.gpu import linear

    with _precisely(g):
        return linear.pull_back(_rows(tensors, settings), linear.Lists(*lists), g, *wanted[:3])


def _alpha_gradient(
    g: Tensor, change: Tensor, divisor: Tensor, settings: _Settings, like: Tensor
) -> Tensor:
    factor = g.to(change.dtype)
    if settings.reduction == "mean":
        factor = factor / divisor
    return fit(torch.where(factor == 0, 0.0, factor * change), like)


def _plain_backward(
    tensors: Any, settings: _Settings, backend: str, wanted: Wanted, g: Tensor
) -> tuple[Tensor | None, ...]:
    """In differentiable operations, for gradients of gradients."""
    hidden, weight, bias, alpha, target, class_weight = tensors
    options = Options(class_weight, settings.ignore_index, settings.reduction, settings.smoothing)
    indices = read_indices(target, len(weight), options, hidden)
    rows = as_rows(hidden, weight, bias, settings.value, indices, options, backend)
    column = None if alpha is None else alpha.unsqueeze(-1)
    factors = (rows.index, rows.scale, rows.own, rows.each, class_weight)
    plain = plain_backward(
        (hidden, weight, bias, column, *factors),
        (settings.value, rows.smoothed, backend),
        wanted,
        g,
    )
    return *plain[:3], None if plain[3] is None else plain[3].reshape(-1)


class _SupportFunction(torch.autograd.Function):
    """Not for torch.func, where the plain path is taken."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, settings, backend = args
        ctx.settings, ctx.backend = settings, backend
        loss, change, lists = _solve(tensors, settings, ctx.needs_input_grad[3])
        ctx.save_for_backward(*tensors, change, *lists)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, saved, settings = grads[0], ctx.saved_tensors, ctx.settings
        tensors, change, lists = saved[:_INPUTS], saved[_INPUTS], saved[_INPUTS + 1 :]
        wanted = Wanted(*ctx.needs_input_grad[:4])
        if not kernels_allowed(g):
            with precisely(g):
                plain = _plain_backward(tensors, settings, ctx.backend, wanted, g)
            return *plain, None, None, None, None
        parts = _pull_back(tensors, settings, lists, wanted, g)
        alpha = None
        if wanted.alpha:
            alpha = _alpha_gradient(g, change, lists[-1], settings, tensors[3])
        return *parts, alpha, None, None, None, None


# --- torch.compile --------------------------------------------------------------------------------


@torch.library.custom_op("parsimax::linear_entmax_lists", mutates_args=())
def _operator(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    value: float,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    want_change: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, target, class_weight)
    settings = _Settings(value, ignore_index, smoothing, reduction, dtype)
    loss, change, lists = _solve(tensors, settings, want_change)
    return loss, change, *lists


@_operator.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    value: float,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    want_change: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from parsimax.kernels.gpu import linear

    tokens = len(hidden)
    loss = hidden.new_empty(tokens if reduction == "none" else (), dtype=dtype)
    change = hidden.new_empty(tokens if want_change else 0, dtype=torch.float64)
    number = value if alpha is None else None
    return loss, change, *linear.empty_lists(tokens, len(weight), number, hidden)


@torch.library.custom_op("parsimax::linear_entmax_lists_backward", mutates_args=())
def _backward_operator(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    lists: list[Tensor],
    value: float,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, target, class_weight)
    settings = _Settings(value, ignore_index, smoothing, reduction, dtype)
    parts = _pull_back(tensors, settings, lists, wanted, g)
    results = [hidden.new_empty(0) if x is None else x for x in parts]
    return results[0], results[1], results[2]


@_backward_operator.register_fake
def _(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    alpha: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    lists: list[Tensor],
    value: float,
    ignore_index: int,
    smoothing: float,
    reduction: str,
    dtype: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty(hidden.shape if wanted[0] else (0,)),
        weight.new_empty(weight.shape if wanted[1] else (0,)),
        weight.new_empty(weight.shape[:1] if wanted[2] else (0,)),
    )


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.settings = _Settings(*inputs[_INPUTS:-1])
    ctx.save_for_backward(*inputs[:_INPUTS], *output[1:])
    ctx.set_materialize_grads(False)


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    g, saved, settings = grads[0], ctx.saved_tensors, ctx.settings
    tensors, change, lists = saved[:_INPUTS], saved[_INPUTS], saved[_INPUTS + 1 :]
    nothing = (None,) * (_INPUTS - 4 + len(settings) + 1)
    if g is None:
        return None, None, None, None, *nothing
    wanted = list(ctx.needs_input_grad[:4])
    if torch.is_grad_enabled():  # differentiated twice
        return *_plain_backward(tensors, settings, "auto", Wanted(*wanted), g), *nothing
    parts = _backward_operator(g, *tensors, list(lists), *settings, wanted)
    chosen = [x if want else None for x, want in zip(parts, wanted, strict=False)]
    alpha = None
    if wanted[3]:
        alpha = _alpha_gradient(g, change, lists[-1], settings, tensors[3])
    return *chosen, alpha, *nothing


_operator.register_autograd(_operator_backward, setup_context=_setup_operator)
