"""The loss of a linear layer with autograd: eager, compiled, and differentiated twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from parsimax._core.dtypes import exact_dtype, working
from parsimax._core.validation import recorded
from parsimax.mappings.autograd import apply_rowmap
from parsimax.mappings.entmax import ENTMAX
from parsimax.mappings.rowmap import fit, kernels_allowed, parameter_of

from .linear_chunks import Kept, every_chunk, pull_back, solve_chunks
from .linear_products import Gradients, Problem, Wanted, add_rank_one, working_dtype

_INPUTS = 9  # hidden, weight, bias, alpha, index, scale, own, each, class_weight


def linear_rows(problem: Problem, total: bool) -> Tensor:
    """Losses of the rows, or their ``total``, with gradients in hidden, weight, bias and alpha."""
    tensor = problem.alpha if isinstance(problem.alpha, Tensor) else None
    value = 0.0 if isinstance(problem.alpha, Tensor) else float(problem.alpha)
    inputs = (problem.hidden, problem.weight, problem.bias, tensor)
    enabled = torch.is_grad_enabled()
    wanted = [enabled and x is not None and x.requires_grad for x in inputs]
    arguments = (
        *inputs,
        problem.index,
        problem.scale,
        problem.own,
        problem.each,
        problem.class_weight,
        value,
        problem.smoothed,
        problem.backend,
        total,
        wanted,
    )
    if recorded():
        compiled: Tensor = _operator(*arguments)[0]
        return compiled
    result: Tensor = _LinearFunction.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _problem(tensors: Any, value: float, smoothed: bool, backend: str) -> Problem:
    detached: Any = [None if x is None else x.detach() for x in tensors]
    hidden, weight, bias, alpha, index, scale, own, each, class_weight = detached
    return Problem(
        hidden=hidden,
        weight=weight,
        bias=bias,
        alpha=parameter_of(alpha, value),
        index=index,
        scale=scale,
        own=own,
        each=each,
        class_weight=class_weight,
        smoothed=smoothed,
        backend=backend,
    )


def precisely(x: Tensor) -> Any:
    """Products in the dtypes we choose: the caller's autocast has been applied already."""
    return torch.autocast(x.device.type, enabled=False)


def alpha_gradient(g: Tensor, scale: Tensor, change: Tensor | None, like: Tensor) -> Tensor:
    """The gradient in alpha, from d gap / d alpha of the rows."""
    assert change is not None
    factor = g.to(scale.dtype) * scale
    return fit(torch.where(factor == 0, 0.0, factor * change).unsqueeze(-1), like)


class _LinearFunction(torch.autograd.Function):
    """Not for torch.func, where the plain path is taken; so its context may keep what it likes."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        tensors = args[:_INPUTS]
        value, smoothed, backend, total, wanted = args[_INPUTS:]
        ctx.settings, ctx.wanted = (value, smoothed, backend), Wanted(*wanted)
        with precisely(tensors[0]):
            problem = _problem(tensors, *ctx.settings)
            outcome = solve_chunks(problem, ctx.wanted, total, keep=True)
        kept = outcome.kept
        dense = kept.dense or Gradients(None, None, None)
        ctx.again = kept.again
        ctx.save_for_backward(
            *tensors,
            outcome.change,
            *(kept.support or (None, None, None)),
            *(dense.hidden, dense.weight, dense.bias),
        )
        ctx.support = None if kept.support is None else type(kept.support)
        ctx.dense = kept.dense is not None
        return outcome.values.sum() if total else outcome.values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, wanted = grads[0], ctx.wanted
        saved = ctx.saved_tensors  # once: checkpoints give them no second time
        tensors, change = saved[:_INPUTS], saved[_INPUTS]
        nothing = (None,) * (len(ctx.needs_input_grad) - 4)
        with precisely(g):
            if not kernels_allowed(g):
                return *plain_backward(tensors, ctx.settings, wanted, g), *nothing
            kept = saved[_INPUTS + 1 :]
            support = ctx.support(*kept[:3]) if ctx.support else None
            dense = Gradients(*kept[3:]) if ctx.dense else None
            problem = _problem(tensors, *ctx.settings)
            result = pull_back(problem, Kept(support, dense, ctx.again), wanted, g)
        return *_rounded(result, tensors, wanted, g, change), *nothing


def _rounded(
    result: Gradients, tensors: Any, wanted: Wanted, g: Tensor, change: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Gradients in the dtypes of hidden, weight, bias and alpha."""
    buffers = (result.hidden, result.weight, result.bias)
    rounded = [
        None if x is None else x.to(like.dtype) for x, like in zip(buffers, tensors, strict=False)
    ]
    alpha = alpha_gradient(g, tensors[5], change, tensors[3]) if wanted.alpha else None
    return *rounded, alpha


def plain_backward(
    tensors: Any, settings: tuple[float, bool, str], wanted: Wanted, g: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients in differentiable torch operations, with all logits at once."""
    hidden, weight, bias, tensor, index, scale, own, each, class_weight = tensors
    value, smoothed, backend = settings
    alpha = parameter_of(tensor, value)
    z = F.linear(hidden, weight, bias)
    p = working(apply_rowmap(ENTMAX, z, alpha, backend))
    here = torch.arange(len(weight), device=z.device) == index.unsqueeze(-1)
    scale, own, each = ((g.to(x.dtype) * x).to(p.dtype).unsqueeze(-1) for x in (scale, own, each))
    gz = scale * p - torch.where(here, own, 0.0)
    if smoothed:
        gz = gz - (each if class_weight is None else each * class_weight.to(p.dtype))
    gz = gz.to(z.dtype)
    change = None
    if wanted.alpha:
        change = fit(-scale * ENTMAX.domega(p, alpha).unsqueeze(-1), tensor)
    return (
        gz @ weight if wanted.hidden else None,
        gz.transpose(-1, -2) @ hidden if wanted.weight else None,
        gz.sum(-2) if wanted.bias else None,
        change,
    )


# --- torch.compile --------------------------------------------------------------------------------
# An operator returns tensors whose shapes are known beforehand, and a support's is not. So the
# gradients of a total are computed at once, and those of single rows from logits computed again.
# Those of a total are rounded to half precision only when they have their factor from above.


@torch.library.custom_op("parsimax::linear_entmax", mutates_args=())
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
    backend: str,
    total: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, index, scale, own, each, class_weight)
    with precisely(hidden):
        problem = _problem(tensors, value, smoothed, backend)
        outcome = solve_chunks(problem, Wanted(*wanted), total, keep=False)
        if outcome.kept.dense is not None and smoothed:
            add_rank_one(problem, outcome.kept.dense)
    dense = outcome.kept.dense or Gradients(None, None, None)
    nothing = hidden.new_empty(0, dtype=working_dtype(hidden))
    results = [
        nothing.clone() if x is None else x for x in (dense.hidden, dense.weight, dense.bias)
    ]
    change = scale.new_empty(0) if outcome.change is None else outcome.change
    value_or_total = outcome.values.sum() if total else outcome.values
    return value_or_total, results[0], results[1], results[2], change


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
    backend: str,
    total: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, dtype = hidden.shape[:1], working_dtype(hidden)
    return (
        hidden.new_empty(() if total else rows, dtype=exact_dtype(hidden)),
        hidden.new_empty(hidden.shape if total and wanted[0] else (0,), dtype=dtype),
        weight.new_empty(weight.shape if total and wanted[1] else (0,), dtype=dtype),
        weight.new_empty(weight.shape[:1] if total and wanted[2] else (0,), dtype=dtype),
        hidden.new_empty(rows if wanted[3] else (0,), dtype=exact_dtype(hidden)),
    )


@torch.library.custom_op("parsimax::linear_entmax_backward", mutates_args=())
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
    value: float,
    smoothed: bool,
    backend: str,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (hidden, weight, bias, alpha, index, scale, own, each, class_weight)
    with precisely(hidden):
        problem = _problem(tensors, value, smoothed, backend)
        kept = Kept(None, None, every_chunk(problem))
        result = pull_back(problem, kept, Wanted(*wanted), g)
    buffers = ((result.hidden, hidden), (result.weight, weight), (result.bias, weight))
    results = [like.new_empty(0) if x is None else x.to(like.dtype) for x, like in buffers]
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
    value: float,
    smoothed: bool,
    backend: str,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty(hidden.shape if wanted[0] else (0,)),
        weight.new_empty(weight.shape if wanted[1] else (0,)),
        weight.new_empty(weight.shape[:1] if wanted[2] else (0,)),
    )


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    value, smoothed, backend, ctx.total, wanted = inputs[_INPUTS:]
    ctx.settings, ctx.wanted = (value, smoothed, backend), Wanted(*wanted)
    ctx.save_for_backward(*inputs[:_INPUTS], *output[1:])
    ctx.set_materialize_grads(False)


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    g, wanted = grads[0], ctx.wanted
    saved = ctx.saved_tensors
    tensors, kept = saved[:_INPUTS], saved[_INPUTS:]
    nothing = (None,) * (_INPUTS + 5 - 4)
    if g is None:
        return None, None, None, None, *nothing
    if torch.is_grad_enabled():  # differentiated twice
        return *plain_backward(tensors, ctx.settings, wanted, g), *nothing
    if ctx.total:
        parts = [(x * g.to(x.dtype)).to(tensors[0].dtype) for x in kept[:3]]
    else:
        parts = list(_backward_operator(g, *tensors, *ctx.settings, list(wanted)))
    chosen = [x if want else None for x, want in zip(parts, wanted, strict=False)]
    alpha = alpha_gradient(g, tensors[5], kept[3], tensors[3]) if wanted.alpha else None
    return *chosen, alpha, *nothing


_operator.register_autograd(_operator_backward, setup_context=_setup_operator)
