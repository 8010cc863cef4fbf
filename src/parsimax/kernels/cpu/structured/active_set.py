r"""The active set: the structures found so far, their probabilities, and steps towards the optimum.

SparseMAP (Niculae, Martins, Blondel & Cardie 2018) is the quadratic program

.. math:: \max_{p \ge 0, \sum p = 1} \ \langle b, p \rangle - \tfrac12 \|A^\top p\|^2,

with one row of A (0 or 1 for every variable) and one total score b_s for every structure s. Only
few structures get probability. With these alone and no signs, the optimum solves a linear system in

.. math:: M = A A^\top + 1 1^\top,

a matrix of small integers: overlaps of structures, plus one. Its Cholesky factor R grows when the
oracle finds a structure and shrinks when a probability falls to zero; R'u = 1 and R'v = b are kept
along, so that one back substitution gives the optimum. The explicit inverse that others update
drifts; this does not, and a structure that is an affine combination of others is recognised by its
pivot. Such a structure may still be better (by its transitions): mass then moves to it without
changing the marginals, until a probability falls to zero and makes room.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parsimax.kernels.cpu.jit import kernel

from .cholesky import backward_solve, delete, factorize, forward_solve

DEPENDENT = 1e-10  # a pivot below this part of the diagonal is rounding error, not a new direction
_NEGLIGIBLE = 1e-9  # coefficients of an affine combination below this are zero
_ROUNDING = 1e-14  # of a sum of scores, relative
PATIENCE = 3  # steps in a row that may bring nothing before the solver gives up
# Within the tolerance, as many steps more as there were, and this many for each slot of a structure
# or for all: nearly always the few that make the solution exact.
_MORE_A_SLOT, _MORE = 16, 64

# ``Active.state``
COUNT, STEPS, STALLS, DONE, VARIABLES, ALIGNED, LIMIT, ENOUGH = range(8)
# ``Active.numbers``
GAP, TARGET, VALUE, BASE, TOLERANCE = range(5)


class Active(NamedTuple):
    """Everything about one instance that is being solved. Row ``rows[s]`` of ``members`` is s's."""

    scores: Any  # float64 (variables,)
    marginals: Any  # float64 (variables,)
    left: Any  # float64 (variables,): scores minus marginals, what the oracle is asked with
    marks: Any  # float64 (variables,): zeros between calls
    members: Any  # int32 (capacity, slots): the variables of a structure, then -1
    rows: Any  # int64 (capacity,): always a permutation
    sizes: Any  # int64 (capacity,): variables of structure s
    p: Any  # float64 (capacity,): probabilities
    b: Any  # float64 (capacity,): total scores, less that of the first structure, which is large
    R: Any  # float64 (capacity, capacity)
    u: Any  # float64 (capacity,)
    v: Any  # float64 (capacity,)
    x: Any  # float64 (capacity,)
    spare: Any  # float64 (capacity,)
    state: Any  # int64
    numbers: Any  # float64


@kernel
def make_active(variables, slots, capacity, aligned):
    """Room for an instance with so many variables, and structures of so many slots."""
    state = np.zeros(8, np.int64)
    state[ALIGNED] = aligned
    return Active(
        np.zeros(variables),
        np.zeros(variables),
        np.zeros(variables),
        np.zeros(variables),
        np.empty((capacity, slots), np.int32),
        np.arange(capacity),
        np.zeros(capacity, np.int64),
        np.zeros(capacity),
        np.zeros(capacity),
        np.empty((capacity, capacity)),
        np.zeros(capacity),
        np.zeros(capacity),
        np.zeros(capacity),
        np.zeros(capacity),
        state,
        np.zeros(5),
    )


@kernel
def reset(active, variables, tolerance, target, limit):
    """Make ready for another instance, of at most as many variables.

    It ends when the gap is at most ``target``, or at most ``tolerance`` and slow to fall, or after
    ``limit`` steps.
    """
    state = active.state
    state[COUNT], state[STEPS], state[STALLS], state[DONE] = 0, 0, 0, 0
    state[VARIABLES], state[LIMIT] = variables, limit
    state[ENOUGH] = 0
    active.numbers[TARGET], active.numbers[GAP] = target, np.inf
    active.numbers[TOLERANCE] = tolerance


@kernel
def _longer(x, size):
    y = np.zeros(size, x.dtype)
    for i in range(x.size):
        y[i] = x[i]
    return y


@kernel
def grown(active):
    """Twice the room for structures."""
    old = active.p.size
    new = 2 * old
    members = np.empty((new, active.members.shape[1]), np.int32)
    R = np.empty((new, new))
    rows = np.arange(new)
    for s in range(old):
        rows[s] = active.rows[s]
        for j in range(members.shape[1]):
            members[s, j] = active.members[s, j]
        for t in range(old):
            R[s, t] = active.R[s, t]
    return Active(
        active.scores,
        active.marginals,
        active.left,
        active.marks,
        members,
        rows,
        _longer(active.sizes, new),
        _longer(active.p, new),
        _longer(active.b, new),
        R,
        _longer(active.u, new),
        _longer(active.v, new),
        _longer(active.x, new),
        _longer(active.spare, new),
        active.state,
        active.numbers,
    )


@kernel
def _same(a, b, size):
    count = np.int32(0)
    for j in range(size):
        count += np.int32(a[j] == b[j])
    return count


@kernel
def _sum_at(values, where, size):
    total = 0.0
    for j in range(size):
        total += values[np.uint32(where[j])]
    return total


@kernel
def _overlaps(active, chosen, size, x):
    """x[s] = 1 + the number of variables that s and ``chosen`` share; the largest of them, too."""
    most = 0.0
    k = active.state[COUNT]
    if active.state[ALIGNED]:
        for s in range(k):
            x[s] = 1.0 + _same(active.members[active.rows[s]], chosen, size)
            most = max(most, x[s] if active.sizes[s] == size else 0.0)
        return most
    for j in range(size):
        active.marks[chosen[j]] = 1.0
    for s in range(k):
        x[s] = 1.0 + _sum_at(active.marks, active.members[active.rows[s]], active.sizes[s])
        most = max(most, x[s] if active.sizes[s] == size else 0.0)
    for j in range(size):
        active.marks[chosen[j]] = 0.0
    return most


@kernel
def _pivot(active, size, b):
    """Solve for the new column from its overlaps in ``x``; its squared pivot, and u and v there."""
    k = active.state[COUNT]
    x, u, v = active.x, active.u, active.v
    forward_solve(active.R, k, x)
    square, last_u, last_v = size + 1.0, 1.0, b
    for s in range(k):
        square -= x[s] * x[s]
        last_u -= x[s] * u[s]
        last_v -= x[s] * v[s]
    return square, last_u, last_v


@kernel
def _drop(active, gone):
    """Take structure ``gone`` out of the active set."""
    k = active.state[COUNT]
    delete(active.R, k, gone, active.u, active.v, active.spare)
    row = active.rows[gone]
    for s in range(gone, k - 1):
        active.p[s] = active.p[s + 1]
        active.b[s] = active.b[s + 1]
        active.sizes[s] = active.sizes[s + 1]
        active.rows[s] = active.rows[s + 1]
    active.rows[k - 1] = row
    active.state[COUNT] = k - 1


@kernel
def _make_room(active):
    """Move mass to a structure that is the affine combination of the others in ``x`` (= R'^-1 m).

    The marginals stay. Drops the structure that runs out first; returns the mass that moved.
    """
    k = active.state[COUNT]
    x, p = active.x, active.p
    backward_solve(active.R, k, x)
    mass, gone = np.inf, -1
    for s in range(k):
        if x[s] > _NEGLIGIBLE:
            ratio = p[s] / x[s]
            if ratio < mass or (ratio == mass and x[s] > x[gone]):
                mass, gone = ratio, s
    for s in range(k):
        p[s] = max(p[s] - mass * x[s], 0.0)
    _drop(active, gone)
    return mass


@kernel
def insert(active, chosen, size, b, mass):
    """Add a structure of total score ``b`` with this much mass; False if nothing new came of it.

    There must be room for one more. A structure that depends on the others takes over their mass
    if it comes with none, and is left out if it has some.
    """
    state = active.state
    if state[COUNT] == 0:
        active.numbers[BASE] = b
    b -= active.numbers[BASE]
    if _overlaps(active, chosen, size, active.x) == size + 1.0:
        return False  # it is there already
    square, last_u, last_v = _pivot(active, size, b)
    if square <= DEPENDENT * (size + 1):
        if mass > 0.0:
            return False
        mass = _make_room(active)
        _overlaps(active, chosen, size, active.x)
        square, last_u, last_v = _pivot(active, size, b)
        if square <= DEPENDENT * (size + 1):
            spread(active)
            return False
    k = state[COUNT]
    root = math.sqrt(square)
    for s in range(k):
        active.R[s, k] = active.x[s]
    active.R[k, k] = root
    active.u[k], active.v[k] = last_u / root, last_v / root
    row = active.members[active.rows[k]]
    for j in range(size):
        row[j] = chosen[j]
    for j in range(size, row.size):
        row[j] = -1
    active.sizes[k], active.b[k] = size, b
    active.p[k] = mass
    state[COUNT] = k + 1
    return True


@kernel
def spread(active):
    """Probabilities that sum to one again."""
    total = 0.0
    k = active.state[COUNT]
    for s in range(k):
        total += active.p[s]
    for s in range(k):
        active.p[s] = active.p[s] / total if total > 0.0 else 1.0 / k


@kernel
def _optimum(active):
    """x: the optimum over the active structures without regard to signs."""
    k = active.state[COUNT]
    x, u, v = active.x, active.u, active.v
    uu, uv = 0.0, 0.0
    for s in range(k):
        uu += u[s] * u[s]
        uv += u[s] * v[s]
    tau = (uv - 1.0) / uu
    for s in range(k):
        x[s] = v[s] - tau * u[s]
    backward_solve(active.R, k, x)


@kernel
def settle(active):
    """Go to the optimum over the active structures, dropping those whose probability falls to 0."""
    p, x = active.p, active.x
    while True:
        _optimum(active)
        k = active.state[COUNT]
        step, gone = 1.0, -1
        for s in range(k):
            if x[s] <= 0.0:
                longest = p[s] / (p[s] - x[s]) if p[s] > x[s] else 0.0
                if longest < step or gone < 0:
                    step, gone = longest, s
        if k == 1:
            p[0] = 1.0
            return
        if gone < 0:
            for s in range(k):
                p[s] = x[s]
            return
        for s in range(k):
            p[s] = max(p[s] + step * (x[s] - p[s]), 0.0)
        _drop(active, gone)


@kernel
def look(active):
    """Marginals of the active structures, and what they leave of the scores; the value there."""
    mu, left = active.marginals, active.left
    k, variables = active.state[COUNT], active.state[VARIABLES]
    for i in range(variables):
        mu[i] = 0.0
    value = active.numbers[BASE]
    for s in range(k):
        share = active.p[s]
        value += share * active.b[s]
        row = active.members[active.rows[s]]
        for j in range(active.sizes[s]):
            mu[np.uint32(row[j])] += share
    for i in range(variables):
        value -= mu[i] * mu[i]
        left[i] = active.scores[i] - mu[i]
    active.numbers[VALUE] = value


@kernel
def _refactorize(active):
    """The factor, and what is kept along with it, from exact overlaps."""
    k = active.state[COUNT]
    for s in range(k):
        _overlaps(active, active.members[active.rows[s]], active.sizes[s], active.spare)
        for t in range(s, k):
            active.R[s, t] = active.spare[t]
        active.u[s], active.v[s] = 1.0, active.b[s]
    # all columns: they were independent when they came
    factorize(active.R, k)
    forward_solve(active.R, k, active.u)
    forward_solve(active.R, k, active.v)


@kernel
def correct(active):
    """Correct the probabilities by what the optimality conditions still miss.

    Without the marginals, all active structures have the same score at the optimum; ``marginals``
    must be those of the probabilities. What is left after this is rounding of the last digits.
    """
    k = active.state[COUNT]
    x, u = active.x, active.u
    low, high, scale = np.inf, -np.inf, 1.0
    for s in range(k):
        row = active.members[active.rows[s]]
        x[s] = active.b[s] - _sum_at(active.marginals, row, active.sizes[s])
        low, high, scale = min(low, x[s]), max(high, x[s]), max(scale, abs(x[s]))
    if not high - low > _ROUNDING * scale:
        return
    for s in range(k):
        x[s] -= high
    forward_solve(active.R, k, x)
    uu, ux = 0.0, 0.0
    for s in range(k):
        uu += u[s] * u[s]
        ux += u[s] * x[s]
    for s in range(k):
        x[s] -= ux / uu * u[s]
    backward_solve(active.R, k, x)
    for s in range(k):
        active.p[s] = max(active.p[s] + x[s], 0.0)
    spread(active)
    look(active)


@kernel
def advance(active, chosen, size, extra):
    """Take what the oracle found at ``left``: add it and move, or see that nothing is better.

    ``extra`` is the part of its score that belongs to no variable. Sets ``state[DONE]`` at the end;
    before that there is a new ``left`` to ask the oracle about. There must be room for one more.
    """
    state, numbers = active.state, active.numbers
    state[STEPS] += 1
    best = extra + _sum_at(active.left, chosen, size)
    numbers[GAP] = max(best - numbers[VALUE], 0.0) if state[COUNT] else np.inf
    if numbers[GAP] <= numbers[TARGET] + _ROUNDING * abs(best):
        state[DONE] = 1
        correct(active)
        return
    if numbers[GAP] <= numbers[TOLERANCE]:
        if state[ENOUGH] == 0:
            state[ENOUGH] = 2 * state[STEPS] + _MORE_A_SLOT * size + _MORE
        elif state[STEPS] > state[ENOUGH]:
            state[DONE] = 1
            return
    if state[STEPS] > state[LIMIT] or state[STALLS] >= PATIENCE:
        state[DONE] = 1  # with a gap that is that of these probabilities
        return
    b = extra + _sum_at(active.scores, chosen, size)
    if insert(active, chosen, size, b, 0.0 if state[COUNT] else 1.0):
        moved = active.p[state[COUNT] - 1] > 0.0
        settle(active)
        look(active)
        if moved or _holds(active, chosen, size):
            state[STALLS] = 0
            return
    # The oracle sees room where the probabilities see none: rounding. Once more from exact
    # overlaps, and if that does not help, this is as far as float64 goes.
    _refactorize(active)
    settle(active)
    look(active)
    correct(active)
    state[STALLS] += 1


@kernel
def rescale(active, factor, target):
    """Go on with all scores times ``factor``, a power of two, from the same structures."""
    state = active.state
    for i in range(state[VARIABLES]):
        active.scores[i] *= factor
    for s in range(state[COUNT]):
        active.b[s] *= factor
        active.v[s] *= factor
    active.numbers[BASE] *= factor
    active.numbers[TARGET] = target
    state[DONE], state[STALLS] = 0, 0
    if state[COUNT] > 0:
        settle(active)
        look(active)


@kernel
def _holds(active, chosen, size):
    """Whether the structure that came last is still there; it is the last one, if it is."""
    row = active.members[active.rows[active.state[COUNT] - 1]]
    return active.sizes[active.state[COUNT] - 1] == size and _same(row, chosen, size) == size
