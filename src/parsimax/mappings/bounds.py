"""Bounds as users give them, numbers or tensors: checked, and brought to the scores' shape."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from parsimax._core.dtypes import autocast_scores, working
from parsimax._core.masks import apply_mask
from parsimax._core.validation import (
    check_dim,
    check_number,
    check_scores,
    values_readable,
    without_values,
)

from .box import Bounds, BoxMap, apply_box, slack

Bound = float | Tensor


def check_bound(bound: Bound, name: str) -> Bound:
    """A number, or a tensor of a floating-point dtype."""
    if not isinstance(bound, Tensor):
        if name == "lower":
            return check_number(bound, name, lambda x: x <= 1, "at most 1")
        return check_number(bound, name, lambda x: x >= 0, "at least 0")
    if not bound.is_floating_point():
        raise TypeError(f"a tensor {name} must have a floating-point dtype, got {bound.dtype}")
    return bound


def map_bounded(
    boxmap: BoxMap,
    z: Tensor,
    upper: Bound,
    lower: Bound | None,
    dim: int,
    mask: Tensor | None,
    backend: str,
) -> Tensor:
    """Check, mask, move ``dim`` to the end, map, move it back."""
    z = check_scores(z)
    dim = check_dim(dim, z.ndim)
    upper = check_bound(upper, "upper")
    lower = None if lower is None else check_bound(lower, "lower")
    scores = apply_mask(autocast_scores(z), mask).movedim(dim, -1)
    work = working(scores)
    masked = work == -torch.inf
    # where masked a bound is as if it were not there: it gets no gradient
    top = torch.where(masked, 1.0, _in_shape(upper, "upper", z, dim).to(work.dtype))
    least = None
    if lower is not None:
        least = _in_shape(lower, "lower", z, dim).to(work.dtype).clamp(min=0.0)
        least = torch.where(masked, 0.0, least)
    given = (bound.dtype for bound in (upper, lower) if isinstance(bound, Tensor))
    bounds = Bounds(top, least, slack(work.dtype, *given))
    _check_feasible(bounds, masked, dim)
    p = apply_box(boxmap, work, bounds, backend).to(scores.dtype)
    return p if dim == z.ndim - 1 else p.movedim(-1, dim).contiguous()


def _in_shape(bound: Bound, name: str, z: Tensor, dim: int) -> Tensor:
    """Broadcast to the scores, ``dim`` last."""
    if not isinstance(bound, Tensor):
        return z.new_full((), bound, dtype=working(z).dtype).expand(z.shape).movedim(dim, -1)
    if bound.device != z.device:
        if bound.numel() != 1:
            raise ValueError(
                f"a tensor {name} must be on the device of the scores, {z.device}, "
                f"got {bound.device}"
            )
        bound = bound.to(z.device)
    try:
        return bound.expand(z.shape).movedim(dim, -1)
    except RuntimeError as error:
        raise ValueError(
            f"a tensor {name} must broadcast to the shape of the scores {tuple(z.shape)}, "
            f"got shape {tuple(bound.shape)}"
        ) from error


def _check_feasible(bounds: Bounds, masked: Tensor, dim: int) -> None:
    """Name the first row that has no solution; elsewhere than in eager mode it is NaN."""
    if masked.device.type != "cpu" or not values_readable() or without_values(masked):
        return
    if masked.numel() == 0:
        return
    upper = bounds.upper.detach().masked_fill(masked, 0.0)
    room = bounds.room
    some = ~masked.all(-1)
    _refuse(some & ~(upper >= 0).all(-1), dim, "every value of upper must be at least 0", upper)
    short = upper.sum(-1, dtype=torch.float64)
    _refuse(
        some & (short < 1 - room),
        dim,
        "upper must sum to at least 1 over the allowed entries of every row",
        short,
    )
    if bounds.lower is None:
        return
    lower = bounds.lower.detach()
    _refuse(some & lower.isnan().any(-1), dim, "every value of lower must be a number", lower)
    crossed = torch.where(masked, 0.0, lower - upper)
    _refuse(some & (crossed > 0).any(-1), dim, "lower must be at most upper", crossed, "above it")
    much = lower.sum(-1, dtype=torch.float64)
    _refuse(
        some & (much > 1 + room),
        dim,
        "lower must sum to at most 1 over the allowed entries of every row",
        much,
    )


def _refuse(bad: Tensor, dim: int, expected: str, values: Tensor, how: str = "") -> None:
    if not bool(bad.any()):
        return
    where = tuple(int(i) for i in bad.nonzero()[0])
    found = values[where]
    if found.ndim:  # the worst entry of the row
        found = found.nan_to_num(math.inf).max() if how else found[~(found >= 0)][0]
    row = f"row {where[0] if len(where) == 1 else where} along dim {dim}" if where else "this row"
    raise ValueError(f"{expected}, got {found.item():.6g}{' ' + how if how else ''} in {row}")
