r"""SparseMAP (Niculae, Martins, Blondel & Cardie 2018): sparsemax over structures.

.. math:: \mu^* = \arg\max_{\mu \in \mathcal M} \langle z, \mu \rangle
          + \langle t, \text{edges} \rangle - \tfrac12 \|\mu\|^2

over the convex hull of all structures; few of them get probability.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parsimax._core.backend import refuse_traces, refuse_wrappers
from parsimax._core.dtypes import autocast_scores
from parsimax._core.masks import apply_mask
from parsimax._core.validation import (
    check_number,
    check_scores,
    traced,
    values_readable,
    without_values,
)

from .base import Structure, instance_shape, instance_sizes
from .from_oracle import FromOracle
from .result import ConvergenceWarning, SparseMAPResult


def sparsemap(
    scores: Tensor,
    structure: Structure,
    lengths: Tensor | None = None,
    tol: float = 1e-6,
    *,
    mask: Tensor | None = None,
    max_iter: int | None = None,
    warm_start: SparseMAPResult | None = None,
) -> SparseMAPResult:
    """A distribution over few whole structures, for a batch of scores.

    Solved in float64 on the CPU whatever the dtype and the device, over as many threads as torch
    has; the results have the dtype and the device of the scores.

    Args:
        scores: (B, ...) with the shape that ``structure`` asks for; other leading dimensions, or
            none, are fine, too.
        structure: one of :mod:`parsimax.structured`, such as ``Matching()``.
        lengths: (B,), or (B, 2) for structures with two sides: the part of each instance that
            counts. The result equals that of the cut scores, and is 0 outside.
        tol: the largest gap of a solution that counts as converged. The gap is what the best
            structure gains over the solution, once the marginals are subtracted from the scores.
        mask: bool, True where a score may receive probability, like -inf where it may not.
        max_iter: how many steps an instance may take, each of which adds a structure; None for no
            limit that matters.
        warm_start: the result for similar scores of the same shape, to start from.

    Returns:
        Marginals, structures with probabilities, the gap and whether it is within ``tol``. Where it
        is not, a ``ConvergenceWarning`` says so, once for the batch.

    >>> import torch, parsimax as px
    >>> scores = torch.tensor([[[1.0, 0.9], [0.6, 0.3]]])
    >>> r = px.sparsemap(scores, px.structured.Matching())
    >>> r.marginals
    tensor([[[0.4500, 0.5500],
             [0.5500, 0.4500]]])
    >>> r.probabilities, r.converged
    (tensor([[0.5500, 0.4500]]), tensor([True]))
    """
    if torch.compiler.is_compiling():
        # how many structures there are depends on values: a compiled graph is cut here
        eager: Any = torch.compiler.disable(sparsemap)  # type: ignore[no-untyped-call]
        result: SparseMAPResult = eager(
            scores, structure, lengths, tol, mask=mask, max_iter=max_iter, warm_start=warm_start
        )
        return result
    scores = check_scores(scores, "scores")
    if not isinstance(structure, Structure):
        hint = f"; use {structure.__name__}()" if isinstance(structure, type) else ""
        raise TypeError(
            f"structure must be one of px.structured, such as Matching(), got {structure!r}{hint}"
        )
    tol = check_tol(tol)
    refuse_traces()
    refuse_wrappers(scores)
    if traced():
        raise RuntimeError(
            "make_fx cannot record sparsemap: how many structures there are depends on values"
        )
    # numba is loaded only now
    from .autograd import apply_solve

    if without_values(scores):
        raise ValueError("sparsemap needs the values of scores, and a meta tensor has none")
    scores = apply_mask(autocast_scores(scores), mask)
    lead, shape, flat = as_batch(scores, structure, lengths)
    batch, rows, columns = flat.shape
    sizes = instance_sizes(structure, lead, rows, columns, lengths, cut_of(structure, shape))
    extra = structure.extra_scores(rows, columns, batch)
    if extra is not None and extra.device != scores.device:
        raise ValueError(
            f"transitions must be on the device of the scores, {scores.device}, got {extra.device}"
        )
    problem = _problem(structure, sizes, shape, rows, columns, tol, max_iter)
    solved = apply_solve(
        flat,
        extra if extra is not None else flat.new_empty(1, 0),
        sizes,
        *_start(warm_start, structure, flat, (*lead, *shape)),
        problem,
    )
    converged = solved.gap <= tol
    if values_readable():
        _warn(solved.gap, converged, tol)
    one = len(lead) == 1  # then all shapes are right already
    probabilities, gap, converged, steps, members = (
        x if one else x.reshape((*lead, *x.shape[1:]))
        for x in (solved.probabilities, solved.gap, converged, solved.steps, solved.members)
    )
    marginals = solved.marginals.reshape(scores.shape)
    return SparseMAPResult(marginals, probabilities, gap, converged, steps, members, structure)


def check_tol(tol: object) -> float:
    """A tolerance: a number above 0."""
    if isinstance(tol, Tensor | str) or tol is None:
        raise TypeError(f"tol must be a number, got {type(tol).__name__} {tol!r}")
    return check_number(tol, "tol", lambda x: 0 < x < float("inf"), "above 0 and finite")


# Where nothing better is known: far more than any instance has needed, and still an end.
def _limit(variables: int) -> int:
    return 1000 + 100 * variables


def cut_of(structure: Structure, shape: tuple[int, ...]) -> str:
    """Which sides a length cuts, of instances of this shape."""
    return "columns" if len(shape) == 1 else structure.cut


def as_batch(
    scores: Tensor, structure: Structure, lengths: Tensor | None
) -> tuple[tuple[int, ...], tuple[int, ...], Tensor]:
    """(leading dimensions, shape of one instance, scores as (B, rows, columns))."""
    if isinstance(structure, FromOracle):
        if scores.ndim < 2:
            raise ValueError(
                f"scores of {structure} must have a batch dimension and others after it, "
                f"got shape {tuple(scores.shape)}"
            )
        lead, shape = tuple(scores.shape[:1]), tuple(scores.shape[1:])
        if lengths is not None and len(shape) > 2:
            raise ValueError(
                f"lengths need scores (B, d) or (B, n, m), got shape {tuple(scores.shape)}"
            )
        rows, columns = shape if len(shape) == 2 else (1, torch.Size(shape).numel())
    else:
        rows, columns = instance_shape(structure, scores)
        lead = tuple(scores.shape[: scores.ndim - structure.score_dims])
        shape = tuple(scores.shape[scores.ndim - structure.score_dims :])
    return lead, shape, scores.reshape(torch.Size(lead).numel(), rows, columns)


def _problem(
    structure: Structure,
    sizes: Tensor,
    shape: tuple[int, ...],
    rows: int,
    columns: int,
    tol: float,
    max_iter: int | None,
) -> Any:
    from parsimax.kernels.cpu.structured import Problem

    if max_iter is None:
        max_iter = _limit(rows * columns)
    elif isinstance(max_iter, bool) or not isinstance(max_iter, int) or max_iter < 1:
        raise ValueError(f"max_iter must be an int of at least 1 or None, got {max_iter!r}")
    ask = None
    if isinstance(structure, FromOracle):
        whole = sizes.tolist()

        def ask(item: int, left: Any) -> Any:
            # under vmap there are several batches, one after the other, of the same sizes
            size = tuple(whole[item % len(whole)]) if len(shape) == 2 else (left.size,)
            return structure.variables(left, size if len(shape) < 3 else shape)

    return Problem(structure.kind, structure.options, tol, max_iter, ask)


def _start(
    warm: SparseMAPResult | None, structure: Structure, flat: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Structures and probabilities to begin with; none for a cold start."""
    batch = flat.shape[0]
    if warm is None:
        none = np.empty((batch, 0, 1), np.int32), np.empty((batch, 0))
        return torch.from_numpy(none[0]), torch.from_numpy(none[1])
    if not isinstance(warm, SparseMAPResult):
        raise TypeError(f"warm_start must be a result of sparsemap, got {type(warm).__name__}")
    same = type(warm.structure) is type(structure) and (
        structure.kind == "SEQUENCE" or warm.structure.options == structure.options
    )
    if not same or tuple(warm.marginals.shape) != shape:
        raise ValueError(
            f"warm_start must be a result for {structure} and scores of shape {shape}, "
            f"got one for {warm.structure} and {tuple(warm.marginals.shape)}"
        )
    members = warm.members.detach().cpu().reshape(batch, *warm.members.shape[-2:]).contiguous()
    probabilities = warm.probabilities.detach().reshape(batch, warm.probabilities.shape[-1])
    return members, probabilities.nan_to_num(0.0)


def _warn(gap: Tensor, converged: Tensor, tol: float) -> None:
    if converged.all():
        return
    failed = ~converged & ~gap.isnan()
    count = int(failed.sum())
    if count:
        worst = float(gap[failed].max())
        warnings.warn(
            f"sparsemap did not converge for {count} of {len(gap)} instance(s): the largest gap is "
            f"{worst:.3g}, above tol = {tol:g}; raise max_iter, or tol",
            ConvergenceWarning,
            stacklevel=3,
        )
