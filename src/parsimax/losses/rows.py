"""The loss of every item, from the conjugate and the target; scores have their classes last."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax._core.dtypes import HALF, autocast_on, exact, working
from parsimax.mappings.rowmap import Parameter, RowMap

from .autograd import conjugate
from .conjugate import corner, row_mass
from .lag import dense_lag
from .targets import Indices, Options


def index_losses(
    rowmap: RowMap,
    z: Tensor,
    parameter: Parameter,
    target: Indices,
    options: Options,
    backend: str,
) -> Tensor:
    """sum_c a_c (gap + m - z_c) with a = (1 - eps) w_t e_t + (eps / C) w, 0 where ignored."""
    rows = conjugate(rowmap, z, parameter, target.index, backend)
    own = torch.where(target.kept, rows.gap + rows.lag, 0.0)
    value = times(target.weight * (1 - options.smoothing), own)
    if options.smoothing > 0:
        one = torch.ones(1, dtype=working(z).dtype, device=z.device)
        weight = one if options.weight is None else options.weight.to(one.dtype)
        lag, total = dense_lag(z, rows.top, weight, backend)
        each = options.smoothing / z.shape[-1]
        value = value + torch.where(target.kept, each * (rows.gap * total + lag), 0.0)
    return value


def probability_losses(
    rowmap: RowMap,
    z: Tensor,
    parameter: Parameter,
    target: Tensor,
    options: Options,
    backend: str,
    add_regularizer: bool,
) -> Tensor:
    """W gap + sum_c a_c (m - z_c) with a = w y and W = sum(a) / s, the mass of the mapping.

    ``add_regularizer`` adds W (Omega(a / W) - Omega(e_c)), which makes it W times the
    Fenchel-Young loss of a / W.
    """
    mass = row_mass(rowmap, parameter)
    a = target.to(torch.promote_types(working(z).dtype, target.dtype))
    if options.smoothing > 0:
        uniform = mass.unsqueeze(-1) if isinstance(mass, Tensor) else mass
        a = a * (1 - options.smoothing) + uniform * options.smoothing / z.shape[-1]
    if options.weight is not None:
        a = a * options.weight
    rows = conjugate(rowmap, z, parameter, None, backend)
    lag, total = dense_lag(z, rows.top, a, backend)
    share = _share(total, mass)
    value = times(share, rows.gap) + lag
    if not add_regularizer:
        return value
    safe = torch.where(share == 0, 1.0, share).unsqueeze(-1)
    y = a / safe
    if rowmap.encode is not None:
        y = rowmap.encode(y, z > -torch.inf)
    return value + share * (_regularizer(rowmap, y, parameter) - corner(rowmap) * mass)


def _regularizer(rowmap: RowMap, y: Tensor, parameter: Parameter) -> Tensor:
    """Omega(y), whose derivative in the parameter is ``domega`` and so right at alpha = 1, too."""
    if not isinstance(parameter, Tensor):
        return exact(rowmap.omega(y, parameter))
    fixed = parameter.detach()
    at_three = (rowmap.domega(y, x) for x in (fixed, (fixed + parameter) / 2, parameter))
    first, second, third = at_three
    slope = (first + 4 * second + third) / 6  # Simpson's rule: derivatives up to the fourth
    return exact(rowmap.omega(y, fixed) + slope * (parameter - fixed).squeeze(-1))


def _share(total: Tensor, mass: Parameter) -> Tensor:
    """total / mass, 0 where nothing is to be had."""
    if not isinstance(mass, Tensor):
        return total / mass if mass != 0 else torch.zeros_like(total)
    return torch.where(mass == 0, 0.0, total / torch.where(mass == 0, 1.0, mass))


def times(factor: Tensor, x: Tensor) -> Tensor:
    """``factor * x`` where 0 times infinity is 0, with its derivatives elsewhere."""
    return factor * x.masked_fill((factor == 0) & x.isinf(), 0.0)


def output_dtype(z: Tensor, target: Tensor) -> torch.dtype:
    """As torch: that of the scores, float32 under autocast; probabilities may widen it."""
    dtype = z.dtype
    if dtype in HALF and autocast_on(z.device):
        dtype = torch.float32
    return torch.promote_types(dtype, target.dtype) if target.is_floating_point() else dtype
