"""Targets as ``torch.nn.functional.cross_entropy`` takes them, checked and brought to one form.

The class dimension is moved to the end. A loss is then a sum over classes with coefficients
a_c = w_c y_c, where w are the class weights and y is the target after smoothing; for class indices
only the parts of a are kept, never a itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from parsimax._core.dtypes import exact_dtype
from parsimax._core.validation import check_choice, check_number, values_readable

REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True)
class Indices:
    """Class indices, one an item; all tensors have the items' shape."""

    index: Tensor  # 0 where ignored or out of range
    weight: Tensor  # the class weight of the target, 0 where ignored, NaN where out of range
    kept: Tensor  # False where ignored


@dataclass(frozen=True)
class Options:
    """The arguments that every loss shares."""

    weight: Tensor | None
    ignore_index: int
    reduction: str
    smoothing: float


def check_options(
    weight: object,
    ignore_index: object,
    reduction: object,
    label_smoothing: object,
    classes: int,
    name: str = "weight",
) -> Options:
    """Class weights of shape (C,), an int, one of three words, and a number from 0 to 1."""
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(weight).__name__}")
    if weight is not None and not weight.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {weight.dtype}")
    if weight is not None and weight.shape != (classes,):
        raise ValueError(
            f"{name} must have one value for each of the {classes} classes, shape ({classes},), "
            f"got shape {tuple(weight.shape)}"
        )
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an int, got {ignore_index!r}")
    return Options(
        weight,
        ignore_index,
        check_choice(reduction, "reduction", REDUCTIONS),
        check_number(
            label_smoothing, "label_smoothing", lambda x: 0 <= x <= 1, "between 0.0 and 1.0"
        ),
    )


def check_target(z: Tensor, target: object, dim: int, options: Options) -> Tensor:
    """Class indices of the scores' shape without ``dim``, or probabilities of their shape."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    items = (*z.shape[:dim], *z.shape[dim + 1 :])
    if target.is_floating_point():
        if target.shape != z.shape:
            raise ValueError(
                f"a target of probabilities must have the shape of the scores {tuple(z.shape)}, "
                f"got shape {tuple(target.shape)}; class indices must have dtype torch.int64"
            )
        if options.ignore_index >= 0:
            raise ValueError(
                "ignore_index works with class indices only, got "
                f"ignore_index={options.ignore_index} and a target of probabilities"
            )
        return target
    return check_indices(target, items, tuple(z.shape), else_probabilities=True)


def check_indices(
    target: object,
    items: tuple[int, ...],
    scores: tuple[int, ...],
    else_probabilities: bool = False,
) -> Tensor:
    """Class indices, one an item, as int64."""
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a torch.Tensor, got {type(target).__name__}")
    if target.dtype not in (torch.int64, torch.uint8):
        other = ", or probabilities of a floating-point dtype" if else_probabilities else ""
        raise TypeError(
            "target must hold class indices of dtype torch.int64 (or torch.uint8)"
            f"{other}, got {target.dtype}"
        )
    if target.shape != items:
        raise ValueError(
            f"a target of class indices must have shape {items} for scores of shape {scores}, "
            f"got shape {tuple(target.shape)}"
        )
    return target.long()


def check_range(target: Tensor, classes: int, options: Options) -> None:
    """Every index is a class or ignored; only where values can be read."""
    if target.device.type != "cpu" or not values_readable():
        return
    bad = _out_of_range(target, classes, options)
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"target must lie in [0, {classes - 1}] or be ignore_index={options.ignore_index}, "
            f"got {int(target[place])} at position {place}"
        )


def _out_of_range(target: Tensor, classes: int, options: Options) -> Tensor:
    return (target != options.ignore_index) & ((target < 0) | (target >= classes))


def read_indices(target: Tensor, classes: int, options: Options, like: Tensor) -> Indices:
    """Safe indices and their weights; where values can be read, a bad one raises."""
    check_range(target, classes, options)
    kept = target != options.ignore_index
    bad = _out_of_range(target, classes, options)
    index = torch.where(kept & ~bad, target, 0)
    dtype = exact_dtype(like)
    if options.weight is None:
        weight = kept.to(dtype)
    else:
        weight = torch.where(kept, options.weight.to(dtype)[index], 0.0)
    return Indices(index, torch.where(bad, torch.nan, weight), kept)


def reduce(values: Tensor, divisor: Tensor | int, reduction: str) -> Tensor:
    """All values, their sum, or their sum over ``divisor``."""
    if reduction == "none":
        return values
    total = values.sum()
    return total / divisor if reduction == "mean" else total


def mean_divisor(indices: Indices) -> Tensor:
    """The weights of the targets that count; 1 if there are none, so that their mean is 0.

    Weights that are all 0 have no mean: NaN, as in torch.
    """
    total = indices.weight.sum()
    return torch.where(indices.kept.any(), torch.where(total == 0, torch.nan, total), 1.0)
