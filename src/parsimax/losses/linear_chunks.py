"""The loss of a linear layer, a few rows of logits at a time.

Three things can happen to a chunk of rows once its losses are known:

- its support is small (the usual case for alpha > 1): it is kept, 8 bytes an entry, and the
  products of the backward become sums of a few rows of W and of h;
- its support is large, and the losses will be summed: the gradients are known up to the factor
  that comes from above, so both products are taken at once and added up;
- its support is large, and every row will get a factor of its own: its logits are computed again
  in the backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from parsimax._core.backend import choose
from parsimax._core.dtypes import HALF, exact, exact_dtype, working
from parsimax.mappings.rowmap import rowmap_named

from .conjugate import solve_conjugate
from .lag import dense_lag
from .linear_products import (
    Gradients,
    Problem,
    Wanted,
    add_dense,
    add_rank_one,
    add_support,
    empty_gradients,
    rows_of,
    working_dtype,
)

if TYPE_CHECKING:
    from parsimax.kernels.cpu.linear import Support

_CHUNK = 1 << 23  # logits at a time: 32 MiB of float32
_LEAST_ROWS = 64  # with fewer, the matrix product is slow
_SMALL_SUPPORT = 1 / 8  # of all entries: a quarter of the logits' own bytes


@dataclass(frozen=True)
class Kept:
    """What the backward needs of the products."""

    support: Support | None
    dense: Gradients | None  # of the chunks that were not kept, without the factor from above
    again: tuple[tuple[int, int], ...]  # rows whose logits must be computed again


@dataclass(frozen=True)
class Outcome:
    """Losses, and what the backward needs."""

    values: Tensor  # (N,)
    change: Tensor | None  # d gap / d alpha, (N,)
    kept: Kept


def chunk_rows(classes: int) -> int:
    """How many rows of logits exist at a time."""
    return max(_LEAST_ROWS, _CHUNK // max(classes, 1))


def every_chunk(problem: Problem) -> tuple[tuple[int, int], ...]:
    """(start, stop) of all chunks."""
    rows, count = chunk_rows(len(problem.weight)), len(problem.hidden)
    return tuple((start, min(start + rows, count)) for start in range(0, count, rows))


def solve_chunks(problem: Problem, wanted: Wanted, total: bool, keep: bool) -> Outcome:
    """Losses of all rows; ``total`` if they will be summed, ``keep`` if supports may be kept."""
    chunks = every_chunk(problem)
    products = wanted.hidden or wanted.weight or wanted.bias
    room = _Room(problem)
    solved: list[_Chunk] = []
    again: list[tuple[int, int]] = []
    parts: list[Support | None] = []
    dense = empty_gradients(problem, wanted) if products and total and not keep else None
    for start, stop in chunks:
        part = problem.select(slice(start, stop))
        chunk = _solve_chunk(part, room, wanted.alpha)
        solved.append(chunk)
        if not products:
            continue
        if keep and chunk.small:
            parts.append(chunk.support(part))
            continue
        parts.append(None)
        if total:
            dense = dense or empty_gradients(problem, wanted)
            _add_products(part, chunk, rows_of(dense, start, stop))
        else:
            again.append((start, stop))
    return Outcome(
        _cat([chunk.values for chunk in solved], problem),
        _cat([chunk.change for chunk in solved], problem) if wanted.alpha else None,
        Kept(_join(parts, chunks), dense, tuple(again)),
    )


def pull_back(problem: Problem, kept: Kept, wanted: Wanted, g: Tensor) -> Gradients:
    """The gradients, for one factor ``g`` from above, or one a row."""
    scaled = problem.times(g)
    if kept.dense is None:
        result = empty_gradients(problem, wanted)
    else:
        old = (kept.dense.hidden, kept.dense.weight, kept.dense.bias)
        result = Gradients(*(None if x is None else x * g.to(x.dtype) for x in old))
    if kept.support is not None:
        add_support(scaled, kept.support, result)
    room = _Room(problem) if kept.again else None
    for start, stop in kept.again:
        assert room is not None
        part = scaled.select(slice(start, stop))
        _add_products(part, _solve_chunk(part, room, False), rows_of(result, start, stop))
    if problem.smoothed:
        add_rank_one(scaled, result)
    return result


# --- one chunk ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chunk:
    """A chunk of rows, solved; ``p`` lives in the room and is overwritten by the next."""

    values: Tensor
    change: Tensor
    p: Tensor
    counts: Tensor | None  # entries that are not 0, a row each, where known

    @property
    def small(self) -> bool:
        """Whether the support is worth keeping."""
        if self.counts is None:
            return False
        return int(self.counts.sum()) <= _SMALL_SUPPORT * self.p.numel()

    def support(self, problem: Problem) -> Support:
        """The support of the chunk's rows."""
        from parsimax.kernels.cpu import linear

        assert self.counts is not None
        return linear.gather(self.p, problem.index, self.counts)


class _Room:
    """Memory for the logits of one chunk, used again and again where the backend allows it."""

    def __init__(self, problem: Problem) -> None:
        rows = min(chunk_rows(len(problem.weight)), len(problem.hidden))
        self.numba = choose(problem.backend, problem.hidden) == "numba"
        dtype = working_dtype(problem.hidden)
        size = (rows, len(problem.weight)) if self.numba else (0,)
        self.buffer = problem.hidden.new_empty(size, dtype=dtype)

    def logits(self, problem: Problem) -> Tensor:
        """The scores of the problem's rows."""
        hidden, weight, bias = problem.hidden, problem.weight, problem.bias
        if not self.numba:
            return F.linear(hidden, weight, bias)
        out = self.buffer[: len(hidden)]
        if hidden.dtype in HALF:
            return out.copy_(F.linear(hidden, weight, bias))
        if bias is None:
            return torch.mm(hidden, weight.t(), out=out)
        return torch.addmm(bias, hidden, weight.t(), out=out)


def _solve_chunk(problem: Problem, room: _Room, want_change: bool) -> _Chunk:
    z = room.logits(problem)
    if not room.numba:
        return _solve_plainly(problem, z, want_change)
    from parsimax.kernels.cpu import linear

    alpha = torch.as_tensor(problem.alpha, dtype=torch.float64, device="cpu").detach().reshape(-1)
    used = (problem.scale != 0) | (problem.own != 0) | (problem.each != 0)
    if not problem.smoothed:
        weights = alpha.new_zeros(0)
    elif problem.class_weight is None:
        weights = alpha.new_ones(1)
    else:
        weights = problem.class_weight.detach().double().contiguous()
    rows = linear.solve_in_place(z, alpha, problem.index, used, weights, want_change)
    values = _values(problem, rows.gap, rows.lag, rows.spread)
    return _Chunk(values, rows.change, z, rows.counts)


def _solve_plainly(problem: Problem, z: Tensor, want_change: bool) -> _Chunk:
    gap, lag, top, p = solve_conjugate(z, problem.alpha, problem.index, "entmax", problem.backend)
    spread = torch.zeros_like(gap)
    if problem.smoothed:
        one = torch.ones(1, dtype=working(z).dtype, device=z.device)
        weight = one if problem.class_weight is None else problem.class_weight
        spread, _ = dense_lag(z, top, weight, problem.backend)
    change = torch.zeros_like(gap)
    if want_change:
        change = -exact(rowmap_named("entmax").domega(working(p), problem.alpha))
    unused = (problem.scale == 0) & (problem.own == 0) & (problem.each == 0)
    p = working(p).masked_fill(unused.unsqueeze(-1), 0.0)
    return _Chunk(_values(problem, gap, lag, spread), change, p, None)


def _values(problem: Problem, gap: Tensor, lag: Tensor, spread: Tensor) -> Tensor:
    terms = ((problem.scale, gap), (problem.own, lag), (problem.each, spread))
    products = [torch.where(factor == 0, 0.0, factor * x) for factor, x in terms]
    return products[0] + products[1] + products[2]


def _add_products(problem: Problem, chunk: _Chunk, out: Gradients) -> None:
    """Add a solved chunk's part; its probabilities are used up."""
    if chunk.small:
        add_support(problem, chunk.support(problem), out)
    else:
        add_dense(problem, chunk.p, out)


def _cat(parts: list[Tensor], problem: Problem) -> Tensor:
    nothing = problem.hidden.new_zeros(0, dtype=exact_dtype(problem.hidden))
    return torch.cat(parts) if parts else nothing


def _join(parts: list[Support | None], chunks: tuple[tuple[int, int], ...]) -> Support | None:
    """One support of all rows; those of chunks that were not kept are empty."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        return None
    from parsimax.kernels.cpu import linear

    nothing = some.where[:0], some.values[:0]
    empty = [linear.Support(some.offsets.new_zeros(b - a + 1), *nothing) for a, b in chunks]
    return linear.join([part or blank for part, blank in zip(parts, empty, strict=True)])
