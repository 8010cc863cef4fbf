"""The same solver around an oracle in Python, one instance at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .active_set import COUNT, DONE, GAP, STEPS, advance, grown, look, make_active, reset
from .oracles import PYTHON
from .solve import INFEASIBLE, SOLVED, STRICTER, collect, prepare, warm, write_marginals

Oracle = Callable[[int, Any], Any]  # (instance, its scores (n, m)) -> variables, ascending int32

_EXPECTED = 32  # structures to begin with


def solve_with(
    oracle: Oracle,
    scores: Any,
    sizes: Any,
    tol: float,
    max_steps: int,
    warm_members: Any,
    warm_probabilities: Any,
    marginals: Any,
    gaps: Any,
    steps: Any,
    outcomes: Any,
    counts: Any,
) -> tuple[Any, Any]:
    """As ``solve_range``, for all instances."""
    stride, none = scores.shape[2], np.empty(0)
    width = scores.shape[1] * stride
    chosen = np.empty(width, np.int32)
    all_members, all_probabilities = [], []
    for item in range(len(scores)):
        dims = sizes[item].copy()
        active = make_active(width, width, _EXPECTED, False)
        reset(active, dims[0] * dims[1], tol, STRICTER * tol, max_steps)
        outcome, _, least, _, _ = prepare(PYTHON, scores[item], none, dims, active.scores)
        if outcome == SOLVED:
            if warm_probabilities.shape[1] > 0:
                active = warm(
                    active,
                    PYTHON,
                    none,
                    dims,
                    stride,
                    warm_members[item],
                    warm_probabilities[item],
                    least,
                    chosen,
                )
            look(active)
            while not active.state[DONE]:
                if active.state[COUNT] == active.p.size:
                    active = grown(active)
                left = active.left[: dims[0] * dims[1]]
                found = oracle(item, left.reshape(dims[0], dims[1]).copy())
                if active.state[COUNT] == 0 and active.scores[found].sum() < least - 1.0:
                    outcome = INFEASIBLE
                    break
                chosen[: len(found)] = found
                advance(active, chosen, len(found), 0.0)
        outcomes[item], steps[item], counts[item] = outcome, active.state[STEPS], 0
        gaps[item] = active.numbers[GAP] if outcome == SOLVED else 0.0
        write_marginals(marginals[item], active.marginals, dims, outcome)
        if outcome == SOLVED:
            members = np.empty((active.state[COUNT], width), np.int32)
            probabilities = np.empty(active.state[COUNT])
            counts[item] = collect(active, dims, stride, members, probabilities, 0)
            all_members.append(members[: counts[item]])
            all_probabilities.append(probabilities[: counts[item]])
    if not all_members:
        return np.empty((0, width), np.int32), np.empty(0)
    return np.concatenate(all_members), np.concatenate(all_probabilities)
