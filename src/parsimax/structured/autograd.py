"""SparseMAP with derivatives of any order, in reverse and forward mode, and under vmap.

The solution is piecewise linear in the scores, so its derivative depends only on which structures
have probability: a symmetric matrix, which is applied by one kernel in every mode.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parsimax._core.validation import transform_or_forward_mode
from parsimax.kernels.cpu.structured import (
    INFEASIBLE,
    UNDEFINED,
    Problem,
    apply_sensitivity,
    solve,
)


class Solved(NamedTuple):
    """A solution on the device of the scores; the first two are differentiable."""

    marginals: Tensor  # (B, N, M)
    probabilities: Tensor  # (B, K)
    members: Tensor  # int32 (B, K, slots)
    counts: Tensor  # int64 (B,), on the CPU
    gap: Tensor  # float64 (B,)
    steps: Tensor  # int64 (B,)


def apply_solve(
    scores: Tensor,
    extra: Tensor,
    sizes: Tensor,
    warm_members: Tensor,
    warm_probabilities: Tensor,
    problem: Problem,
) -> Solved:
    """Solve scores (B, N, M) with other scores (1 or B, ...), as ``parsimax.kernels`` says."""
    arguments: tuple[Any, ...] = (
        scores, extra, sizes, warm_members, warm_probabilities, problem
    )  # fmt: skip
    if transform_or_forward_mode():
        arguments = (scores, extra, sizes.double(), warm_members.double(), *arguments[4:])
        solved = Solved(*_Solve.apply(*arguments))  # type: ignore[no-untyped-call]
        return solved._replace(
            members=solved.members.int(), counts=solved.counts.long(), steps=solved.steps.long()
        )
    solved = _solved(*arguments)
    if torch.is_grad_enabled() and (scores.requires_grad or extra.requires_grad):
        out = _Reverse.apply(scores, extra, solved, problem)  # type: ignore[no-untyped-call]
        marginals, probabilities = out
        solved = solved._replace(marginals=marginals, probabilities=probabilities)
    return solved


# torch converts larger tensors by OpenMP, whose threads then wait for more in a busy loop for some
# milliseconds, on the very cores that ours would run on. numpy starts none.


def _host(x: Tensor) -> Tensor:
    x = x.detach()
    if x.device.type != "cpu" or x.dtype not in _NUMPY:
        x = x.to("cpu", torch.float64)
    return torch.from_numpy(np.ascontiguousarray(x.numpy(), np.float64))


def _like(x: Tensor, z: Tensor) -> Tensor:
    """Float64 on the CPU, on the device and in the dtype of another."""
    if z.device.type != "cpu" or z.dtype not in _NUMPY:
        return x.to(z.device, z.dtype)
    return torch.from_numpy(x.numpy().astype(_NUMPY[z.dtype], copy=False))


_NUMPY: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def _solved(
    scores: Tensor,
    extra: Tensor,
    sizes: Tensor,
    warm_members: Tensor,
    warm_probabilities: Tensor,
    problem: Problem,
) -> Solved:
    """Solved on the host in float64, returned on the device and in the dtype of the scores."""
    solution = solve(
        problem,
        _host(scores),
        _host(extra).reshape(extra.shape[0], extra.shape[1:].numel()),
        sizes,
        warm_members,
        _host(warm_probabilities),
    )
    probabilities, gap = solution.probabilities, solution.gap
    if solution.outcomes.any():  # not all are simply solved
        infeasible = (solution.outcomes == INFEASIBLE).nonzero()
        if len(infeasible):
            raise ValueError(
                "scores forbid every structure: -inf or mask leave none that is whole "
                f"(item {int(infeasible[0])} of the batch)"
            )
        undefined = solution.outcomes == UNDEFINED
        probabilities = torch.where(undefined[:, None], torch.nan, probabilities)
        gap = torch.where(undefined, torch.nan, gap)
    members, steps = solution.members, solution.steps
    if scores.device.type != "cpu":
        members, gap, steps = (x.to(scores.device) for x in (members, gap, steps))
    return Solved(
        _like(solution.marginals, scores),
        _like(probabilities, scores),
        members,
        solution.counts,
        gap,
        steps,
    )


def _sensitivity(
    arguments: tuple[Tensor | None, Tensor | None, Tensor | None],
    members: Tensor,
    counts: Tensor,
    problem: Problem,
    labels: int,
    columns: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative at given structures, applied to what there is of (units, edges, structures).

    A kernel, and where its own derivative may be asked for, the Function around it.
    """
    given = next(x for x in arguments if x is not None)
    none = given.new_empty(given.shape[0], 0)
    full = [x if x is not None else none for x in arguments]
    if torch.is_grad_enabled() or transform_or_forward_mode():
        rest = (members, counts, problem, labels, columns)
        out: tuple[Tensor, Tensor, Tensor] = _Sensitivity.apply(*full, *rest)  # type: ignore[no-untyped-call]
        return out
    return _kernel(full, members, counts, problem, labels, columns)


def _kernel(
    arguments: Sequence[Tensor],
    members: Tensor,
    counts: Tensor,
    problem: Problem,
    labels: int,
    columns: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    given = arguments[0]
    units, edges, structures = (_host(x) for x in arguments)
    out = apply_sensitivity(
        problem, members.cpu().int(), counts.long(), labels, (units, edges, structures), columns
    )
    # edges are summed over a batch, and transitions may have more digits than scores
    return _like(out[0], given), out[1].to(given.device), _like(out[2], given)


def _remember(ctx: Any, scores: Tensor, extra: Tensor, problem: Problem) -> None:
    ctx.set_materialize_grads(False)
    ctx.shapes = scores.shape, extra.shape, extra.dtype
    ctx.dtype = scores.dtype
    ctx.problem = problem


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in scores and extra scores."""
    members, counts = ctx.saved_tensors
    shape, extra_shape, extra_dtype = ctx.shapes
    marginals, probabilities = grads[:2]
    batch, variables = shape[0], shape[1] * shape[2]
    if marginals is None and probabilities is None:
        return None, None
    edges = extra_shape[1:].numel() if ctx.needs_input_grad[1] else 0
    units, edge_grads, _ = _sensitivity(
        (
            marginals.reshape(batch, variables) if marginals is not None else None,
            None,
            probabilities,
        ),
        members,
        counts,
        ctx.problem,
        extra_shape[-1] if len(extra_shape) == 4 else 0,
        (variables if ctx.needs_input_grad[0] else 0, edges, 0),
    )
    extra = None
    if ctx.needs_input_grad[1]:
        extra = edge_grads.reshape(batch, *extra_shape[1:])
        extra = extra.sum(0, keepdim=True) if extra_shape[0] != batch else extra
        extra = extra if extra.dtype == extra_dtype else extra.to(extra_dtype)
    return units.reshape(shape) if ctx.needs_input_grad[0] else None, extra


class _Reverse(torch.autograd.Function):
    """Reverse mode alone, which is what training asks for: torch calls this form twice as fast."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, extra: Tensor, solved: Solved, problem: Problem
    ) -> tuple[Tensor, Tensor]:
        _remember(ctx, scores, extra, problem)
        ctx.save_for_backward(solved.members, solved.counts)
        return solved.marginals, solved.probabilities

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*_backward(ctx, *grads), None, None)


class _Solve(torch.autograd.Function):
    """The same with forward mode and torch.func.

    Integers are returned as float64: forward mode inside torch.func gives every tensor that passes
    through a Function a tangent, and fails at integers.
    """

    @staticmethod
    def forward(
        scores: Tensor,
        extra: Tensor,
        sizes: Tensor,
        warm_members: Tensor,
        warm_probabilities: Tensor,
        problem: Problem,
    ) -> tuple[Tensor, ...]:
        solved = _solved(
            scores, extra, sizes.long(), warm_members.int(), warm_probabilities, problem
        )
        return tuple(x if x.is_floating_point() else x.double() for x in solved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        scores, extra, *_, problem = inputs
        _, _, members, counts, gap, steps = output
        _remember(ctx, scores, extra, problem)
        ctx.mark_non_differentiable(members, counts, gap, steps)
        ctx.save_for_backward(members, counts)
        ctx.save_for_forward(members, counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*_backward(ctx, *grads), None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        members, counts = ctx.saved_tensors
        shape, extra_shape, _ = ctx.shapes
        scores, extra = tangents[:2]
        batch = shape[0]
        edges = None
        if extra is not None:
            edges = extra.expand(batch, *extra_shape[1:]).reshape(batch, extra_shape[1:].numel())
        units, _, structures = _sensitivity(
            (
                scores.reshape(batch, shape[1] * shape[2]) if scores is not None else None,
                edges,
                None,
            ),
            members,
            counts,
            ctx.problem,
            extra_shape[-1] if len(extra_shape) == 4 else 0,
            (shape[1] * shape[2], 0, members.shape[1]),
        )
        units, structures = (x.to(ctx.dtype) for x in (units, structures))
        return units.reshape(shape), structures, None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        scores: Tensor,
        extra: Tensor,
        sizes: Tensor,
        warm_members: Tensor,
        warm_probabilities: Tensor,
        problem: Problem,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        size = info.batch_size
        batch = scores.shape[0] if in_dims[0] is None else scores.movedim(in_dims[0], 0).shape[1]
        if in_dims[1] is not None or extra.shape[0] != 1:
            extra = _folded(_widened(extra, in_dims[1], batch, size), size)
        out = _Solve.apply(  # type: ignore[no-untyped-call]
            _folded(_front(scores, in_dims[0], size), size),
            extra,
            _folded(_front(sizes, in_dims[2], size), size),
            _folded(_front(warm_members, in_dims[3], size), size),
            _folded(_front(warm_probabilities, in_dims[4], size), size),
            problem,
        )
        return tuple(x.reshape(size, batch, *x.shape[1:]) for x in out), (0,) * len(out)


class _Sensitivity(torch.autograd.Function):
    """The derivative at given structures: a symmetric map, and so its own transpose."""

    @staticmethod
    def forward(
        units: Tensor,
        edges: Tensor,
        structures: Tensor,
        members: Tensor,
        counts: Tensor,
        problem: Problem,
        labels: int,
        columns: tuple[int, int, int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _kernel((units, edges, structures), members, counts, problem, labels, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *arguments, members, counts, problem, labels, columns = inputs
        ctx.save_for_backward(members, counts)
        ctx.save_for_forward(members, counts)
        ctx.rest = problem, labels, tuple(x.shape[1] for x in arguments), columns
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        present, wanted = ctx.rest[3], ctx.rest[2]
        out = _again(ctx, grads, present, wanted)
        return (*(x if width else None for x, width in zip(out, wanted, strict=True)), *(None,) * 5)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        return _again(ctx, tangents[:3], ctx.rest[2], ctx.rest[3])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, problem, labels, columns = inputs
        size = info.batch_size
        folded = [
            _folded(_front(x, d, size), size) for x, d in zip(tensors, in_dims[:5], strict=True)
        ]
        out = _Sensitivity.apply(*folded, problem, labels, columns)  # type: ignore[no-untyped-call]
        return tuple(x.reshape(size, len(x) // size, x.shape[1]) for x in out), (0, 0, 0)


def _again(
    ctx: Any, given: tuple[Any, ...], present: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[Tensor | None, ...]:
    members, counts = ctx.saved_tensors
    problem, labels, *_ = ctx.rest
    some = next((x for x in given if x is not None), None)
    if some is None:
        return None, None, None
    arguments = [
        x if x is not None and width else some.new_empty(len(members), 0)
        for x, width in zip(given, present, strict=True)
    ]
    rest = (members, counts, problem, labels, wanted)
    out = _Sensitivity.apply(*arguments, *rest)  # type: ignore[no-untyped-call]
    return tuple(out)


def _front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension in front; one that is not mapped is repeated."""
    return x.movedim(dim, 0) if dim is not None else x.unsqueeze(0).expand(size, *x.shape)


def _widened(extra: Tensor, dim: int | None, batch: int, size: int) -> Tensor:
    extra = _front(extra, dim, size)
    return extra.expand(size, batch, *extra.shape[2:])


def _folded(x: Tensor, size: int) -> Tensor:
    return x.reshape(size * x.shape[1], *x.shape[2:])


# torch binds the arguments of every call to this signature, and would work it out anew each time
_Solve.forward.__signature__ = inspect.signature(_Solve.forward)  # type: ignore[attr-defined]
_Sensitivity.forward.__signature__ = inspect.signature(_Sensitivity.forward)  # type: ignore[attr-defined]
