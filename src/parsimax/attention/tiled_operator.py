"""Attention tile by tile as an operator: what torch.compile sees of long sequences.

Tiles are as many as the sizes say, and what is recorded may not know those. The operator cuts when
it runs; its backward computes the weights of each tile again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax._core.validation import as_recorded

from .dropping import Dropping
from .inputs import scores_shape
from .operators import (
    band_again,
    drawn_seed,
    gradients_of,
    register_gradients,
    threads_for,
    written_sides,
)
from .precision import without_autocast
from .rowwise import Rows, rows_again, written
from .tiled import Problem, context_of_tiles, gradients_of_tiles, plain_gradients
from .visibility import Band

_GRADIENTS = 5  # of the first arguments
_TENSORS = 8


class Call(NamedTuple):
    """What the operator is called with."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None  # added to the scores
    parameter: Tensor | None  # of the mapping; broadcasts to the scores
    allowed: Tensor | None
    within: Tensor | None
    seed: Tensor | None  # of dropout
    value: float  # of the mapping, if no tensor is
    mapping: str
    scale: float
    grouped: bool
    left: int  # of the band; -1 is without end
    right: int
    offset: int
    dropout_p: float


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? parameter, Tensor? allowed, "
    "Tensor? within, Tensor? seed, float value, str mapping, float scale, bool grouped, "
    "SymInt left, SymInt right, SymInt offset, float dropout_p"
)


def recorded_attention(
    inputs: tuple[Tensor, Tensor, Tensor],
    bias: Tensor | None,
    masks: tuple[Tensor | None, Tensor | None],
    band: Band,
    rows: tuple[Rows, tuple[Tensor, ...]],
    *,
    scale: float,
    grouped: bool,
    dropout_p: float,
) -> Tensor:
    """Context (..., Hq, Lq, Ev), of a mapping that has a row map."""
    name, value, parameter = written(*rows)
    call = Call(
        *inputs,
        bias,
        parameter,
        *masks,
        drawn_seed(dropout_p),
        value,
        name,
        scale,
        grouped,
        *written_sides(band),
        band.offset,
        dropout_p,
    )
    out: Tensor = _operator(*call)
    return out


def _problem(call: Call) -> tuple[Problem, tuple[Any, ...]]:
    """The problem, and the tensors that tiles are cut from."""
    shape = scores_shape(call.q, call.k, call.v, call.grouped)
    rows, parameters = rows_again(call.mapping, call.value, call.parameter, shape)
    band = band_again(call.left, call.right, call.offset)
    dropping = None if call.seed is None else Dropping(call.dropout_p, int(call.seed))
    threads = threads_for(call.dropout_p)
    problem = Problem(shape, band, call.scale, call.grouped, rows, None, dropping, threads)
    tensors = call.q, call.k, call.v, call.bias, call.allowed, call.within
    return problem, (*tensors, *parameters)


@torch.library.custom_op(
    "parsimax::tiled_attention",
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),  # the host reads the seed of dropout
)
def _operator(*arguments: Any) -> Tensor:
    with as_recorded():
        problem, tensors = _problem(Call(*arguments))
        return context_of_tiles(tensors[:6], problem, tensors[6:], None)


@_operator.register_fake
def _(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    shape = scores_shape(call.q, call.k, call.v, call.grouped)
    return call.q.new_empty(*shape[:-1], call.v.shape[-1])


@torch.library.custom_op(
    "parsimax::tiled_attention_backward",
    mutates_args=(),
    schema=f"(Tensor g, {_ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _backward_operator(g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *arguments, wanted = rest
    with as_recorded(), without_autocast(g.device):
        problem, tensors = _problem(Call(*arguments))
        found = gradients_of_tiles(tensors, (), problem, wanted[: len(tensors) - 2], g)
    return gradients_of(g, [*found, None][:_GRADIENTS])


def _plainly(
    g: Tensor, arguments: tuple[Any, ...], wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    with as_recorded():
        problem, tensors = _problem(Call(*arguments))
        found = plain_gradients(tensors, problem, wanted[: len(tensors) - 2], g)
    return [*found, None][:_GRADIENTS]


register_gradients(_operator, _backward_operator, _plainly, _TENSORS, _GRADIENTS)
