r"""Fenchel-Young losses (Blondel, Martins & Niculae 2020): the loss that belongs to a mapping.

.. math:: L_\Omega(z, y) = \Omega^*(z) + \Omega(y) - \langle z, y \rangle
          = \Omega(y) - \Omega(p^*) + \langle z, p^* - y \rangle, \qquad \nabla_z L = p^* - y
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from parsimax._core.validation import check_scores, values_readable
from parsimax.mappings import Mapping, parse
from parsimax.mappings.base import align_parameter
from parsimax.mappings.budget import check_room
from parsimax.mappings.rowmap import Parameter, RowMap, rowmap_named

from .conjugate import mass_is_parameter, row_mass
from .index_gpu import done_by_kernels, index_loss
from .rows import index_losses, output_dtype, probability_losses
from .targets import Indices, Options, check_options, check_target, mean_divisor, read_indices
from .targets import reduce as reduce_rows


def fenchel_young_loss(
    z: Tensor,
    target: Tensor,
    mapping: Mapping | str,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    backend: str = "auto",
) -> Tensor:
    r"""The Fenchel-Young loss of any mapping: at least 0, and 0 exactly when p* equals the target.

    .. math:: L_\Omega(z, y) = \Omega(y) - \Omega(p^*) + \langle z, p^* - y \rangle

    ``mapping`` is a mapping or its text, such as ``"sparsegen(lam=0.5)"``; its tensor parameters
    get gradients. The other arguments are those of ``torch.nn.functional.cross_entropy``: scores
    (C,), (N, C) or (N, C, d1, ...); a target of class indices, or of probabilities in the shape of
    the scores. With class weights w or smoothing, let y be the target after smoothing, a = w y and
    W = sum(a) / s, where s is what p* sums to (1 for most mappings): the loss of an item is
    W L(z, a / W), with gradient W p* - a. For a mapping with another mass than 1 (``budget``) the
    target must be a vector of that sum, with entries between 0 and 1.

    A mean over no items, or over ignored ones only, is 0. A target whose score is -inf has an
    infinite loss and the gradient p* - y.

    >>> import torch, parsimax as px
    >>> z = torch.tensor([[2.0, 1.5, -1.0]])
    >>> px.fenchel_young_loss(z, torch.tensor([0]), "sparsemax")
    tensor(0.0625)
    >>> px.fenchel_young_loss(z, px.sparsemax(z), "sparsemax")
    tensor(0.)
    """
    name, parameter, parameter_name = _describe(mapping)
    return mapping_loss(
        rowmap_named(name),
        z,
        target,
        parameter,
        parameter_name,
        weight,
        ignore_index,
        reduction,
        label_smoothing,
        backend,
        add_regularizer=True,
    )


def _describe(mapping: Mapping | str) -> tuple[str, Parameter, str]:
    """(name of the row map, parameter, the parameter's name)."""
    if isinstance(mapping, str):
        return _describe_text(mapping)
    mapping = parse(mapping)
    names = [field.name for field in dataclasses.fields(mapping)]
    return mapping.rowmap.name, mapping.parameter, names[0] if names else "parameter"


def _describe_text(text: str) -> tuple[str, Parameter, str]:
    return _describe(parse(text))


# Text is parsed while tracing, not traced. This is all that torch.compiler.assume_constant_result
# does, but calling it would import Dynamo, which takes a second and a half.
_describe_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def mapping_loss(
    rowmap: RowMap,
    z: Tensor,
    target: Tensor,
    parameter: Parameter,
    parameter_name: str,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    backend: str,
    add_regularizer: bool,
) -> Tensor:
    """Check everything, move the classes to the end, and reduce the losses of the items."""
    z = check_scores(z)
    dim = 0 if z.ndim == 1 else 1
    classes = z.shape[dim]
    if classes == 0:
        raise ValueError(f"z must have at least one class in dim {dim}, got shape {tuple(z.shape)}")
    options = check_options(weight, ignore_index, reduction, label_smoothing, classes)
    target = check_target(z, target, dim, options)
    given, parameter = parameter, align_parameter(parameter, z, dim, parameter_name)
    if mass_is_parameter(rowmap):
        check_room(z, given, dim, None)
    plain_entmax = rowmap.name == "entmax" and not add_regularizer
    if plain_entmax and done_by_kernels(z, target, options, backend):
        return index_loss(z, parameter, target, options, output_dtype(z, target))
    scores = z.movedim(dim, -1)
    if not target.is_floating_point():
        indices = read_indices(target, classes, options, z)
        indices = _only_unit_mass(indices, row_mass(rowmap, parameter), rowmap.name)
        if add_regularizer and (options.smoothing > 0 or rowmap.vertex is None):
            values = _written_out_losses(rowmap, scores, parameter, indices, options, backend)
        else:
            values = index_losses(rowmap, scores, parameter, indices, options, backend)
        divisor: Tensor | int = mean_divisor(indices)
    else:
        y = target.movedim(dim, -1)
        if add_regularizer:
            _check_probabilities(y, rowmap, parameter)
        values = probability_losses(rowmap, scores, parameter, y, options, backend, add_regularizer)
        divisor = max(values.numel(), 1)
    if add_regularizer and not isinstance(row_mass(rowmap, parameter), Tensor):
        # rounding alone can take it below 0; the gradient stays
        values = torch.where(values < 0, values - values.detach(), values)
    return reduce_rows(values, divisor, options.reduction).to(output_dtype(z, target))


def _written_out_losses(
    rowmap: RowMap,
    scores: Tensor,
    parameter: Parameter,
    indices: Indices,
    options: Options,
    backend: str,
) -> Tensor:
    """Class indices as probabilities, where Omega of each is needed."""
    y = torch.zeros_like(scores).scatter(-1, indices.index.unsqueeze(-1), 1.0)
    values = probability_losses(rowmap, scores, parameter, y, options, backend, True)
    bad = indices.weight.isnan()
    return torch.where(indices.kept, values, 0.0).masked_fill(bad, torch.nan)


def _only_unit_mass(indices: Indices, mass: Parameter, name: str) -> Indices:
    """A class index is a target of sum 1, so the mapping must sum to 1, too."""
    advice = f"give a target vector that sums to k, because weights of {name} do"
    if not isinstance(mass, Tensor):
        if mass != 1:
            raise ValueError(f"target must not be class indices when k = {mass:g}: {advice}")
        return indices
    unit = (mass == 1).expand_as(indices.kept)
    if mass.device.type == "cpu" and values_readable() and not bool(unit.all()):
        k = mass.detach().expand_as(unit)[~unit][0].item()
        raise ValueError(f"target must not be class indices when k = {k:g}: {advice}")
    return dataclasses.replace(indices, weight=torch.where(unit, indices.weight, torch.nan))


def _check_probabilities(y: Tensor, rowmap: RowMap, parameter: Parameter) -> None:
    """Omega is defined where nothing is negative, and for budget in the box with the right sum."""
    if y.device.type != "cpu" or not values_readable():
        return
    y = y.detach()
    if bool((y < 0).any()):
        worst = y.min().item()
        raise ValueError(f"every value of a target of probabilities must be >= 0, got {worst:g}")
    if not mass_is_parameter(rowmap):
        return
    name, mass = rowmap.name, row_mass(rowmap, parameter)
    if bool((y > 1 + 1e-3).any()):
        raise ValueError(f"every value of a target for {name} must be <= 1, got {y.max().item():g}")
    total = y.double().sum(-1)
    off = (total - mass).abs() > 1e-2 * (1 + total)  # room for half precision
    if bool(off.any()):
        raise ValueError(
            f"a target for {name} must sum to k, got a sum of {total[off][0].item():g}"
        )
