"""Solve a range of instances: cut to size, forbid, start, ask the oracle until all is found."""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

from .active_set import (
    COUNT,
    DONE,
    ENOUGH,
    GAP,
    LIMIT,
    STEPS,
    advance,
    grown,
    insert,
    look,
    make_active,
    rescale,
    reset,
    settle,
    spread,
)
from .oracles import PYTHON, SEQUENCE, extra_score, map_oracle, slots
from .transport import couple_all, project_row, take_path

SOLVED, EMPTY, INFEASIBLE, UNDEFINED = range(4)  # what became of an instance

# Of the tolerance. A gap of g leaves an error of up to sqrt(2 g) in the marginals; the last few
# structures, which cost a few per cent more time, make the solution exact up to rounding.
STRICTER = 1e-6


# Where scores are weak beside the penalty, marginals are all but uniform, and which structures make
# them up is a linear program in the transitions, whose steps are as small as the scores. So weak
# scores are first solved as if they were strong, then weaker and weaker: each stage starts near its
# end.
_WEAK = 16.0  # this much below one, and more
_LARGEST = 2.0**60
_STAGE = 0.125  # from one stage to the next
_STAGE_TARGET = 1e-6  # the gap of a stage, but of the last
# Transitions in a range below this are weak beside the penalty; see .transport
_WEAK_TRANSITIONS = 0.1


@kernel
def _cut(scores, rows, columns, out):
    """Copy the upper left corner; (lowest finite, highest, forbidden ones, whether defined)."""
    low, high = np.inf, -np.inf
    forbidden, defined = 0, True
    for i in range(rows):
        for j in range(columns):
            z = scores[i, j]
            out[i * columns + j] = z
            if z == -np.inf:
                forbidden += 1
            elif z < np.inf:
                low = z if z < low else low
                high = z if z > high else high
            else:
                defined = False
    return low, high, forbidden, defined


@kernel
def _look_over(extra):
    """(lowest finite, highest, forbidden ones, whether defined) of other scores."""
    low, high = 0.0, 0.0
    forbidden, defined = 0, True
    for z in extra:
        if z == -np.inf:
            forbidden += 1
        elif z < np.inf:
            low = z if z < low else low
            high = z if z > high else high
        else:
            defined = False
    return low, high, forbidden, defined


@kernel
def prepare(kind, scores, extra, dims, out):
    """Write the scores of one instance, all finite and at most 0, to ``out``.

    Returns (what became of it, other scores, the least total score of an allowed structure, a
    power of two that takes the scores to the order of one, and the range of other scores
    that are allowed). What is forbidden gets a score that
    nothing can outweigh. A shift of all scores changes no marginals where all structures have
    equally many variables; without it, large scores would lose digits.
    """
    rows, columns = dims[0], dims[1]
    variables = rows * columns
    low, high, forbidden, defined = _cut(scores, rows, columns, out)
    steps, reached = 0, 0
    other_low, other_high, other_forbidden, other_defined = 0.0, 0.0, 0, True
    if extra.size > 0:
        steps = dims[0] - 1
        # of those that this instance is long enough for
        reached = min(extra.size, steps * columns * columns)
        other_low, other_high, other_forbidden, other_defined = _look_over(extra[:reached])
    if variables == 0 or (defined and forbidden == variables):
        return EMPTY, extra, 0.0, 1.0, 0.0
    if not (defined and other_defined):
        return UNDEFINED, extra, 0.0, 1.0, 0.0
    shift = high
    if kind == PYTHON:  # structures of any size
        low, high, shift = min(low, 0.0), max(high, 0.0), 0.0
    taken = slots(kind, dims)
    least = taken * (low - shift) + steps * other_low
    # more than any two structures can differ by, also when marginals are taken off
    penalty = (taken + 1) * (high - low + 2.0) + (steps + 1) * (other_high - other_low) + 1.0
    for i in range(variables):
        z = out[i]
        out[i] = z - shift if z > -np.inf else low - shift - penalty
    if other_forbidden:
        extra = extra.copy()
        for i in range(reached):
            if extra[i] == -np.inf:
                extra[i] = other_low - penalty
    spread, scale = max(high - low, other_high - other_low), 1.0
    while spread > 0.0 and spread * scale < 1.0 and scale < _LARGEST:
        scale *= 2.0
    return SOLVED, extra, least, scale, other_high - other_low


@kernel
def warm(active, kind, extra, dims, stride, members, probabilities, least, chosen):
    """Begin with structures known from before, if they are allowed and independent."""
    for s in range(probabilities.size):
        if not probabilities[s] > 0.0:
            continue
        if active.state[COUNT] == active.p.size:
            active = grown(active)
        size, b, fits = 0, 0.0, True
        for m in members[s]:
            if m >= 0:
                fits = fits and m // stride < dims[0] and m % stride < dims[1]
                if fits:
                    chosen[size] = m // stride * dims[1] + m % stride
                    b += active.scores[chosen[size]]
                    size += 1
        # an instance may have had another length before
        if fits and (kind == PYTHON or size == slots(kind, dims)):
            b += extra_score(kind, extra, dims, chosen)
            if b >= least - 1.0:
                insert(active, chosen, size, b, probabilities[s])
    if active.state[COUNT] > 0:
        spread(active)
        settle(active)
    return active


@kernel
def start_sequences(active, extra, dims, least, chosen):
    """Begin with the best sequences for the marginals that there are without transitions."""
    n, k = dims[0], dims[1]
    marginals, flows = np.empty((n, k)), np.empty((n - 1, k, k))
    for i in range(n):
        z = active.scores[i * k : (i + 1) * k]
        if z.max() < least - 1.0:
            return active  # a position without a label: the oracle will find that nothing is whole
        project_row(z, marginals[i])
    couple_all(extra, dims, marginals, flows)
    first = marginals[0]
    while True:
        mass = take_path(first, flows, chosen)
        if not mass > 0.0:
            break
        if active.state[COUNT] == active.p.size:
            active = grown(active)
        b = extra_score(SEQUENCE, extra, dims, chosen)
        for i in range(n):
            b += active.scores[chosen[i]]
        if b >= least - 1.0:  # the marginals may force some mass through what is forbidden
            insert(active, chosen, n, b, mass)
    if active.state[COUNT] > 0:
        spread(active)
        settle(active)
    return active


@kernel
def _total(scores, chosen, size):
    total = 0.0
    for j in range(size):
        total += scores[chosen[j]]
    return total


@kernel
def write_marginals(marginals, values, dims, outcome):
    """Back to the full size; NaN where the scores were not numbers, 0 where nothing is allowed."""
    for i in range(marginals.shape[0]):
        for j in range(marginals.shape[1]):
            inside = i < dims[0] and j < dims[1]
            if outcome == SOLVED:
                marginals[i, j] = values[i * dims[1] + j] if inside else 0.0
            else:
                marginals[i, j] = np.nan if outcome == UNDEFINED and inside else 0.0


@kernel
def collect(active, dims, stride, members, probabilities, at):
    """Write structures with probability, most likely first, from row ``at`` on; their number.

    Probabilities are used up by it.
    """
    k, left = active.state[COUNT], active.p
    written = 0
    while True:
        s = 0
        for t in range(1, k):
            s = t if left[t] > left[s] else s
        if not left[s] > 0.0:
            return written
        probabilities[at + written] = left[s]
        left[s] = 0.0
        row, out = active.members[active.rows[s]], members[at + written]
        for j in range(active.sizes[s]):
            out[j] = row[j] // dims[1] * stride + row[j] % dims[1]
        for j in range(active.sizes[s], out.size):
            out[j] = -1
        written += 1


@kernel
def _doubled(members, probabilities):
    longer = np.empty((2 * members.shape[0], members.shape[1]), np.int32)
    more = np.empty(2 * probabilities.size)
    for s in range(probabilities.size):
        more[s] = probabilities[s]
        for j in range(members.shape[1]):
            longer[s, j] = members[s, j]
    return longer, more


@kernel
def solve_range(
    start,
    stop,
    kind,
    aligned,
    scores,
    extra,
    sizes,
    options,
    room,
    tol,
    max_steps,
    warm_members,
    warm_probabilities,
    marginals,
    gaps,
    steps,
    outcomes,
    counts,
):
    """Solve instances ``start`` to ``stop``; (members, probabilities) of all, one after the other.

    ``scores`` and ``marginals`` are (B, N, M), ``extra`` (B or 1, any), ``sizes`` (B, 2) the part
    of each instance that counts. ``room`` is (floats, integers, slots) of the largest instance, and
    how many structures to expect. Members are indices into N * M, padded by -1.
    """
    stride, width, expected = scores.shape[2], room[2], room[3]
    dims = np.empty(2 + options.size, np.int64)
    for i in range(options.size):
        dims[2 + i] = options[i]
    floats, integers = np.zeros(room[0]), np.zeros(room[1], np.int64)
    active = make_active(scores.shape[1] * stride, width, expected, aligned)
    chosen = np.empty(width, np.int32)
    members = np.empty((expected * (stop - start), width), np.int32)
    probabilities = np.empty(expected * (stop - start))
    filled = 0
    for item in range(start, stop):
        dims[0], dims[1] = sizes[item, 0], sizes[item, 1]
        reset(active, dims[0] * dims[1], tol, STRICTER * tol, max_steps)
        others = extra[item if extra.shape[0] > 1 else 0]
        outcome, others, least, stronger, other_range = prepare(
            kind, scores[item], others, dims, active.scores
        )
        cold = warm_probabilities.shape[1] == 0
        coupled = cold and kind == SEQUENCE and others.size > 0 and dims[0] > 1
        coupled = coupled and other_range < _WEAK_TRANSITIONS
        if others.size == 0 or not cold or coupled or stronger < _WEAK:
            stronger = 1.0
        if outcome == SOLVED:
            if stronger > 1.0:
                others = others * stronger
                rescale(active, stronger, _STAGE_TARGET)
                active.state[LIMIT] = max_steps // 2
            floats[:] = 0.0
            integers[:] = 0
            if coupled:
                active = start_sequences(active, others, dims, least, chosen)
            if not cold:
                active = warm(
                    active,
                    kind,
                    others,
                    dims,
                    stride,
                    warm_members[item],
                    warm_probabilities[item],
                    least,
                    chosen,
                )
            look(active)
            size = slots(kind, dims)
            while not active.state[DONE]:
                if active.state[COUNT] == active.p.size:
                    active = grown(active)
                score = map_oracle(kind, active.left, others, dims, chosen, floats, integers)
                if active.state[COUNT] == 0 and (
                    _total(active.scores, chosen, size) + score < stronger * (least - 1.0)
                ):
                    outcome = INFEASIBLE
                    break
                advance(active, chosen, size, score)
                if active.state[DONE] and stronger > 1.0:
                    factor = max(_STAGE, 1.0 / stronger)
                    if active.state[STEPS] > active.state[LIMIT]:  # the rest is for the real scores
                        factor = 1.0 / stronger
                    stronger *= factor
                    others *= factor
                    target = STRICTER * tol if stronger == 1.0 else _STAGE_TARGET
                    rescale(active, factor, target)
                    if stronger == 1.0:
                        active.state[LIMIT] = max_steps
                        active.state[ENOUGH] = 0
        outcomes[item], steps[item], counts[item] = outcome, active.state[STEPS], 0
        gaps[item] = active.numbers[GAP] if outcome == SOLVED else 0.0
        write_marginals(marginals[item], active.marginals, dims, outcome)
        if outcome == SOLVED:
            while filled + active.state[COUNT] > probabilities.size:
                members, probabilities = _doubled(members, probabilities)
            counts[item] = collect(active, dims, stride, members, probabilities, filled)
            filled += counts[item]
    return members[:filled], probabilities[:filled]
