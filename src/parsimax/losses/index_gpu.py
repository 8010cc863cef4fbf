"""The entmax loss of class indices where kernels do all of it, from the targets to the mean.

This is what training asks for on a GPU (:mod:`parsimax.kernels.gpu.index_loss`). Everything else
goes by way of :mod:`.rows`: other targets and layouts, torch.compile, torch.func.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax._core.backend import choose
from parsimax._core.dtypes import exact
from parsimax._core.validation import recorded, transform_or_forward_mode, without_values
from parsimax.mappings.rowmap import Parameter, fit, kernels_allowed, parameter_of

from .conjugate import plain_backward
from .targets import Options, check_range, read_indices


def done_by_kernels(z: Tensor, target: Tensor, options: Options, backend: str) -> bool:
    """Whether :func:`index_loss` takes these arguments, which have been checked."""
    weight = options.weight
    return (
        z.ndim == 2
        and not recorded()
        and choose(backend, z) == "triton"
        and not target.is_floating_point()
        and target.get_device() == z.get_device()
        and (weight is None or not weight.requires_grad)
        and (weight is None or weight.get_device() == z.get_device())
        and z.numel() > 0
        and not without_values(z)
        and not transform_or_forward_mode()
    )


def index_loss(
    z: Tensor, alpha: Parameter, target: Tensor, options: Options, dtype: torch.dtype
) -> Tensor:
    """The loss of scores (N, C) in ``dtype``; a tensor alpha is (N, 1) or (1, 1)."""
    from parsimax.kernels.gpu import index_loss as kernels

    check_range(target, z.shape[1], options)
    target = target.contiguous()
    weight = None if options.weight is None else options.weight.contiguous()
    settings = kernels.Settings(options.ignore_index, options.smoothing, options.reduction, dtype)
    tensor = alpha if isinstance(alpha, Tensor) else None
    wanted = z.requires_grad or (tensor is not None and tensor.requires_grad)
    if not wanted or not torch.is_grad_enabled():
        return kernels.solve(z, alpha, target, weight, settings).loss
    value = 0.0 if isinstance(alpha, Tensor) else float(alpha)
    loss: Tensor = _IndexLoss.apply(z, tensor, target, weight, value, settings)[0]  # type: ignore[no-untyped-call]
    return loss


class _IndexLoss(torch.autograd.Function):
    """(loss, p): gradients of gradients pass through p, which nobody else sees."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        alpha: Tensor | None,
        target: Tensor,
        weight: Tensor | None,
        value: float,
        settings: Any,
    ) -> tuple[Tensor, Tensor]:
        from parsimax.kernels.gpu import index_loss as kernels

        solved = kernels.solve(z, parameter_of(alpha, value), target, weight, settings)
        ctx.save_for_backward(solved.p, alpha, target, weight, solved.divisor, solved.class_total)
        ctx.value, ctx.settings = value, settings
        ctx.set_materialize_grads(False)
        return solved.loss, solved.p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from parsimax.kernels.gpu import index_loss as kernels

        g, g_p = grads
        saved = ctx.saved_tensors  # once: a checkpoint allows no second look
        p, alpha, target, weight, divisor, class_total = saved
        want = alpha is not None and ctx.needs_input_grad[1]
        if g is None or g_p is not None or not kernels_allowed(g):
            gz, change = _plain_backward(ctx, saved, g, g_p, want)
        else:
            solved = kernels.Solved(g, p, divisor, class_total)
            parameter = parameter_of(alpha, ctx.value)
            gz, change = kernels.pull_back(solved, g, parameter, target, weight, ctx.settings, want)
        return gz, None if change is None else fit(change, alpha), None, None, None, None


def _plain_backward(
    ctx: Any, saved: Any, g: Tensor | None, g_p: Tensor | None, want: bool
) -> tuple[Tensor, Tensor | None]:
    """In differentiable operations."""
    p, alpha, target, weight, divisor, _ = saved
    settings = ctx.settings
    options = Options(weight, settings.ignore_index, settings.reduction, settings.smoothing)
    indices = read_indices(target, p.shape[1], options, p)
    g_gap = g_lag = each = None
    if g is not None:
        g = exact(g) / divisor if settings.reduction == "mean" else exact(g)
        g = torch.where(indices.kept, g, 0.0)
        each = g * (settings.smoothing / p.shape[1])
        g_lag = g * indices.weight * (1 - settings.smoothing)
        g_gap = g_lag + each * (p.shape[1] if weight is None else exact(weight).sum())
    saved = (p, alpha, indices.index, None)
    gz, change = plain_backward(saved, ctx.value, "entmax", (g_gap, g_lag, None, g_p), want)
    if each is not None and settings.smoothing > 0:
        shared = each.unsqueeze(-1) if weight is None else each.unsqueeze(-1) * weight
        gz = gz - shared.to(gz.dtype)
    return gz, change
