"""SparseMAP in numba: MAP oracles, the active-set solver, and its derivative.

Functions on tensors of a batch: scores are (B, N, M) in float64 on the CPU, and ``sizes`` (B, 2)
says which upper left corner of each instance counts. Instances are spread over threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parsimax.kernels.cpu.pool import for_items

from . import oracles
from .python_oracle import Oracle, solve_with
from .sensitivity import sensitivity_range
from .solve import EMPTY, INFEASIBLE, SOLVED, UNDEFINED, solve_range

__all__ = [
    "EMPTY",
    "INFEASIBLE",
    "SOLVED",
    "UNDEFINED",
    "Oracle",
    "Problem",
    "Solution",
    "apply_sensitivity",
    "solve",
]

_NANOSECONDS = 30  # of a solution, for each of its variables and slots, roughly


@dataclass(frozen=True)
class Problem:
    """What is solved, and how far: the name of an oracle, its options, tolerance and limit."""

    kind: str
    options: tuple[int, ...]
    tol: float
    max_steps: int
    oracle: Oracle | None = None

    @property
    def number(self) -> int:
        """The oracle's number."""
        number: int = getattr(oracles, self.kind)
        return number


class Solution(NamedTuple):
    """Of a batch. K is the largest number of structures; what is missing is -1, or 0."""

    marginals: Tensor  # float64 (B, N, M)
    probabilities: Tensor  # float64 (B, K), descending
    members: Tensor  # int32 (B, K, slots): indices into N * M
    counts: Tensor  # int64 (B,): structures with probability
    gap: Tensor  # float64 (B,)
    steps: Tensor  # int64 (B,): calls of the oracle
    outcomes: Tensor  # int64 (B,): SOLVED, EMPTY, INFEASIBLE or UNDEFINED


def solve(
    problem: Problem,
    scores: Tensor,
    extra: Tensor,
    sizes: Tensor,
    warm_members: Tensor,
    warm_probabilities: Tensor,
) -> Solution:
    """Solve every instance. ``extra`` is (B or 1, any); a cold start has K = 0 warm structures."""
    batch, rows, columns = scores.shape
    kind = problem.number
    marginals, gap = np.empty((batch, rows, columns)), np.empty(batch)
    steps, outcomes, counts = (np.empty(batch, np.int64) for _ in range(3))
    results = (marginals, gap, steps, outcomes, counts)
    inputs = (scores.numpy(), sizes.numpy())
    options, room = _room(kind, rows, columns, problem.options)
    warm = (warm_members.numpy(), warm_probabilities.numpy())
    if problem.oracle is not None:
        parts = [
            solve_with(problem.oracle, *inputs, problem.tol, problem.max_steps, *warm, *results)
        ]
    else:
        parts = for_items(
            solve_range,
            batch,
            _NANOSECONDS * rows * columns * int(room[2]),
            kind,
            oracles.aligned(kind),
            inputs[0],
            extra.numpy(),
            inputs[1],
            options,
            room,
            problem.tol,
            problem.max_steps,
            *warm,
            *results,
        )
    arrays = (marginals, *_pad(parts, counts), counts, gap, steps, outcomes)
    return Solution(*(torch.from_numpy(x) for x in arrays))


@lru_cache(maxsize=256)
def _room(
    kind: int, rows: int, columns: int, options: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(options, room): what ``solve_range`` asks for by these names."""
    dims = (rows, columns, *options)
    width = max(int(oracles.slots(kind, np.array(dims))), 1)
    room = np.array([*oracles.workspace(kind, dims), width, 2 * width + 16])
    return np.array(options, np.int64), room


def _pad(
    parts: list[tuple[np.ndarray, np.ndarray]], counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Structures of all instances, one after the other, as (B, K) and (B, K, slots)."""
    if len(counts) == 1:
        members, probabilities = parts[0]
        return probabilities[None], members[None]
    most = int(counts.max()) if len(counts) else 0
    there = np.arange(most) < counts[:, None]
    width = parts[0][0].shape[1] if parts else 1
    members = np.full((len(counts), most, width), -1, np.int32)
    probabilities = np.zeros((len(counts), most))
    if parts:
        members[there] = np.concatenate([part[0] for part in parts])
        probabilities[there] = np.concatenate([part[1] for part in parts])
    return probabilities, members


def apply_sensitivity(
    problem: Problem,
    members: Tensor,
    counts: Tensor,
    labels: int,
    inputs: tuple[Tensor, Tensor, Tensor],
    columns: tuple[int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative at a solution, applied to (units, edges, structures); see .sensitivity.

    Inputs are float64 (B, any), with zero columns where there is none; ``columns`` says how many
    the results have, zero where they are not wanted.
    """
    batch = len(members)
    aligned = oracles.aligned(problem.number)
    outputs = tuple(np.empty((batch, width)) for width in columns)
    steps = problem.options[0] if problem.options and labels else 0
    for_items(
        sensitivity_range,
        batch,
        members.shape[1] * (members.shape[1] + members.shape[2]),
        aligned,
        labels,
        steps,
        counts.numpy(),
        members.numpy(),
        *(x.numpy() for x in inputs),
        *outputs,
    )
    units, edges, structures = (torch.from_numpy(x) for x in outputs)
    return units, edges, structures
