"""One row of scores to one row of probabilities: what a mapping states, and who computes it.

A :class:`RowMap` states the mathematics of one mapping on the last dimension, in plain torch. From
it :mod:`.autograd` makes the eager Function and :mod:`.compiled` the operators that torch.compile
and torch.export see, once and for all. The Jacobian of every mapping here is symmetric and is a
function of the output alone, so the output is all that is saved. Where the probabilities do not
say it all (fusedmax must know which entries were masked), the output is a code for them that does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from parsimax._core.backend import choose
from parsimax._core.dtypes import exact, working
from parsimax._core.masks import same_shape
from parsimax._core.validation import under_transform, without_values
from parsimax.kernels import kernels_of

Parameter = float | Tensor  # a tensor has the scores' ndim, and size one in the last dimension


@dataclass(frozen=True)
class RowMap:
    """The mathematics of one mapping; all functions act on the last dimension.

    ``parameter_name`` is what its users call the parameter.

    ``solve(y, parameter)`` is the reference solver; it sees scores whose maximum is 0, and -inf
    where masked. ``jacobian(p, v, parameter)`` multiplies by the Jacobian, ``sensitivity(p,
    parameter)`` is dp/dparameter, ``omega`` the regulariser and ``domega`` its derivative in the
    parameter at fixed p. ``feasible(parameter, allowed)`` says which rows have a solution,
    ``mass(parameter)`` what p sums to and ``vertex`` what Omega is at a one-hot vector.

    Where ``vertex`` is None, Omega is not the same at every one-hot vector. Where the output is a
    code, ``decode`` makes it probabilities, and ``encode(y, allowed)`` writes a vector as such a
    code; all the functions above take codes. ``by_groups`` says that entries of equal probability
    move together.
    """

    name: str
    parameter_name: str
    solve: Callable[[Tensor, Parameter], Tensor]
    jacobian: Callable[[Tensor, Tensor, Parameter], Tensor]
    sensitivity: Callable[[Tensor, Parameter], Tensor]
    omega: Callable[[Tensor, Parameter], Tensor]
    domega: Callable[[Tensor, Parameter], Tensor]
    feasible: Callable[[Parameter, Tensor], Tensor]
    mass: Callable[[Parameter], Parameter] = lambda parameter: 1.0
    vertex: float | None = 0.0
    by_groups: bool = False
    decode: Callable[[Tensor], Tensor] | None = None
    encode: Callable[[Tensor, Tensor], Tensor] | None = None

    def probabilities(self, output: Tensor) -> Tensor:
        """The output as what the user gets."""
        return output if self.decode is None else self.decode(output)


_ROWMAPS: dict[str, RowMap] = {}


def register_rowmap(rowmap: RowMap) -> RowMap:
    """Make a mapping known by name to the operators."""
    _ROWMAPS[rowmap.name] = rowmap
    return rowmap


def rowmap_named(name: str) -> RowMap:
    """The mapping registered under this name."""
    return _ROWMAPS[name]


def parameter_of(tensor: Tensor | None, value: float) -> Parameter:
    """The two forms in which operators carry a parameter, as one."""
    return value if tensor is None else tensor


def parameter_holds(parameter: Parameter, allowed: Tensor, ok: Callable[[Any], Any]) -> Tensor:
    """Whether ``ok`` holds for the parameter of each row; a number is not rounded for it."""
    good = ok(parameter)
    return good if isinstance(good, Tensor) else torch.full_like(allowed, good, dtype=torch.bool)


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


def kernels_for(name: str, backend: str, z: Tensor) -> ModuleType | None:
    """The kernels that compute this mapping; None for plain torch.

    A backend that was asked for by name and has no kernel for it raises.
    """
    chosen = choose(backend, z)
    kernels = kernels_of(chosen)
    if kernels is None or name in kernels.MAPPINGS:
        return kernels
    if backend != "auto":
        raise ValueError(
            f"backend={backend!r} cannot run: it has no kernel for {name}; use backend='auto'"
        )
    return None


def solve_rows(z: Tensor, parameter: Parameter, name: str, backend: str) -> Tensor:
    """Forward without autograd, by the chosen backend."""
    kernels = kernels_for(name, backend, z)
    if z.numel() == 0 or without_values(z):
        return torch.empty_like(z, memory_format=torch.contiguous_format)
    if kernels is None:
        return reference(rowmap_named(name), z, parameter)
    p: Tensor = kernels.forward(name, z, parameter)
    return p


def backward_rows(
    p: Tensor, g: Tensor, parameter: Parameter, name: str, backend: str, want_parameter: bool
) -> tuple[Tensor, Tensor]:
    """(gradient in the scores, gradient in the parameter, shape (..., 1) or empty)."""
    kernels = kernels_for(name, backend, p)
    if kernels is None or p.numel() == 0 or without_values(p):
        return plain_backward(p, g, parameter, name, want_parameter)
    gz, gparameter = kernels.backward(name, p, g, parameter, want_parameter)
    return gz, gparameter.reshape(*p.shape[:-1], 1) if want_parameter else gparameter


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
    same = same_shape(gradient.shape, like.shape)
    summed = gradient if same else gradient.sum_to_size(like.shape)
    return summed if summed.dtype == like.dtype else summed.to(like.dtype)


def push_forward(
    p: Tensor, tensor: Tensor | None, value: float, name: str, dz: Any, dparameter: Any
) -> Tensor:
    """The directional derivative of the output."""
    rowmap = rowmap_named(name)
    parameter = parameter_of(tensor, value)
    work = working(p)
    out = torch.zeros_like(work)
    if p.numel() == 0:
        return out.to(p.dtype)
    if dz is not None:
        out = out + rowmap.jacobian(work, dz.to(work.dtype), parameter)
    if dparameter is not None:
        out = out + rowmap.sensitivity(work, parameter) * dparameter
    return torch.where(work.isnan(), torch.nan, out).to(p.dtype)


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
