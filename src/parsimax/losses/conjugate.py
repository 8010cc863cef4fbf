r"""The convex conjugate of a mapping's regulariser, which is all a Fenchel-Young loss needs.

.. math:: \Omega^*(z) = \max_p \langle p, z \rangle - \Omega(p), \qquad
          \nabla \Omega^*(z) = p^*, \qquad
          \partial \Omega^* / \partial \theta = -\partial \Omega / \partial \theta \ (p^*)

It is computed relative to m = max(z), held fixed: with mass s (what p sums to) and v = Omega(e_c),

    gap = Omega*(z) - s m + s v,        lag = m - z_target,

so that the loss of a class index is gap + lag. On the simplex both are at least 0, and neither
changes when all scores are shifted. Where Omega is not the same at every corner of the simplex, v
is taken as 0, and a class index must be written as a vector. p itself is an output, too: it is all
that the backward keeps, and gradients of gradients pass through it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from parsimax._core.backend import choose
from parsimax._core.dtypes import exact, exact_dtype, working
from parsimax.kernels import kernels_of
from parsimax.mappings.rowmap import (
    Parameter,
    RowMap,
    kernels_for,
    parameter_of,
    reference,
    rowmap_named,
)


class Conjugate(NamedTuple):
    """One value a row, in the widest precision; ``top`` carries no gradient."""

    gap: Tensor
    lag: Tensor  # zeros where there is no index
    top: Tensor  # the largest score, or 0 where that is not finite
    p: Tensor


def solve_conjugate(
    z: Tensor, parameter: Parameter, index: Tensor | None, name: str, backend: str
) -> Conjugate:
    """Forward without autograd, by the chosen backend."""
    kernels = kernels_for(name, backend, z)
    if z.numel() == 0:
        empty = z.new_empty(z.shape[:-1], dtype=exact_dtype(z))
        p = torch.empty_like(z, memory_format=torch.contiguous_format)
        return Conjugate(empty, empty.clone(), empty.clone(), p)
    if kernels is not None and name in kernels.LOSSES:
        return Conjugate(*kernels.solve_loss(name, z, parameter, index))
    rowmap = rowmap_named(name)
    if kernels is not None:
        p = exact(kernels.forward(name, working(z), parameter))
    else:
        p = reference(rowmap, exact(z), parameter)
    return _at_solution(rowmap, z, p, parameter, index)


def _at_solution(
    rowmap: RowMap, z: Tensor, p: Tensor, parameter: Parameter, index: Tensor | None
) -> Conjugate:
    """The conjugate from its definition, for p as exact as it is known."""
    y = exact(z)
    if isinstance(parameter, Tensor):
        parameter = parameter.to(y.dtype)
    top = y.amax(-1)
    empty = top == -torch.inf
    top = torch.where(top.isfinite(), top, 0.0)
    inner = (p * torch.where(p > 0, y - top.unsqueeze(-1), 0.0)).sum(-1)
    mass = row_mass(rowmap, parameter)
    gap = inner - rowmap.omega(p, parameter) + corner(rowmap) * mass
    if rowmap.vertex is None:
        pass  # without Omega of a corner it may be negative
    elif isinstance(mass, Tensor):
        gap = torch.where(mass == 1, gap.clamp(min=0), gap)
    elif mass == 1:
        gap = gap.clamp(min=0)
    gap = gap.masked_fill(empty, 0.0)
    lag = torch.zeros_like(top)
    if index is not None:
        lag = top - y.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return Conjugate(gap, lag, top, p.to(z.dtype))


def corner(rowmap: RowMap) -> float:
    """What is added to the gap: Omega of a one-hot vector, or nothing where they differ."""
    return 0.0 if rowmap.vertex is None else rowmap.vertex


def row_mass(rowmap: RowMap, parameter: Parameter) -> Parameter:
    """What p sums to; a tensor has one value a row and no last dimension."""
    mass = rowmap.mass(parameter)
    return mass.squeeze(-1) if isinstance(mass, Tensor) else mass


# --- derivatives ----------------------------------------------------------------------------------


# What a backward keeps: p, the parameter, the index, and the scores where the mass varies.
Saved = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def mass_is_parameter(rowmap: RowMap) -> bool:
    """Whether the parameter is what p sums to, and p lies in a box instead of the simplex."""
    return bool(rowmap.mass(2.0) == 2.0)


def mass_varies(rowmap: RowMap, parameter: Tensor | None) -> bool:
    """Whether a tensor is what p sums to; the derivative in it then needs the scores."""
    return parameter is not None and mass_is_parameter(rowmap)


def parameter_change(rowmap: RowMap, z: Tensor | None, p: Tensor, parameter: Parameter) -> Tensor:
    """d gap / d parameter, one value a row.

    By the envelope theorem only Omega's own dependence counts, except where the parameter is the
    mass s: there d Omega* / ds is the multiplier of the constraint sum(p) = s.
    """
    if z is None:
        return -rowmap.domega(p, parameter)
    top = z.detach().amax(-1, keepdim=True)
    y = torch.where(z > -torch.inf, z - torch.where(top.isfinite(), top, 0.0), 0.0)
    share = rowmap.sensitivity(p, parameter)
    multiplier = ((y - p) * share).sum(-1)
    # nothing moves: any value between these two is a subgradient, and we take the middle
    below = torch.where((p == 0) & (z > -torch.inf), y, -torch.inf).amax(-1)
    above = torch.where(p == 1, y - 1, torch.inf).amin(-1)
    below, above = below.where(below.isfinite(), above), above.where(above.isfinite(), below)
    stuck = (share == 0).all(-1)
    return torch.where(stuck, (below + above) / 2, multiplier) + corner(rowmap)


def plain_backward(
    saved: Saved,
    value: float,
    name: str,
    grads: tuple[Tensor | None, ...],
    want_parameter: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients in differentiable torch operations: for double backward and under torch.func."""
    p, tensor, index, z = saved
    rowmap, parameter = rowmap_named(name), parameter_of(tensor, value)
    work = working(p)
    g_gap, g_lag, _, g_p = grads
    gz = torch.zeros_like(work)
    change = torch.zeros_like(work[..., :1])
    if g_gap is not None:
        g = g_gap.to(work.dtype).unsqueeze(-1)
        ignored = (g == 0) & work[..., :1].isnan()
        gz = gz + torch.where(ignored, 0.0, rowmap.probabilities(work) * g)
        if want_parameter:
            change = change + g * parameter_change(rowmap, z, work, parameter).unsqueeze(-1)
    if index is not None and g_lag is not None:
        here = torch.arange(p.shape[-1], device=p.device) == index.unsqueeze(-1)
        gz = gz - torch.where(here, g_lag.to(work.dtype).unsqueeze(-1), 0.0)
    if g_p is not None:
        gz = gz + rowmap.jacobian(work, g_p.to(work.dtype), parameter)
        if want_parameter:
            step = rowmap.sensitivity(work, parameter) * g_p.to(work.dtype)
            change = change + step.sum(-1, keepdim=True)
    return gz.to(p.dtype), change if want_parameter else None


def fast_backward(
    saved: Saved,
    value: float,
    name: str,
    backend: str,
    grads: tuple[Tensor | None, ...],
    want_parameter: bool,
) -> tuple[Tensor, Tensor | None]:
    """The first derivative where nobody will differentiate it: one new buffer, the gradient."""
    p, tensor, index, z = saved
    g_gap, g_lag, _, g_p = grads
    kernels = kernels_of(choose(backend, p))
    if g_p is not None or kernels is None or p.numel() == 0:
        return plain_backward(saved, value, name, grads, want_parameter)
    zeros = p.new_zeros(()) if g_gap is None or g_lag is None else None
    g_gap = zeros if g_gap is None else g_gap
    g_lag = zeros if g_lag is None else g_lag
    assert g_gap is not None
    assert g_lag is not None
    gz = kernels.loss_backward(rowmap_named(name).probabilities(p), g_gap, index, g_lag)
    if not want_parameter:
        return gz, None
    parameter = parameter_of(tensor, value)
    if name == "entmax":
        change = -kernels.entmax_domega(p, parameter)
    else:
        change = parameter_change(rowmap_named(name), z, working(p), parameter)
    return gz, torch.where(g_gap == 0, 0.0, g_gap * change).unsqueeze(-1)
