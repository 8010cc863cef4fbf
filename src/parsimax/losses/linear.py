"""The loss of a linear output layer, without the logits of all tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from parsimax._core.backend import choose
from parsimax._core.dtypes import autocast_on
from parsimax._core.validation import check_scores, under_transform, values_readable
from parsimax.mappings.base import align_parameter
from parsimax.mappings.entmax import ENTMAX, check_alpha
from parsimax.mappings.rowmap import Parameter

from .lag import has_tangent
from .linear_autograd import linear_rows
from .linear_products import as_rows
from .rows import index_losses, output_dtype
from .targets import (
    Indices,
    check_indices,
    check_options,
    mean_divisor,
    read_indices,
    reduce,
)


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    alpha: Parameter = 1.5,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    """``entmax_loss(F.linear(hidden, weight, bias), target, alpha)`` in a fraction of its memory.

    ``hidden`` is (..., D), ``weight`` (V, D), ``target`` (...) holds class indices and ``bias`` is
    (V,); all but the target may require gradients, and so may a tensor ``alpha``, which broadcasts
    to (..., 1). ``class_weight`` is what ``weight`` is in :func:`entmax_loss`; the other arguments
    are the same, and so are the results.

    The logits are computed for a few rows at a time: as many as give 32 MiB of float32 (384 on a
    GPU), and at least 64. Of each row only the support is kept; the gradient is zero elsewhere, so
    the two products of the backward become sums over the few words in the support. On a GPU the
    lists of supports have a fixed size, and where they do not suffice the products are dense.
    Where the support is large (alpha near 1), the gradients of a mean or sum are computed with
    the loss, and logits are computed once more for ``reduction="none"``. Label smoothing adds a
    gradient of rank one, in closed form. Gradients are added up in float32 for half precision.

    Double backward, ``torch.func`` and forward-mode derivatives are right, too, but go through all
    logits at once.

    >>> import torch, parsimax as px
    >>> hidden, weight = torch.eye(3)[:2], torch.tensor([[2.0, 3.0], [1.0, 0.5], [-1.0, 0.0]])
    >>> target = torch.tensor([1, 0])
    >>> px.linear_entmax_loss(hidden[:, :2], weight, target, reduction="none")
    tensor([1.0617, 0.0000])
    """
    hidden, weight, bias = _check_layer(hidden, weight, bias)
    classes = len(weight)
    options = check_options(
        class_weight, ignore_index, reduction, label_smoothing, classes, "class_weight"
    )
    if class_weight is not None and class_weight.requires_grad:
        raise ValueError("class_weight must not require a gradient; use class_weight.detach()")
    target = check_indices(target, tuple(hidden.shape[:-1]), (*hidden.shape[:-1], classes))
    for name, x in (("target", target), ("class_weight", class_weight)):
        _check_device(x, name, hidden)
    alpha = align_parameter(check_alpha(alpha), hidden, hidden.ndim - 1, "alpha")
    dtype = output_dtype(hidden, target)
    if autocast_on(hidden.device) and hidden.dtype != torch.float64:
        lower = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(lower), weight.to(lower)
        bias = None if bias is None else bias.to(lower)
    plainly = under_transform() or has_tangent(hidden, weight, bias, alpha)
    plainly = plainly or hidden.shape[-1] == 0  # logits are the bias: there is nothing to multiply
    if choose(backend, hidden) == "triton" and not plainly:
        from .linear_gpu import support_loss

        return support_loss(hidden, weight, bias, alpha, target, options, backend, dtype)
    indices = read_indices(target, classes, options, hidden)
    if plainly:
        z = F.linear(hidden, weight, bias)
        values = index_losses(ENTMAX, z, alpha, indices, options, backend)
        return reduce(values, mean_divisor(indices), options.reduction).to(dtype)
    problem = as_rows(hidden, weight, bias, alpha, indices, options, backend)
    kept = _kept_rows(indices)
    if kept is not None:
        problem = problem.select(kept)
    if options.reduction != "none":
        return linear_rows(problem, total=True).to(dtype)
    values = linear_rows(problem, total=False)
    if kept is not None:
        values = values.new_zeros(target.numel()).index_copy(0, kept, values)
    return values.reshape(target.shape).to(dtype)


def _kept_rows(indices: Indices) -> Tensor | None:
    """The rows that are not ignored, where that saves work and values may be read; else None."""
    kept = indices.kept.reshape(-1)
    if kept.device.type != "cpu" or not values_readable() or bool(kept.all()):
        return None
    return kept.nonzero().squeeze(-1)


def _check_device(x: Tensor | None, name: str, hidden: Tensor) -> None:
    if x is not None and x.device != hidden.device:
        raise ValueError(
            f"{name} must be on the device of hidden, {hidden.device}, got one on {x.device}"
        )


def _check_layer(
    hidden: object, weight: object, bias: object
) -> tuple[Tensor, Tensor, Tensor | None]:
    hidden = check_scores(hidden, "hidden")
    weight = check_scores(weight, "weight")
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[-1] or len(weight) == 0:
        raise ValueError(
            f"weight must be a matrix of shape (V, {hidden.shape[-1]}) with V >= 1, for hidden of "
            f"shape {tuple(hidden.shape)}, got shape {tuple(weight.shape)}"
        )
    if bias is not None:
        bias = check_scores(bias, "bias")
        if bias.shape != (len(weight),):
            raise ValueError(
                f"bias must have shape ({len(weight)},), one value for each row of weight, "
                f"got shape {tuple(bias.shape)}"
            )
    _check_device(weight, "weight", hidden)
    _check_device(bias, "bias", hidden)
    if not autocast_on(hidden.device):
        for name, x in (("weight", weight), ("bias", bias)):
            if x is not None and x.dtype != hidden.dtype:
                raise TypeError(
                    f"{name} must have the dtype of hidden, {hidden.dtype}, got {x.dtype}"
                )
    return hidden, weight, bias
