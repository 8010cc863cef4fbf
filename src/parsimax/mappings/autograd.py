"""Apply a row map with derivatives: by autograd.Function in eager mode, by operators elsewhere."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from parsimax._core.validation import (
    forward_levels,
    recorded,
    transform_or_forward_mode,
)

from .compiled import expanded, rowmap_operator
from .rowmap import (
    Parameter,
    RowMap,
    backward_rows,
    batch_first,
    fit,
    kernels_allowed,
    parameter_of,
    plain_backward,
    push_forward,
    solve_rows,
)


def apply_rowmap(rowmap: RowMap, z: Tensor, parameter: Parameter, backend: str = "auto") -> Tensor:
    """Probabilities along the last dimension of ``z``, differentiable in scores and parameter."""
    tensor = parameter if isinstance(parameter, Tensor) else None
    value = 0.0 if isinstance(parameter, Tensor) else float(parameter)
    if recorded():
        if transform_or_forward_mode():  # operators know reverse mode alone
            return expanded(rowmap, z, parameter, tensor, value, backend)
        compiled: Tensor = rowmap_operator(z, tensor, value, rowmap.name, backend)
        return compiled
    result: Tensor
    if transform_or_forward_mode():
        if forward_levels() > 1:
            # torch runs an autograd.Function's jvp outside the outer levels: it would be zero
            return expanded(rowmap, z, parameter, tensor, value, backend)
        result = _RowFunction.apply(z, tensor, value, rowmap.name, backend)  # type: ignore[no-untyped-call]
        return result
    wanted = z.requires_grad or (tensor is not None and tensor.requires_grad)
    if not wanted or not torch.is_grad_enabled():
        return solve_rows(z, parameter, rowmap.name, backend)
    result = _ReverseFunction.apply(z, tensor, value, rowmap.name, backend)  # type: ignore[no-untyped-call]
    return result


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    p, tensor = ctx.saved_tensors
    parameter = parameter_of(tensor, ctx.value)
    want = tensor is not None and ctx.needs_input_grad[1]
    if kernels_allowed(*grads):
        gz, gp = backward_rows(p, grads[0], parameter, ctx.name, ctx.backend, want)
    else:
        gz, gp = plain_backward(p, grads[0], parameter, ctx.name, want)
    return gz, fit(gp, tensor) if want else None, None, None, None


class _ReverseFunction(torch.autograd.Function):
    """Reverse mode alone, which is what training asks for: torch calls this form twice as fast."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, parameter: Tensor | None, value: float, name: str, backend: str
    ) -> Tensor:
        p = solve_rows(z, parameter_of(parameter, value), name, backend)
        ctx.save_for_backward(p, parameter)
        ctx.value, ctx.name, ctx.backend = value, name, backend
        return p

    backward = staticmethod(_backward)


class _RowFunction(torch.autograd.Function):
    """The same with forward mode and torch.func."""

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

    backward = staticmethod(_backward)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        p, tensor = ctx.saved_tensors
        return push_forward(p, tensor, ctx.value, ctx.name, tangents[0], tangents[1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
        z, parameter, value, name, backend = args
        z, parameter = batch_first(info.batch_size, in_dims[:2], z, parameter)
        return _RowFunction.apply(z, parameter, value, name, backend), 0  # type: ignore[no-untyped-call]


# torch binds the arguments of every call to this signature, and would work it out anew each time
_RowFunction.forward.__signature__ = inspect.signature(_RowFunction.forward)  # type: ignore[attr-defined]
