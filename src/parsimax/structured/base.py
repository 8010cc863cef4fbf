"""What a structure says about itself: shapes, lengths, and which oracle finds its best member."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Structure(ABC):
    """A set of structures over scores; the argument ``structure`` of :func:`parsimax.sparsemap`.

    A subclass names its oracle and says what its scores look like; batches, lengths, masks and
    derivatives are the same for all.
    """

    # the name of a constant in ``parsimax.kernels.cpu.structured.oracles``
    kind: ClassVar[str]
    # dimensions of one instance's scores: 2 for a matrix, 1 for a vector
    score_dims: ClassVar[int] = 2
    # whether rows and columns are the same things
    square: ClassVar[bool] = False
    # which sides of the scores a length cuts: "both", "rows" or "columns"
    cut: ClassVar[str] = "both"

    @property
    def options(self) -> tuple[int, ...]:
        """What the oracle reads after the size of an instance: integers."""
        return ()

    def extra_scores(self, rows: int, columns: int, batch: int) -> Tensor | None:
        """Scores that belong to no single variable, or None; (1 or batch, ...), differentiable."""
        return None

    def check_instance(self, rows: int, columns: int) -> str | None:
        """Why no structure of this size exists, in words that follow "got"; None if one does."""
        return None

    # what the parts of a structure, and of every mixture of structures, sum to, in words
    target_rule: ClassVar[str] = ""

    def target_error(self, y: Tensor, inside: Tensor) -> Tensor:
        """(B,): how far (B, rows, columns) is from ``target_rule``; 0 where nothing is known.

        ``inside`` is True where an instance's lengths reach; elsewhere ``y`` is 0.
        """
        return y.new_zeros(len(y))

    def __str__(self) -> str:
        """The name, as it is written in messages."""
        return type(self).__name__


def sums_from_one(y: Tensor, inside: Tensor, dim: int) -> Tensor:
    """(B,): how far a sum over one dimension is from one, at most."""
    return torch.where(inside.any(dim), (y.sum(dim) - 1).abs(), 0.0).amax(1)


def instance_shape(structure: Structure, scores: Tensor) -> tuple[int, int]:
    """Rows and columns of one instance; a vector is a row. Checks the dimensions of the scores."""
    dims = structure.score_dims
    if scores.ndim < dims:
        raise ValueError(
            f"scores of {structure} must have at least {dims} dimensions, "
            f"got shape {tuple(scores.shape)}"
        )
    rows, columns = scores.shape[-2:] if dims == 2 else (1, scores.shape[-1])
    return rows, columns


def instance_sizes(
    structure: Structure,
    lead: tuple[int, ...],
    rows: int,
    columns: int,
    lengths: Tensor | None,
    cut: str,
) -> Tensor:
    """(B, 2): the part of each instance that counts, on the CPU; each must have a structure."""
    sizes = _full_sizes(torch.Size(lead).numel(), rows, columns)
    if lengths is not None:
        full = torch.tensor([rows, columns], device="cpu")
        given = _check_lengths(structure, lead, lengths, cut)
        if cut == "both":
            sizes = given.expand(-1, 2).contiguous() if given.shape[1] == 1 else given.clone()
        else:
            sizes = sizes.clone()
            sizes[:, ("rows", "columns").index(cut)] = given[:, 0]
        bad = (sizes < 0) | (sizes > full)
        if bool(bad.any()):
            item, side = (int(i) for i in bad.nonzero()[0])
            raise ValueError(
                f"lengths must lie between 0 and the size of the scores, {rows} x {columns}, "
                f"got {int(sizes[item, side])} for {('rows', 'columns')[side]} of item {item}"
            )
        distinct = {(n, m): i for i, (n, m) in enumerate(sizes.tolist())}
    else:
        distinct = {(rows, columns): 0}
    for (n, m), item in distinct.items():
        why = structure.check_instance(n, m) if n * m > 0 else None
        if why:
            raise ValueError(
                f"scores have no structure that is {structure}: got {why} "
                f"(item {item} of the batch)"
            )
    return sizes


def _full_sizes(batch: int, rows: int, columns: int) -> Tensor:
    # by numpy, which is faster where nothing is differentiated
    return torch.from_numpy(np.full((batch, 2), (rows, columns)))


def _check_lengths(
    structure: Structure, lead: tuple[int, ...], lengths: Tensor, cut: str
) -> Tensor:
    """``lengths`` as (B, 1) or (B, 2) on the CPU."""
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths must be a tensor of integers, got {type(lengths).__name__}")
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths must have an integer dtype, got {lengths.dtype}")
    pairs = cut == "both" and not structure.square
    allowed = [lead, (*lead, 2)] if pairs else [lead]
    if tuple(lengths.shape) not in allowed:
        expected = " or ".join(str(shape) for shape in allowed)
        raise ValueError(
            f"lengths of {structure} must have shape {expected}, got {tuple(lengths.shape)}"
        )
    width = 2 if tuple(lengths.shape) != lead else 1
    return lengths.detach().to("cpu", torch.int64).reshape(-1, width)
