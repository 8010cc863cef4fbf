"""The conjugate with autograd: eager, compiled, and torch.func inside torch.compile."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from parsimax._core.dtypes import exact, exact_dtype
from parsimax._core.validation import forward_levels, recorded, transform_or_forward_mode
from parsimax.mappings.autograd import apply_rowmap
from parsimax.mappings.rowmap import (
    Parameter,
    RowMap,
    batch_first,
    fit,
    kernels_allowed,
    parameter_of,
    push_forward,
    rowmap_named,
)

from .conjugate import (
    Conjugate,
    Saved,
    fast_backward,
    mass_varies,
    parameter_change,
    plain_backward,
    solve_conjugate,
)


def conjugate(
    rowmap: RowMap, z: Tensor, parameter: Parameter, index: Tensor | None, backend: str
) -> Conjugate:
    """Gap, lag, top and p along the last dimension; ``index`` must be valid where given."""
    tensor = parameter if isinstance(parameter, Tensor) else None
    value = 0.0 if isinstance(parameter, Tensor) else float(parameter)
    arguments = (z, tensor, index, value, rowmap.name, backend)
    if recorded():
        if transform_or_forward_mode():  # operators know reverse mode alone
            return _expanded(rowmap, z, parameter, tensor, index, value, backend)
        return Conjugate(*_operator(*arguments))
    if forward_levels() > 1:
        # torch runs an autograd.Function's jvp outside the outer levels: it would come out as zero
        return _expanded(rowmap, z, parameter, tensor, index, value, backend)
    return Conjugate(*_ConjugateFunction.apply(*arguments))  # type: ignore[no-untyped-call]


class _ConjugateFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        z: Tensor,
        parameter: Tensor | None,
        index: Tensor | None,
        value: float,
        name: str,
        backend: str,
    ) -> tuple[Tensor, ...]:
        return tuple(solve_conjugate(z, parameter_of(parameter, value), index, name, backend))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output)
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_forward(*_saved(inputs, output))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        want = saved[1] is not None and ctx.needs_input_grad[1]
        if kernels_allowed(*grads):
            gz, change = fast_backward(saved, ctx.value, ctx.name, ctx.backend, grads, want)
        else:
            gz, change = plain_backward(saved, ctx.value, ctx.name, grads, want)
        return gz, None if change is None else fit(change, saved[1]), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        p, tensor, index, z = ctx.saved_tensors
        dz, dparameter = tangents[0], tangents[1]
        rowmap = rowmap_named(ctx.name)
        wide = exact(p)
        d_gap, d_lag = torch.zeros_like(wide[..., 0]), torch.zeros_like(wide[..., 0])
        if dz is not None:
            d_gap = d_gap + (rowmap.probabilities(wide) * dz).sum(-1)
            if index is not None:
                d_lag = d_lag - dz.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if dparameter is not None:
            change = parameter_change(rowmap, z, wide, parameter_of(tensor, ctx.value))
            d_gap = d_gap + change * dparameter.squeeze(-1)
        d_p = push_forward(p, tensor, ctx.value, ctx.name, dz, dparameter)
        return d_gap, d_lag, None, d_p

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        z, parameter, index, *rest = args
        z, parameter, index = _batch_all(info.batch_size, in_dims, z, parameter, index)
        result = _ConjugateFunction.apply(z, parameter, index, *rest)  # type: ignore[no-untyped-call]
        return result, (0, 0, 0, 0)


# torch binds the arguments of every call to this signature, and would work it out anew each time
_ConjugateFunction.forward.__signature__ = inspect.signature(  # type: ignore[attr-defined]
    _ConjugateFunction.forward
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.value, ctx.name, ctx.backend = inputs[3:]
    ctx.save_for_backward(*_saved(inputs, output))
    ctx.set_materialize_grads(False)  # p as a rule has no gradient, and is as large as the scores


def _saved(inputs: tuple[Any, ...], output: Any) -> Saved:
    z, parameter, index, _, name, _ = inputs
    return output[3], parameter, index, z if mass_varies(rowmap_named(name), parameter) else None


def _batch_all(
    size: int,
    in_dims: tuple[Any, ...],
    z: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Everything with vmap's dimension in front."""
    z, parameter = batch_first(size, in_dims[:2], z, parameter)
    if index is not None:
        batched = in_dims[2] is not None
        index = index.movedim(in_dims[2], 0) if batched else index.expand(size, *index.shape)
    return z, parameter, index


# --- torch.compile and torch.export ---------------------------------------------------------------


@torch.library.custom_op("parsimax::conjugate", mutates_args=())
def _operator(
    z: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    value: float,
    name: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gap, lag, top, p = solve_conjugate(z, parameter_of(parameter, value), index, name, backend)
    return gap, lag, top, p


@_operator.register_fake
def _(
    z: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    value: float,
    name: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = [z.new_empty(z.shape[:-1], dtype=exact_dtype(z)) for _ in range(3)]
    return rows[0], rows[1], rows[2], torch.empty_like(z, memory_format=torch.contiguous_format)


@torch.library.custom_op("parsimax::conjugate_backward", mutates_args=())
def _backward_operator(
    p: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    z: Tensor | None,
    g_gap: Tensor | None,
    g_lag: Tensor | None,
    value: float,
    name: str,
    backend: str,
    want_parameter: bool,
) -> tuple[Tensor, Tensor]:
    saved, grads = (p, parameter, index, z), (g_gap, g_lag, None, None)
    gz, change = fast_backward(saved, value, name, backend, grads, want_parameter)
    return gz, p.new_empty(0, dtype=exact_dtype(p)) if change is None else exact(change)


@_backward_operator.register_fake
def _(
    p: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    z: Tensor | None,
    g_gap: Tensor | None,
    g_lag: Tensor | None,
    value: float,
    name: str,
    backend: str,
    want_parameter: bool,
) -> tuple[Tensor, Tensor]:
    shape = (*p.shape[:-1], 1) if want_parameter else (0,)
    return torch.empty_like(p), p.new_empty(shape, dtype=exact_dtype(p))


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    p, tensor, index, z = ctx.saved_tensors
    want = tensor is not None and ctx.needs_input_grad[1]
    change: Tensor | None
    if grads[3] is not None or torch.is_grad_enabled():  # differentiated twice
        gz, change = plain_backward((p, tensor, index, z), ctx.value, ctx.name, grads, want)
    else:
        gz, change = _backward_operator(
            p, tensor, index, z, grads[0], grads[1], ctx.value, ctx.name, ctx.backend, want
        )
    gradient = fit(change, tensor) if want and change is not None else None
    return gz, gradient, None, None, None, None


_operator.register_autograd(_operator_backward, setup_context=_setup)


# --- torch.func inside torch.compile, and forward mode inside forward mode ------------------------
# As for the mappings themselves (see mappings.compiled): values from an operator without them, and
# derivatives from a step of length zero. They take a classical Runge-Kutta step; where the
# right-hand side is known along the way, as here, that is Simpson's rule: right to the fourth.


def _expanded(
    rowmap: RowMap,
    z: Tensor,
    parameter: Parameter,
    tensor: Tensor | None,
    index: Tensor | None,
    value: float,
    backend: str,
) -> Conjugate:
    fixed, fixed_tensor = z.detach(), None if tensor is None else tensor.detach()
    gap, lag, top = _values_operator(fixed, fixed_tensor, index, value, rowmap.name, backend)
    dz = torch.where(fixed.isfinite(), z - fixed, 0.0)

    def slope(p: Tensor, at: Tensor, where: Parameter) -> Tensor:
        along = (rowmap.probabilities(exact(p)) * dz).sum(-1)
        if tensor is not None and fixed_tensor is not None:
            scores = at if mass_varies(rowmap, tensor) else None
            change = parameter_change(rowmap, scores, exact(p), where)
            along = along + change * (tensor - fixed_tensor).squeeze(-1)
        return along

    middle = fixed + dz / 2
    halfway = parameter if fixed_tensor is None else (parameter + fixed_tensor) / 2
    p = apply_rowmap(rowmap, z, parameter, backend)
    first = slope(p.detach(), fixed, parameter_of(fixed_tensor, value))
    second = slope(apply_rowmap(rowmap, middle, halfway, backend), middle, halfway)
    gap = gap + (first + 4 * second + slope(p, z, parameter)) / 6
    if index is not None:
        lag = lag - dz.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return Conjugate(gap, lag, top, p)


@torch.library.custom_op("parsimax::conjugate_values", mutates_args=())
def _values_operator(
    z: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    value: float,
    name: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return solve_conjugate(z, parameter_of(parameter, value), index, name, backend)[:3]


@_values_operator.register_fake
def _(
    z: Tensor,
    parameter: Tensor | None,
    index: Tensor | None,
    value: float,
    name: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = [z.new_empty(z.shape[:-1], dtype=exact_dtype(z)) for _ in range(3)]
    return rows[0], rows[1], rows[2]


def _values_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    z, parameter, index, *rest = args
    z, parameter, index = _batch_all(info.batch_size, in_dims, z, parameter, index)
    return _values_operator(z, parameter, index, *rest), (0, 0, 0)


_values_operator.register_vmap(_values_vmap)
