"""SparseMAP with derivatives of any order, in reverse and forward mode, and under vmap.

The solution is piecewise linear in the scores, so its derivative depends only on which structures
have probability: a symmetric matrix, which is applied by one kernel in every mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax.kernels.cpu.structured import (
    INFEASIBLE,
    UNDEFINED,
    Problem,
    apply_sensitivity,
    solve,
)


def _host(x: Tensor) -> Tensor:
    return x.detach().to("cpu", torch.float64).contiguous()


class Solve(torch.autograd.Function):
    """(scores (B, N, M), extra (1 or B, ...), ...) -> marginals, probabilities, and constants."""

    @staticmethod
    def forward(
        scores: Tensor,
        extra: Tensor,
        sizes: Tensor,
        warm_members: Tensor,
        warm_probabilities: Tensor,
        problem: Problem,
    ) -> tuple[Tensor, ...]:
        """Solved on the host in float64, returned on the device and in the dtype of the scores."""
        flat = _host(extra).reshape(extra.shape[0], -1)
        solution = solve(
            problem,
            _host(scores),
            flat,
            sizes,
            warm_members.to("cpu", torch.int32).contiguous(),
            _host(warm_probabilities),
        )
        infeasible = (solution.outcomes == INFEASIBLE).nonzero()
        if len(infeasible):
            raise ValueError(
                "scores forbid every structure: -inf or mask leave none that is whole "
                f"(item {int(infeasible[0])} of the batch)"
            )
        probabilities, gap = solution.probabilities, solution.gap
        undefined = solution.outcomes == UNDEFINED
        if bool(undefined.any()):
            probabilities = torch.where(undefined[:, None], torch.nan, probabilities)
            gap = torch.where(undefined, torch.nan, gap)
        device = scores.device
        return (
            solution.marginals.to(device, scores.dtype),
            probabilities.to(device, scores.dtype),
            solution.members.to(device),
            solution.counts,
            gap.to(device),
            solution.steps.to(device),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """What the derivative needs: the structures, and how the arguments looked."""
        scores, extra, *_, problem = inputs
        _, _, members, counts, gap, steps = output
        ctx.mark_non_differentiable(members, counts, gap, steps)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(members, counts)
        ctx.save_for_forward(members, counts)
        ctx.shapes = scores.shape, extra.shape, scores.dtype, extra.dtype
        ctx.problem = problem

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients in scores and extra scores."""
        members, counts = ctx.saved_tensors
        shape, extra_shape, dtype, extra_dtype = ctx.shapes
        marginals, probabilities = grads[:2]
        batch, variables = shape[0], shape[1] * shape[2]
        given = marginals if marginals is not None else probabilities
        if given is None:
            return (None,) * 6
        edges = extra_shape[1:].numel() if ctx.needs_input_grad[1] else 0
        units, edge_grads, _ = Sensitivity.apply(  # type: ignore[no-untyped-call]
            marginals.reshape(batch, -1) if marginals is not None else given.new_empty(batch, 0),
            given.new_empty(batch, 0),
            probabilities if probabilities is not None else given.new_empty(batch, 0),
            members,
            counts,
            ctx.problem,
            extra_shape[-1] if len(extra_shape) == 4 else 0,
            (variables if ctx.needs_input_grad[0] else 0, edges, 0),
        )
        extra = None
        if edges:
            extra = edge_grads.reshape(batch, *extra_shape[1:])
            extra = extra.sum(0, keepdim=True) if extra_shape[0] != batch else extra
            extra = extra.to(extra_dtype)
        elif ctx.needs_input_grad[1]:
            extra = given.new_zeros(extra_shape, dtype=extra_dtype)
        wanted = units.reshape(shape).to(dtype) if ctx.needs_input_grad[0] else None
        return wanted, extra, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Changes of marginals and probabilities."""
        members, counts = ctx.saved_tensors
        shape, extra_shape, dtype, _ = ctx.shapes
        scores, extra = tangents[:2]
        batch = shape[0]
        given = scores if scores is not None else extra
        assert given is not None
        edges = given.new_empty(batch, 0)
        if extra is not None and extra.numel():
            edges = extra.expand(batch, *extra_shape[1:]).reshape(batch, -1)
        units, _, structures = Sensitivity.apply(  # type: ignore[no-untyped-call]
            scores.reshape(batch, -1) if scores is not None else given.new_empty(batch, 0),
            edges,
            given.new_empty(batch, 0),
            members,
            counts,
            ctx.problem,
            extra_shape[-1] if len(extra_shape) == 4 else 0,
            (shape[1] * shape[2], 0, members.shape[1]),
        )
        return units.reshape(shape).to(dtype), structures.to(dtype), None, None, None, None

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
        """A larger batch."""
        size = info.batch_size
        batch = scores.shape[0] if in_dims[0] is None else scores.movedim(in_dims[0], 0).shape[1]
        if in_dims[1] is not None or extra.shape[0] != 1:
            extra = _folded(_widened(extra, in_dims[1], batch, size), size)
        out = Solve.apply(  # type: ignore[no-untyped-call]
            _folded(_front(scores, in_dims[0], size), size),
            extra,
            _folded(_front(sizes, in_dims[2], size), size),
            _folded(_front(warm_members, in_dims[3], size), size),
            _folded(_front(warm_probabilities, in_dims[4], size), size),
            problem,
        )
        return tuple(x.reshape(size, batch, *x.shape[1:]) for x in out), (0,) * len(out)


class Sensitivity(torch.autograd.Function):
    """The derivative at given structures, a symmetric linear map of three arguments."""

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
        """Arguments and results of zero columns are absent."""
        given = max((units, edges, structures), key=lambda x: x.shape[1])
        out = apply_sensitivity(
            problem,
            members.to("cpu"),
            counts,
            labels,
            (_host(units), _host(edges), _host(structures)),
            columns,
        )
        a, b, c = (x.to(given.device, given.dtype) for x in out)
        return a, b, c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """The structures, and which arguments there were."""
        *arguments, members, counts, problem, labels, columns = inputs
        ctx.save_for_backward(members, counts)
        ctx.save_for_forward(members, counts)
        ctx.rest = problem, labels, tuple(x.shape[1] for x in arguments), columns
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The same map, from its results to its arguments."""
        return (*_again(ctx, grads, ctx.rest[3], ctx.rest[2]), *(None,) * 5)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        """The same map."""
        return _again(ctx, tangents[:3], ctx.rest[2], ctx.rest[3])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """A larger batch."""
        *tensors, problem, labels, columns = inputs
        size = info.batch_size
        folded = [
            _folded(_front(x, d, size), size) for x, d in zip(tensors, in_dims[:5], strict=True)
        ]
        out = Sensitivity.apply(*folded, problem, labels, columns)  # type: ignore[no-untyped-call]
        return tuple(x.reshape(size, -1, x.shape[1]) for x in out), (0, 0, 0)


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
    out = Sensitivity.apply(*arguments, *rest)  # type: ignore[no-untyped-call]
    return tuple(x if width else None for x, width in zip(out, wanted, strict=True))


def _front(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The mapped dimension in front; one that is not mapped is repeated."""
    return x.movedim(dim, 0) if dim is not None else x.unsqueeze(0).expand(size, *x.shape)


def _widened(extra: Tensor, dim: int | None, batch: int, size: int) -> Tensor:
    extra = _front(extra, dim, size)
    return extra.expand(size, batch, *extra.shape[2:])


def _folded(x: Tensor, size: int) -> Tensor:
    return x.reshape(size * x.shape[1], *x.shape[2:])
