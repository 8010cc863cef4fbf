"""One call for every MAP oracle, so that one solver is compiled and cached for all of them.

The contract of an oracle
-------------------------
A structure is a set of active variables: indices into the flattened scores of one instance. Its
score is the sum of their scores, plus a number of its own that belongs to no variable, such as the
transitions of a sequence. An oracle is a compiled function::

    oracle(scores, extra, dims, chosen, floats, integers) -> float

    scores    float64[:]  scores of the variables, flattened row by row; all finite: what is
                          forbidden has a score so low that every allowed structure is better
    extra     float64[:]  other scores, flattened, maybe of size 0; finite likewise
    dims      int64[:]    (rows, columns, *options): the size of this instance, then whatever the
                          structure needs to say (a flag, a budget)
    chosen    int32[:]    output: the variables of the best structure, ``slots(kind, dims)`` of them
    floats    float64[:]  } room to work in, of the sizes that ``workspace`` says. Zeros in the
    integers  int64[:]    } first call of an instance, afterwards as the oracle left it: it may
                            keep something to start from, but its result must not depend on that.

It returns the score that belongs to no variable (0.0 if there is none). Ties are broken in a way
that depends on nothing but the arguments. It allocates nothing, and imports nothing of ours but
``jit``.

Where the variables fall into groups of which every structure takes exactly one (a sequence: one
label a position; a tree: one head a word), ``chosen[j]`` is the choice of group j, and the kind is
listed in ``_ALIGNED``: overlaps of two structures are then counted by comparing them slot by slot.

A new oracle is a file beside this one with ``oracle`` and ``workspace(dims)``, a number below, and
a branch in each of ``map_oracle``, ``workspace`` and ``slots``, and in ``extra_score`` where there
is one.
"""

from __future__ import annotations

import numpy as np

from parsimax.kernels.cpu.jit import kernel

from . import arborescence, budget, matching, monotone, projective, sequence

SEQUENCE = 0
MATCHING = 1
BUDGET = 2
ARBORESCENCE = 3
PROJECTIVE_TREE = 4
MONOTONE_ALIGNMENT = 5
PYTHON = 6  # asked by the caller, between two steps of the solver

_ALIGNED = (SEQUENCE, MATCHING, ARBORESCENCE, PROJECTIVE_TREE, MONOTONE_ALIGNMENT)


def aligned(kind: int) -> bool:
    """Whether slot j of two structures is equal or belongs to disjoint choices."""
    return kind in _ALIGNED


@kernel
def map_oracle(kind, scores, extra, dims, chosen, floats, integers):
    """The best structure of a kind; see the contract above."""
    if kind == SEQUENCE:
        return sequence.oracle(scores, extra, dims, chosen, floats, integers)
    if kind == MATCHING:
        return matching.oracle(scores, extra, dims, chosen, floats, integers)
    if kind == BUDGET:
        return budget.oracle(scores, extra, dims, chosen, floats, integers)
    if kind == ARBORESCENCE:
        return arborescence.oracle(scores, extra, dims, chosen, floats, integers)
    if kind == PROJECTIVE_TREE:
        return projective.oracle(scores, extra, dims, chosen, floats, integers)
    if kind == MONOTONE_ALIGNMENT:
        return monotone.oracle(scores, extra, dims, chosen, floats, integers)
    return np.nan


@kernel
def extra_score(kind, extra, dims, chosen):
    """The score of a given structure that belongs to no variable."""
    if kind == SEQUENCE:
        return sequence.extra_score(extra, dims, chosen)
    return 0.0


_WORKSPACE = {
    SEQUENCE: sequence.workspace,
    MATCHING: matching.workspace,
    BUDGET: budget.workspace,
    ARBORESCENCE: arborescence.workspace,
    PROJECTIVE_TREE: projective.workspace,
    MONOTONE_ALIGNMENT: monotone.workspace,
}


def workspace(kind: int, dims: tuple[int, ...]) -> tuple[int, int]:
    """How many floats and integers an oracle wants to work in."""
    if kind == PYTHON:
        return 0, 0
    floats, integers = _WORKSPACE[kind](dims)
    return int(floats), int(integers)


@kernel
def slots(kind, dims):
    """How many variables a structure of this size has."""
    if kind == MATCHING:
        return min(dims[0], dims[1])
    if kind == BUDGET:
        return dims[2]
    if kind == PYTHON:
        return dims[0] * dims[1]  # at most
    if kind == MONOTONE_ALIGNMENT:
        return dims[1]
    return dims[0]
