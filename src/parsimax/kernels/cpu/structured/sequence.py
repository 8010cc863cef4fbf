"""Viterbi: the best labelling of a sequence."""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel


def workspace(dims):
    """Floats and integers that the oracle wants; the best scores of all prefixes."""
    return dims[0] * dims[1], 0


@kernel
def oracle(scores, extra, dims, chosen, floats, integers):
    """Labels y maximising sum_i scores[i, y_i] + sum_i extra[i, y_i, y_{i+1}].

    ``dims`` is (n, k, steps): ``extra`` holds ``steps`` matrices (k, k), one a step, or one that
    serves all steps, or none. ``chosen[i]`` is ``i * k + y_i``. Ties go to the lowest label.
    """
    n, k, steps = dims[0], dims[1], dims[2]
    if steps == 0:
        for i in range(n):
            best = 0
            for label in range(1, k):
                if scores[i * k + label] > scores[i * k + best]:
                    best = label
            chosen[i] = i * k + best
        return 0.0
    _forward(scores, extra, n, k, steps, floats)
    return _backtrack(extra, n, k, steps, floats, chosen)


@kernel
def _forward(scores, extra, n, k, steps, best):
    """best[i, b]: the score of the best labels of positions up to i that end in b."""
    for b in range(k):
        best[b] = scores[b]
    for i in range(1, n):
        before = best[(i - 1) * k : i * k]
        here = best[i * k : (i + 1) * k]
        first = (i - 1 if steps > 1 else 0) * k * k
        row = extra[first : first + k]
        for b in range(k):
            here[b] = before[0] + row[b]
        for a in range(1, k):
            row = extra[first + a * k : first + (a + 1) * k]
            so_far = before[a]
            for b in range(k):  # contiguous in b: this loop vectorises
                value = so_far + row[b]
                here[b] = value if value > here[b] else here[b]
        for b in range(k):
            here[b] += scores[i * k + b]


@kernel
def _backtrack(extra, n, k, steps, best, chosen):
    """Only the labels on the best path are asked where they come from."""
    label = 0
    last = (n - 1) * k
    for b in range(1, k):
        if best[last + b] > best[last + label]:
            label = b
    chosen[n - 1] = last + label
    total = 0.0
    for i in range(n - 2, -1, -1):
        first = (i if steps > 1 else 0) * k * k
        origin, top = 0, -np.inf
        for a in range(k):
            value = best[i * k + a] + extra[first + a * k + label]
            if value > top:
                origin, top = a, value
        total += extra[first + origin * k + label]
        label = origin
        chosen[i] = i * k + label
    return total


@kernel
def extra_score(extra, dims, chosen):
    """The transitions of given labels."""
    n, k, steps = dims[0], dims[1], dims[2]
    total = 0.0
    for i in range(n - 1 if steps > 0 else 0):
        first = (i if steps > 1 else 0) * k * k
        total += extra[first + chosen[i] % k * k + chosen[i + 1] % k]
    return total
