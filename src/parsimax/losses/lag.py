"""How far the classes of a dense target fall behind: sum_c a_c (m - z_c), and sum_c a_c.

The rows are added up in float64 by a kernel where there is one, so that a row's loss depends
neither on its neighbours nor on how torch splits a sum, and nothing of the scores' size is made on
the way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from parsimax._core.backend import choose
from parsimax._core.dtypes import exact, working
from parsimax._core.validation import recorded, transform_or_forward_mode, under_transform
from parsimax.kernels import kernels_of


def dense_lag(z: Tensor, top: Tensor, a: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """(sum_c a_c (top - z_c), sum_c a_c), one value a row; ``a`` broadcasts to ``z``.

    A class with a_c = 0 adds nothing, even if its score is -inf.
    """
    if recorded() or under_transform() or has_tangent(z, a) or z.numel() == 0:
        return _plain_lag(z, top, a)
    kernels = kernels_of(choose(backend, z))
    if kernels is None:
        return _plain_lag(z, top, a)
    lag, total = _DenseLag.apply(z, top, a, kernels)  # type: ignore[no-untyped-call]
    return lag, total


def has_tangent(*tensors: object) -> bool:
    """Whether forward-mode differentiation is under way in one of them."""
    if torch.compiler.is_compiling():
        return transform_or_forward_mode()
    return any(isinstance(x, Tensor) and _tangent(x) is not None for x in tensors)


def _tangent(x: Tensor) -> Tensor | None:
    tangent: Tensor | None = forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]
    return tangent


def _differences(z: Tensor, top: Tensor, a: Tensor) -> Tensor:
    lag = top.to(working(z).dtype).unsqueeze(-1) - z
    return lag.masked_fill((a == 0) & (z == -torch.inf), 0.0)


def _plain_lag(z: Tensor, top: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    a = a.expand(z.shape)
    return exact((a * _differences(z, top, a)).sum(-1)), exact(a.sum(-1))


class _DenseLag(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, top: Tensor, a: Tensor, kernels: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(a, *((z, top) if a.requires_grad else (None, None)))
        ctx.like = z.dtype, z.shape
        sums: tuple[Tensor, Tensor] = kernels.dense_lag(z, top, a)
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, z, top = ctx.saved_tensors
        dtype, shape = ctx.like
        g, g_total = (x.to(a.dtype).unsqueeze(-1) for x in grads)
        gz = (-g * a).to(dtype).expand(shape) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return gz, None, None, None
        ga = g * _differences(z, top, a) + g_total
        return gz, None, ga.sum_to_size(a.shape).to(a.dtype), None
