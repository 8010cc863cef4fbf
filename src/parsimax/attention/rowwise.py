"""Alpha or a mapping as a function of any rows of the scores, whose tensors are cut with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from parsimax.mappings import Budget, Entmax, Mapping, registry
from parsimax.mappings.base import align_parameter, name_of
from parsimax.mappings.budget import check_budget, check_room
from parsimax.mappings.rowmap import (
    Parameter,
    RowMap,
    backward_rows,
    solve_rows,
)

from .choice import DEFAULT_ALPHA, align_alpha
from .visibility import fits

# A gradient in the weights -> gradients in the scores and in the tensors that want one
Pull = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


@dataclass(frozen=True)
class Rows:
    """A mapping apart from its tensors, which broadcast to the scores and are given back to it."""

    mapping: Mapping
    names: tuple[str, ...]  # its fields that are tensors
    rowmap: RowMap | None  # None where entries have bounds of their own

    def weights(self, scores: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Weights, differentiable in everything."""
        return self.with_tensors(tensors)(scores)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Mapping:
        """The mapping itself, of these rows."""
        held = dict(zip(self.names, tensors, strict=True))
        return replace(self.mapping, **held) if held else self.mapping

    def solve(self, scores: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Weights without a gradient, and what a pull needs to know if not the scores."""
        if self.rowmap is None:
            return self.weights(scores, tensors), None
        number = self._number(scores, tensors)
        if isinstance(self.mapping, Budget) and scores.device.type == "cpu":
            check_room(scores, number, scores.ndim - 1, None)
        output = solve_rows(scores, number, self.rowmap.name, "auto")
        return self.rowmap.probabilities(output), output

    def pull(
        self,
        scores: Tensor | None,
        output: Tensor | None,
        tensors: Sequence[Tensor],
        wanted: Sequence[bool],
    ) -> tuple[Tensor, Pull]:
        """Weights and their pull, from what ``solve`` gave or from the scores."""
        if self.rowmap is None:
            assert scores is not None
            return self._pull_by_autograd(scores, tensors, wanted)
        known = output
        if known is None:
            assert scores is not None
            known = self.solve(scores, tensors)[1]
        assert known is not None
        name, number = self.rowmap.name, self._number(known, tensors)

        def pulled(g: Tensor) -> tuple[Tensor, list[Tensor]]:
            gs, change = backward_rows(known, g, number, name, "auto", any(wanted))
            return gs, [change] if any(wanted) else []

        return self.rowmap.probabilities(known), pulled

    def _number(self, scores: Tensor, tensors: Sequence[Tensor]) -> Parameter:
        assert self.rowmap is not None
        number = tensors[0] if tensors else self.mapping.parameter
        return align_parameter(number, scores, scores.ndim - 1, self.rowmap.parameter_name)

    def _pull_by_autograd(
        self, scores: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]
    ) -> tuple[Tensor, Pull]:
        leaf = scores.detach().requires_grad_()
        leaves = [x.detach().requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)]
        with torch.enable_grad():
            weights = self.weights(leaf, leaves)

        def pulled(g: Tensor) -> tuple[Tensor, list[Tensor]]:
            learned = [x for x in leaves if x.requires_grad]
            gs, *found = torch.autograd.grad(weights, [leaf, *learned], g)
            return gs, found

        return weights.detach(), pulled


def read_rows(
    alpha: float | Tensor, mapping: Mapping | None, shape: torch.Size
) -> tuple[Rows, tuple[Tensor, ...]] | None:
    """A function of rows, and the tensors to cut along with them.

    None for a mapping that we do not know, whose tensors may mean anything.
    """
    if mapping is None:
        mapping = Entmax(align_alpha(alpha, shape))
    if isinstance(mapping, Budget):  # the one that takes whole numbers in a tensor
        mapping = Budget(check_budget(mapping.k))
    name = name_of(type(mapping))
    if registry().get(name) is not type(mapping):
        return None
    held = {f.name: getattr(mapping, f.name) for f in fields(mapping)}
    held = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    if not all(fits(value.shape, shape) for value in held.values()):
        return None
    rowmap = None if name.startswith("constrained") else mapping.rowmap
    return Rows(mapping, tuple(held), rowmap), tuple(held.values())


# --- for operators, whose arguments are tensors, numbers and text ---------------------------------


def written(rows: Rows, tensors: Sequence[Tensor]) -> tuple[str, float, Tensor | None]:
    """The name of a mapping that has a row map, its number, or the tensor in place of one."""
    assert rows.rowmap is not None
    if tensors:
        return rows.rowmap.name, 0.0, tensors[0]
    return rows.rowmap.name, float(rows.mapping.parameter), None


def rows_again(
    name: str, value: float, tensor: Tensor | None, shape: torch.Size
) -> tuple[Rows, tuple[Tensor, ...]]:
    """What was written so, for scores of this shape."""
    make: Any = registry()[name]
    mapping = make(value if tensor is None else tensor)
    known = read_rows(DEFAULT_ALPHA, mapping, shape)
    if known is None:
        raise ValueError(
            f"mapping must have a tensor that broadcasts to the scores, {tuple(shape)}, got "
            f"{mapping}"
        )
    return known
