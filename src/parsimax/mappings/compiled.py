"""Row maps as operators: what torch.compile and torch.export see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax._core.dtypes import exact, exact_dtype

from .rowmap import (
    Parameter,
    RowMap,
    backward_rows,
    batch_first,
    fit,
    parameter_of,
    plain_backward,
    solve_rows,
)


@torch.library.custom_op("parsimax::rowmap", mutates_args=())
def rowmap_operator(
    z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str
) -> Tensor:
    """The mapping as torch.compile and torch.export see it; one of tensor and value counts."""
    return solve_rows(z, parameter_of(parameter, value), name, backend).contiguous()


@rowmap_operator.register_fake
def _(z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


@torch.library.custom_op("parsimax::rowmap_backward", mutates_args=())
def _backward_operator(
    p: Tensor,
    g: Tensor,
    parameter: Tensor | None,
    value: float,
    name: str,
    backend: str,
    want_parameter: bool,
) -> tuple[Tensor, Tensor]:
    gz, gparameter = backward_rows(
        p, g, parameter_of(parameter, value), name, backend, want_parameter
    )
    return gz, exact(gparameter)


@_backward_operator.register_fake
def _(
    p: Tensor,
    g: Tensor,
    parameter: Tensor | None,
    value: float,
    name: str,
    backend: str,
    want_parameter: bool,
) -> tuple[Tensor, Tensor]:
    shape = (*p.shape[:-1], 1) if want_parameter else (0,)
    return torch.empty_like(p), p.new_empty(shape, dtype=exact_dtype(p))


def _setup_operator(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, parameter, ctx.value, ctx.name, ctx.backend = inputs
    ctx.save_for_backward(output, parameter)


def _operator_backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    p, tensor = ctx.saved_tensors
    want = tensor is not None and ctx.needs_input_grad[1]
    if torch.is_grad_enabled():  # an exported program may be differentiated twice
        parameter = parameter_of(tensor, ctx.value)
        gz, gparameter = plain_backward(p, g, parameter, ctx.name, want)
    else:
        gz, gparameter = _backward_operator(p, g, tensor, ctx.value, ctx.name, ctx.backend, want)
    return gz, fit(gparameter, tensor) if want else None, None, None, None


rowmap_operator.register_autograd(_operator_backward, setup_context=_setup_operator)


# --- torch.func inside torch.compile, and forward mode inside forward mode ----------------------
# An operator with register_autograd has no forward derivative there (it comes out as zero, without
# a word), and an autograd.Function with a jvp cannot be compiled. So the values come from an
# operator without derivatives, and the derivatives from a step of length zero of the classical
# Runge-Kutta rule for dp = J(p) dz + dp/dparameter dparameter, in plain torch: right to the fourth.


def expanded(
    rowmap: RowMap,
    z: Tensor,
    parameter: Parameter,
    tensor: Tensor | None,
    value: float,
    backend: str,
) -> Tensor:
    """The mapping with derivatives of every mode, up to the fourth."""
    fixed = z.detach()
    fixed_tensor = None if tensor is None else tensor.detach()
    p: Tensor = _values_operator(fixed, fixed_tensor, value, rowmap.name, backend)
    dz = torch.where(fixed.isfinite(), z - fixed, 0.0)

    def change(at: Tensor, where: Parameter) -> Tensor:
        moved = rowmap.jacobian(at, dz, where)
        if tensor is not None and fixed_tensor is not None:
            moved = moved + rowmap.sensitivity(at, where) * (tensor - fixed_tensor)
        return moved.to(p.dtype)

    start = parameter_of(fixed_tensor, value)
    middle = parameter if fixed_tensor is None else (parameter + fixed_tensor) / 2
    first = change(p, start)
    second = change(p + first / 2, middle)
    third = change(p + second / 2, middle)
    fourth = change(p + third, parameter)
    return p + (first + 2 * second + 2 * third + fourth) / 6


@torch.library.custom_op("parsimax::rowmap_values", mutates_args=())
def _values_operator(
    z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str
) -> Tensor:
    return solve_rows(z, parameter_of(parameter, value), name, backend).contiguous()


@_values_operator.register_fake
def _(z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


def _values_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    z, parameter, value, name, backend = args
    z, parameter = batch_first(info.batch_size, in_dims[:2], z, parameter)
    return _values_operator(z, parameter, value, name, backend), 0


_values_operator.register_vmap(_values_vmap)
