"""One row of scores to one row of probabilities: the autograd and dispatch all mappings share.

A :class:`RowMap` states the mathematics of one mapping on the last dimension, in plain torch. From
it come, once and for all, the eager autograd Function (with jvp, vmap and double backward) and the
operator that torch.compile and torch.export see. The Jacobian of every mapping here is symmetric
and is a function of the output alone, so the output is all that is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from parsimax._core.backend import choose
from parsimax._core.dtypes import exact, exact_dtype, working
from parsimax._core.validation import forward_levels, under_transform

Parameter = float | Tensor  # a tensor has the scores' ndim, and size one in the last dimension


@dataclass(frozen=True)
class RowMap:
    """The mathematics of one mapping; all functions act on the last dimension.

    ``solve(y, parameter)`` is the reference solver; it sees scores whose maximum is 0, and -inf
    where masked. ``jacobian(p, v, parameter)`` multiplies by the Jacobian, ``sensitivity(p,
    parameter)`` is dp/dparameter, ``omega`` the regulariser and ``domega`` its derivative in the
    parameter at fixed p. ``feasible(parameter, allowed)`` says which rows have a solution,
    ``mass(parameter)`` what p sums to and ``vertex`` what Omega is at a one-hot vector.
    """

    name: str
    solve: Callable[[Tensor, Parameter], Tensor]
    jacobian: Callable[[Tensor, Tensor, Parameter], Tensor]
    sensitivity: Callable[[Tensor, Parameter], Tensor]
    omega: Callable[[Tensor, Parameter], Tensor]
    domega: Callable[[Tensor, Parameter], Tensor]
    feasible: Callable[[Parameter, Tensor], Tensor]
    mass: Callable[[Parameter], Parameter] = lambda parameter: 1.0
    vertex: float = 0.0


_ROWMAPS: dict[str, RowMap] = {}


def register_rowmap(rowmap: RowMap) -> RowMap:
    """Make a mapping known by name to the operators."""
    _ROWMAPS[rowmap.name] = rowmap
    return rowmap


def rowmap_named(name: str) -> RowMap:
    """The mapping registered under this name."""
    return _ROWMAPS[name]


def apply_rowmap(rowmap: RowMap, z: Tensor, parameter: Parameter, backend: str = "auto") -> Tensor:
    """Probabilities along the last dimension of ``z``, differentiable in scores and parameter."""
    tensor = parameter if isinstance(parameter, Tensor) else None
    value = 0.0 if isinstance(parameter, Tensor) else float(parameter)
    if torch.compiler.is_compiling():
        if under_transform():
            return _expanded(rowmap, z, parameter, tensor, value, backend)
        compiled: Tensor = _operator(z, tensor, value, rowmap.name, backend)
        return compiled
    if forward_levels() > 1:
        # torch runs an autograd.Function's jvp outside the outer levels: it would come out as zero
        return _expanded(rowmap, z, parameter, tensor, value, backend)
    result: Tensor = _RowFunction.apply(z, tensor, value, rowmap.name, backend)  # type: ignore[no-untyped-call]
    return result


def parameter_of(tensor: Tensor | None, value: float) -> Parameter:
    """The two forms in which operators carry a parameter, as one."""
    return value if tensor is None else tensor


def reference(rowmap: RowMap, z: Tensor, parameter: Parameter) -> Tensor:
    """The plain torch solution, in float64 where the device has it, rounded once."""
    y = exact(z).contiguous()  # sums depend on strides in their last digits
    if isinstance(parameter, Tensor):
        parameter = parameter.to(y.dtype)
    top = y.amax(-1, keepdim=True)
    finite = top.isfinite()
    allowed = (y > -torch.inf).sum(-1, keepdim=True)
    good = finite & rowmap.feasible(parameter, allowed)
    p = rowmap.solve(torch.where(finite, y - top, 0.0), parameter)
    p = torch.where(good, p, torch.where(top == -torch.inf, 0.0, torch.nan))
    return p.to(z.dtype)


def solve_rows(z: Tensor, parameter: Parameter, name: str, backend: str) -> Tensor:
    """Forward without autograd, by the chosen backend."""
    chosen = choose(backend, z)
    if z.numel() == 0:
        return torch.empty_like(z, memory_format=torch.contiguous_format)
    if chosen == "numba":
        from parsimax.kernels import cpu

        return cpu.forward(name, z, parameter)
    return reference(rowmap_named(name), z, parameter)


def backward_rows(
    p: Tensor, g: Tensor, parameter: Parameter, name: str, backend: str, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """(gradient in the scores, gradient in the parameter, shape (..., 1) or empty)."""
    chosen = choose(backend, p)
    if chosen == "numba" and p.numel():
        from parsimax.kernels import cpu

        gz, gparameter = cpu.backward(name, p, g, parameter, want_parameter)
        shape = (*p.shape[:-1], 1) if want_parameter else (0,)
        return gz, gparameter.reshape(shape)
    return plain_backward(p, g, parameter, name, want_parameter)


def plain_backward(
    p: Tensor, g: Tensor, parameter: Parameter, name: str, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """The same in differentiable torch operations: for double backward and under torch.func."""
    if p.numel() == 0:
        return torch.zeros_like(p), p.new_zeros((*p.shape[:-1], 1) if want_parameter else (0,))
    rowmap = rowmap_named(name)
    work = working(p)
    broken = work.isnan()
    gz = rowmap.jacobian(work, g.to(work.dtype), parameter).to(p.dtype)
    gz = torch.where(broken, torch.nan, gz)
    if not want_parameter:
        return gz, p.new_empty(0)
    change = torch.where(broken, torch.nan, rowmap.sensitivity(work, parameter))
    return gz, (g.to(work.dtype) * change).sum(-1, keepdim=True)


def kernels_allowed(*gradients: Tensor | None) -> bool:
    """False where the backward itself will be differentiated or transformed."""
    return not torch.is_grad_enabled() and not under_transform(*gradients)


def fit(gradient: Tensor, like: Tensor) -> Tensor:
    """Sum a broadcast parameter's gradient back to the parameter's shape and dtype."""
    return gradient.sum_to_size(like.shape).to(like.dtype)


class _RowFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str
    ) -> Tensor:
        return solve_rows(z, parameter_of(parameter, value), name, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, parameter, ctx.value, ctx.name, ctx.backend = inputs
        ctx.save_for_backward(output, parameter)
        ctx.save_for_forward(output, parameter)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        p, tensor = ctx.saved_tensors
        parameter = parameter_of(tensor, ctx.value)
        want = tensor is not None and ctx.needs_input_grad[1]
        if kernels_allowed(*grads):
            gz, gp = backward_rows(p, grads[0], parameter, ctx.name, ctx.backend, want)
        else:
            gz, gp = plain_backward(p, grads[0], parameter, ctx.name, want)
        return gz, fit(gp, tensor) if want else None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        p, tensor = ctx.saved_tensors
        return push_forward(p, tensor, ctx.value, ctx.name, tangents[0], tangents[1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        z, parameter, value, name, backend = args
        z, parameter = batch_first(info.batch_size, in_dims[:2], z, parameter)
        return _RowFunction.apply(z, parameter, value, name, backend), 0  # type: ignore[no-untyped-call]


def push_forward(
    p: Tensor, tensor: Tensor | None, value: float, name: str, dz: Any, dparameter: Any
) -> Tensor:
    """The directional derivative of the output."""
    rowmap = rowmap_named(name)
    parameter = parameter_of(tensor, value)
    out = torch.zeros_like(p)
    if p.numel() == 0:
        return out
    if dz is not None:
        out = out + rowmap.jacobian(p, dz, parameter)
    if dparameter is not None:
        out = out + rowmap.sensitivity(p, parameter) * dparameter
    return torch.where(p.isnan(), torch.nan, out).to(p.dtype)


def batch_first(
    size: int, in_dims: tuple[Any, ...], z: Tensor, parameter: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Scores and parameter with vmap's dimension in front (the parameter's may be absent)."""
    z = z.expand(size, *z.shape) if in_dims[0] is None else z.movedim(in_dims[0], 0)
    if parameter is not None and in_dims[1] is not None:
        parameter = parameter.movedim(in_dims[1], 0)
    elif parameter is not None:
        parameter = parameter.unsqueeze(0)
    return z, parameter


@torch.library.custom_op("parsimax::rowmap", mutates_args=())
def _operator(z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str) -> Tensor:
    return solve_rows(z, parameter_of(parameter, value), name, backend)


@_operator.register_fake
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


_operator.register_autograd(_operator_backward, setup_context=_setup_operator)


# --- torch.func inside torch.compile, and forward mode inside forward mode ----------------------
# An operator with register_autograd has no forward derivative there (it comes out as zero, without
# a word), and an autograd.Function with a jvp cannot be compiled. So the values come from an
# operator without derivatives, and the derivatives from a step of length zero of the classical
# Runge-Kutta rule for dp = J(p) dz + dp/dparameter dparameter, in plain torch: right to the fourth.


def _expanded(
    rowmap: RowMap,
    z: Tensor,
    parameter: Parameter,
    tensor: Tensor | None,
    value: float,
    backend: str,
) -> Tensor:
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
    return solve_rows(z, parameter_of(parameter, value), name, backend)


@_values_operator.register_fake
def _(z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


def _values_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    z, parameter, value, name, backend = args
    z, parameter = batch_first(info.batch_size, in_dims[:2], z, parameter)
    return _values_operator(z, parameter, value, name, backend), 0


_values_operator.register_vmap(_values_vmap)
