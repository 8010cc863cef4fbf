"""Packed sequences as an operator: what torch.compile sees of them where there are no kernels.

Only values say how long the sequences are, and what is recorded has none. The operator looks when
it runs, and takes one sequence after the other, each tile by tile as :mod:`.tiled` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax._core.validation import as_recorded

from .dropping import Dropping
from .inputs import check_dtypes
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
from .starts import read_starts
from .tiled import Problem, context_of_tiles, gradients_of_tiles, plain_gradients
from .visibility import Band

_GRADIENTS = 4  # of the first arguments
_TENSORS = 7
Find = Callable[[Any, Problem, Sequence[bool], Tensor], list[Tensor | None]]


class Call(NamedTuple):
    """What the operator is called with."""

    q: Tensor  # (total, heads, E), with as many heads as the result
    k: Tensor
    v: Tensor
    parameter: Tensor | None  # of the mapping; broadcasts to the scores of each sequence
    q_starts: Tensor
    k_starts: Tensor
    seed: Tensor | None  # of dropout
    value: float  # of the mapping, if no tensor is
    mapping: str
    of_queries: bool  # the parameter is (..., total, 1), and is cut as queries are
    scale: float
    grouped: bool
    left: int  # of the band; -1 is without end
    right: int
    bottom_right: bool
    dropout_p: float
    most_queries: int  # of a sequence; 0 if nobody said
    most_keys: int


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? parameter, Tensor q_starts, Tensor k_starts, "
    "Tensor? seed, float value, str mapping, bool of_queries, float scale, bool grouped, "
    "SymInt left, SymInt right, bool bottom_right, float dropout_p, SymInt most_queries, "
    "SymInt most_keys"
)


def sequence_by_sequence(
    inputs: tuple[Tensor, Tensor, Tensor],
    starts: tuple[Tensor, Tensor],
    limits: Sequence[int | None],
    rows: tuple[Rows, tuple[Tensor, ...]],
    band: Band,
    *,
    bottom_right: bool,
    of_queries: bool,
    scale: float,
    grouped: bool,
    dropout_p: float,
) -> Tensor:
    """Context (total, heads, Ev), of a mapping that has a row map.

    ``band`` is without its offset, and ``of_queries`` says that the tensor of the mapping has a
    number for each query.
    """
    q, k, v = inputs
    check_dtypes(q, k, v)
    if not grouped:  # heads broadcast
        q = q.expand(q.shape[0], max(x.shape[1] for x in inputs), q.shape[2])
    name, value, parameter = written(*rows)
    call = Call(
        q,
        k,
        v,
        parameter,
        *starts,
        drawn_seed(dropout_p),
        value,
        name,
        of_queries,
        scale,
        grouped,
        *written_sides(band),
        bottom_right,
        dropout_p,
        limits[0] or 0,
        limits[1] or 0,
    )
    out: Tensor = _operator(*call)
    return out


def _sequences(call: Call) -> Iterator[tuple[Problem, tuple[Any, ...]]]:
    """Each sequence as a problem, and the tensors that tiles are cut from."""
    most = call.most_queries or None, call.most_keys or None
    # one that is empty if there are none
    queries = read_starts(call.q_starts, "cu_seqlens_q", call.q, "q", most[0]) or [0]
    keys = read_starts(call.k_starts, "cu_seqlens_k", call.k, "k", most[1]) or [0]
    qs, ks, vs = (
        torch.split(x.transpose(0, 1), lengths, 1)
        for x, lengths in ((call.q, queries), (call.k, keys), (call.v, keys))
    )
    own: Iterator[Tensor | None] = itertools.repeat(call.parameter)
    if call.of_queries and call.parameter is not None:
        own = iter(torch.split(call.parameter, queries, -2))
    first = 0 if call.seed is None else int(call.seed)
    threads = threads_for(call.dropout_p)
    for i, (q, k, v, parameter) in enumerate(zip(qs, ks, vs, own, strict=False)):
        shape = torch.Size((q.shape[0], q.shape[1], k.shape[1]))
        rows, parameters = rows_again(call.mapping, call.value, parameter, shape)
        offset = shape[2] - shape[1] if call.bottom_right else 0
        band = band_again(call.left, call.right, offset)
        # each tile adds its number to the seed
        dropping = Dropping(call.dropout_p, first + (i << 32)) if call.dropout_p > 0 else None
        problem = Problem(shape, band, call.scale, call.grouped, rows, None, dropping, threads)
        yield problem, (q, k, v, None, None, None, *parameters)


@torch.library.custom_op(
    "parsimax::packed_attention",
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),  # the host reads where sequences begin
)
def _operator(*arguments: Any) -> Tensor:
    with as_recorded():
        parts = [
            context_of_tiles(tensors[:6], problem, tensors[6:], None).transpose(0, 1)
            for problem, tensors in _sequences(Call(*arguments))
        ]
    return torch.cat(parts).contiguous()


@_operator.register_fake
def _(*arguments: Any) -> Tensor:
    call = Call(*arguments)
    return call.q.new_empty(*call.q.shape[:2], call.v.shape[2])


# --- gradients ------------------------------------------------------------------------------------


def _gradients(
    g: Tensor, call: Call, wanted: Sequence[bool], find: Find
) -> tuple[Tensor | None, ...]:
    """Of q, k, v and the parameter, as far as they are wanted."""
    found: list[list[Tensor | None]] = []
    start = 0
    for problem, tensors in _sequences(call):
        rows = slice(start, start + problem.shape[1])
        # the fourth is that of numbers that are added to the scores, which there are none of
        want = (*wanted[:3], False, *(wanted[3:] if len(tensors) > 6 else ()))
        gq, gk, gv, _, *rest = find(tensors, problem, want, g[rows].transpose(0, 1))
        found.append([gq, gk, gv, *rest])
        start = rows.stop
    columns = zip(*found, strict=True)
    made = [
        [x if i == _GRADIENTS - 1 else x.transpose(0, 1) for x in column if x is not None]
        for i, column in enumerate(columns)
    ]
    joined = [torch.cat(parts) if parts else None for parts in made[:3]]
    if not wanted[3]:
        return *joined, None
    if call.of_queries:
        return *joined, torch.cat(made[3], -2)
    return *joined, torch.stack(made[3]).sum(0)


@torch.library.custom_op(
    "parsimax::packed_attention_backward",
    mutates_args=(),
    schema=f"(Tensor g, {_ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _backward_operator(g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *arguments, wanted = rest

    def find(
        tensors: Any, problem: Problem, want: Sequence[bool], part: Tensor
    ) -> list[Tensor | None]:
        return gradients_of_tiles(tensors, (), problem, want, part)

    with as_recorded(), without_autocast(g.device):
        found = _gradients(g, Call(*arguments), wanted, find)
    return gradients_of(g, found)


def _plainly(
    g: Tensor, arguments: tuple[Any, ...], wanted: Sequence[bool]
) -> Sequence[Tensor | None]:
    with as_recorded():
        return _gradients(g, Call(*arguments), wanted, plain_gradients)


register_gradients(_operator, _backward_operator, _plainly, _TENSORS, _GRADIENTS)
