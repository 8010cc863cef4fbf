r"""Mappings whose entries have bounds of their own: what one states, who computes it, derivatives.

The solution of such a mapping is at a bound, or *free*. What the bounds leave is shared by the free
entries, and a change of it in proportion to weights w that only the mapping knows: with B the
entries at a bound b and F the free ones,

.. math:: dp_B = db_B, \qquad
    dp_i = w_i \Bigl(dz_i - \frac{\sum_F w_j dz_j + \sum_B db_j}{\sum_F w_j}\Bigr), \ i \in F

so the output and the bounds are all that a gradient needs. Where nothing is free, see
:func:`makes_up`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax._core.dtypes import HALF, exact
from parsimax._core.validation import recorded, transform_or_forward_mode, without_values

from .rowmap import kernels_allowed, kernels_for


@dataclass(frozen=True)
class BoxMap:
    """One mapping; its functions act on the last dimension.

    ``solve(y, upper, lower)`` is the reference solver: it sees scores whose maximum is 0, and -inf
    where masked, and bounds between 0 and 1, both 0 where masked. ``weight(p)`` is w above, and
    ``moved(p, step)`` what the free p become, up to a factor, when their scores change by ``step``.
    """

    name: str
    solve: Callable[[Tensor, Tensor, Tensor], Tensor]
    weight: Callable[[Tensor], Tensor]
    moved: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


_BOXMAPS: dict[str, BoxMap] = {}


def register_boxmap(boxmap: BoxMap) -> BoxMap:
    """Make a mapping known by name to the operators."""
    _BOXMAPS[boxmap.name] = boxmap
    return boxmap


class Bounds(NamedTuple):
    """Upper and lower bounds in the shape and dtype of the scores; no lower ones means 0.

    Sums may miss one by ``room``: the bounds may have been rounded before they came here.
    """

    upper: Tensor
    lower: Tensor | None
    room: float


def slack(*dtypes: torch.dtype) -> float:
    """How far bounds given in these dtypes may miss a sum of one by, the coarsest deciding.

    What the contract grants any output; in half precision what rounding takes from 1 / n.
    """
    return max(_SLACK.get(dtype, 1e-6) for dtype in dtypes)


_SLACK = {torch.float64: 1e-12} | {half: float(torch.finfo(half).eps) for half in HALF}


def active(p: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Entries at their upper bound (1 binds nothing), and at their lower one."""
    above = (p >= bounds.upper) & (bounds.upper < 1)
    below = p <= (0.0 if bounds.lower is None else bounds.lower)
    return above, below & ~above


# --- values ---------------------------------------------------------------------------------------


def reference(boxmap: BoxMap, z: Tensor, bounds: Bounds) -> Tensor:
    """The plain torch solution, in float64 where the device has it, rounded once."""
    y = exact(z).contiguous()
    allowed = y > -torch.inf
    upper = torch.where(allowed, exact(bounds.upper).clamp(max=1.0), 0.0)
    lower = torch.zeros_like(y)
    if bounds.lower is not None:
        lower = torch.where(allowed, exact(bounds.lower), 0.0)
    top = y.amax(-1, keepdim=True)
    finite = top.isfinite()
    good = finite & (upper.sum(-1, keepdim=True) >= 1 - bounds.room)
    good = good & (lower.sum(-1, keepdim=True) <= 1 + bounds.room)
    good = good & ((lower >= 0) & (lower <= upper)).all(-1, keepdim=True)
    # a row without a solution is solved like another, and forgotten
    upper, lower = torch.where(good, upper, 1.0), torch.where(good, lower, 0.0)
    p = boxmap.solve(torch.where(good, y - top, 0.0), upper, lower)
    p = torch.where(good, p, torch.where(top == -torch.inf, 0.0, torch.nan))
    return p.to(z.dtype)


def solve_box(z: Tensor, bounds: Bounds, name: str, backend: str) -> Tensor:
    """Forward without autograd, by the chosen backend."""
    kernels = kernels_for(name, backend, z)
    if z.numel() == 0 or without_values(z):
        return torch.empty_like(z, memory_format=torch.contiguous_format)
    if kernels is None:
        return reference(_BOXMAPS[name], z, bounds)
    p: Tensor = kernels.box_forward(name, z, *bounds)
    return p


# --- derivatives ----------------------------------------------------------------------------------


def apply_box(boxmap: BoxMap, z: Tensor, bounds: Bounds, backend: str) -> Tensor:
    """Probabilities along the last dimension, differentiable in scores and bounds."""
    if recorded() or transform_or_forward_mode():
        return _expanded(boxmap, z, bounds, backend)
    tensors = [x for x in (z, bounds.upper, bounds.lower) if x is not None]
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return solve_box(z, bounds, boxmap.name, backend)
    result: Tensor = _BoxFunction.apply(z, *bounds, boxmap.name, backend)  # type: ignore[no-untyped-call]
    return result


class _BoxFunction(torch.autograd.Function):
    """Reverse mode, which is what training asks for."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        upper: Tensor,
        lower: Tensor | None,
        room: float,
        name: str,
        backend: str,
    ) -> Tensor:
        p = solve_box(z, Bounds(upper, lower, room), name, backend)
        ctx.save_for_backward(p, upper, lower)
        ctx.room, ctx.name, ctx.backend = room, name, backend
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        p, upper, lower = ctx.saved_tensors
        bounds, g = Bounds(upper, lower, ctx.room), grads[0]
        kernels = kernels_for(ctx.name, ctx.backend, p)
        if kernels is None or p.numel() == 0 or not kernels_allowed(g):
            found = _plain_backward(_BOXMAPS[ctx.name], p, bounds, g)
        else:
            found = kernels.box_backward(ctx.name, p, g, upper, lower, ctx.needs_input_grad[1])
        wanted = ctx.needs_input_grad[:3]
        gradients = (x if want else None for x, want in zip(found, wanted, strict=True))
        return (*gradients, None, None, None)


def _plain_backward(
    boxmap: BoxMap, p: Tensor, bounds: Bounds, g: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """In differentiable torch operations: gradients in scores, upper and lower bounds."""
    above, below = active(p, bounds)
    free = ~(above | below)
    w = torch.where(free, boxmap.weight(p), 0.0)
    mean = _mean(g, w, makes_up(p, above, below))
    gz = torch.where(p.isnan(), torch.nan, torch.where(free, w * (g - mean), 0.0))
    return (
        gz,
        torch.where(above, g - mean, 0.0),
        None if bounds.lower is None else torch.where(below, g - mean, 0.0),
    )


def _mean(g: Tensor, w: Tensor, otherwise: Tensor) -> Tensor:
    """Of ``g`` with weights w, or over ``otherwise`` where these are all 0."""
    total = w.sum(-1, keepdim=True)
    w = torch.where(total > 0, w, otherwise.to(w.dtype))
    total = w.sum(-1, keepdim=True)
    return (w * g).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


def makes_up(p: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Entries that make up, all alike, for a change of the bounds where none is free.

    There is a kink there, and the sum is kept all the same: by those at their upper bounds, and by
    those at positive lower ones where there are none.
    """
    return torch.where(above.any(-1, keepdim=True), above, below & (p > 0))


# --- torch.compile, torch.export, torch.func, forward mode ----------------------------------------
# Values come from an operator without derivatives. On the set of entries that are free there, the
# mapping is an explicit function, and all its derivatives are those of a step of length zero.


def _expanded(boxmap: BoxMap, z: Tensor, bounds: Bounds, backend: str) -> Tensor:
    lower = None if bounds.lower is None else bounds.lower.detach()
    fixed = Bounds(bounds.upper.detach(), lower, bounds.room)
    p: Tensor = _values_operator(z.detach(), *fixed, boxmap.name, backend)
    above, below = active(p, fixed)
    step = torch.where(z.detach().isfinite(), z - z.detach(), 0.0)
    bound = torch.where(above, bounds.upper - fixed.upper, 0.0)
    if bounds.lower is not None and fixed.lower is not None:
        bound = bound + torch.where(below, bounds.lower - fixed.lower, 0.0)
    free = ~(above | below)
    alike = makes_up(p, above, below).to(p.dtype)
    alike = alike / alike.sum(-1, keepdim=True).clamp(min=1)
    alike = torch.where(free.any(-1, keepdim=True), 0.0, alike)
    bound = bound - alike * bound.sum(-1, keepdim=True)
    moved = boxmap.moved(p, torch.where(free, step, 0.0), bound, free)
    return p + (moved - moved.detach())


@torch.library.custom_op("parsimax::box_values", mutates_args=())
def _values_operator(
    z: Tensor, upper: Tensor, lower: Tensor | None, room: float, name: str, backend: str
) -> Tensor:
    return solve_box(z, Bounds(upper, lower, room), name, backend).contiguous()


@_values_operator.register_fake
def _(
    z: Tensor, upper: Tensor, lower: Tensor | None, room: float, name: str, backend: str
) -> Tensor:
    return torch.empty_like(z, memory_format=torch.contiguous_format)


def _values_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    tensors: list[Tensor | None] = []
    for x, dim in zip(args[:3], in_dims[:3], strict=True):
        if x is None:
            tensors.append(None)
        else:
            tensors.append(
                x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            )
    return _values_operator(*tensors, *args[3:]), 0


_values_operator.register_vmap(_values_vmap)
