"""MAP of trees and monotone alignments against all of them, one by one."""

from functools import cache

import numpy as np
import pytest
from tests.oracles.trees import monotone_alignments, trees

from parsimax.kernels.cpu.structured.oracles import (
    ARBORESCENCE,
    MONOTONE_ALIGNMENT,
    PROJECTIVE_TREE,
    map_oracle,
    slots,
    workspace,
)

TREES = {  # kind, single root, projective
    "arborescence": (ARBORESCENCE, True, False),
    "arborescence, any roots": (ARBORESCENCE, False, False),
    "projective": (PROJECTIVE_TREE, True, True),
    "projective, any roots": (PROJECTIVE_TREE, False, True),
}
SHAPES = [(1, 1), (1, 4), (4, 1), (3, 3), (5, 3), (3, 5), (2, 6)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


every_tree = pytest.mark.parametrize("name", TREES)
all_trees = cache(trees)


def best_of(structures, scores):
    """Largest score among all structures; a structure with a forbidden part scores -inf."""
    finite = np.where(np.isinf(scores), 0.0, scores)
    banned = (structures * np.isinf(scores)).any(axis=(1, 2))
    values = np.tensordot(structures, finite, 2)
    return np.where(banned, -np.inf, values)


def call(kind, scores, single_root=True):
    """Work space and output are poisoned: the oracle must not read what it did not write."""
    dims = (*scores.shape, int(single_root))
    floats, integers = workspace(kind, dims)
    dims = np.array(dims)
    chosen = np.full(slots(kind, dims), 99, np.int32)
    room = np.full(floats, np.nan), np.full(integers, 1 << 40)
    flat = np.ascontiguousarray(scores).ravel()
    return map_oracle(kind, flat, np.empty(0), dims, chosen, *room), chosen


def as_matrix(chosen, shape):
    out = np.zeros(shape)
    out.ravel()[chosen] = 1.0
    return out


def check(kind, structures, scores, single_root=True):
    """The oracle's structure is one of them, and none is better."""
    extra, chosen = call(kind, scores, single_root)
    values = best_of(structures, scores)
    if values.max() == -np.inf:
        assert extra == -np.inf
        assert (chosen == -1).all()
        return
    assert extra == 0.0
    assert len(set(chosen.tolist())) == scores.shape[1]
    found = as_matrix(chosen, scores.shape)
    which = np.flatnonzero((structures == found).all(axis=(1, 2)))
    assert which.size == 1, "not a structure of this kind"
    # sums of up to five numbers, in another order
    assert values[which[0]] >= values.max() - 1e-12 * max(1.0, np.abs(values.max()))


def random_scores(rng, shape, how):
    if how == "normal":
        return rng.standard_normal(shape)
    if how == "ties":
        return rng.integers(-1, 2, shape).astype(float)
    if how == "integers":
        return rng.integers(-1000, 1000, shape).astype(float)
    if how == "equal":
        return np.full(shape, 3.0)
    scores = rng.standard_normal(shape)  # with forbidden parts
    scores[rng.random(shape) < rng.choice([0.2, 0.5, 0.7])] = -np.inf
    return scores


HOW = ["normal", "ties", "integers", "equal", "forbidden"]


@every_tree
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_best_tree(name, how, n, rng):
    kind, single_root, projective = TREES[name]
    structures = all_trees(n, single_root, projective)
    for _ in range(1 if how == "equal" else 60):
        check(kind, structures, random_scores(rng, (n, n), how), single_root)


def test_numbers_of_trees_are_those_of_the_literature():
    """n^(n-1) rooted trees on n labels, (n+1)^(n-1) forests: the enumeration is complete."""
    for n in range(1, 6):
        assert len(all_trees(n, True, False)) == n ** (n - 1)
        assert len(all_trees(n, False, False)) == (n + 1) ** (n - 1)
    # sequences A006013 and A001764: projective trees with one root and with any number
    assert [len(all_trees(n, True, True)) for n in range(1, 6)] == [1, 2, 7, 30, 143]
    assert [len(all_trees(n, False, True)) for n in range(1, 6)] == [1, 3, 12, 55, 273]


@every_tree
def test_large_scores_keep_their_small_differences(name, rng):
    """One root by a large penalty would round these differences away."""
    kind, single_root, projective = TREES[name]
    structures = all_trees(5, single_root, projective)
    for _ in range(40):
        small = rng.integers(-50, 50, (5, 5)) * 2.0**-20
        scores = small + rng.integers(0, 2, (5, 5)) * 2.0**30
        _, chosen = call(kind, scores, single_root)  # all sums are exact in float64
        found = as_matrix(chosen, (5, 5))
        assert (found * scores).sum() == best_of(structures, scores).max()


@pytest.mark.parametrize("n", [6, 20, 60])
@pytest.mark.parametrize("how", ["normal", "ties", "forbidden"])
def test_single_root_is_the_best_over_forced_roots(n, how, rng):
    """Trees too large to enumerate: force each root in turn, and let the other algorithm choose."""
    for _ in range(3):
        scores = random_scores(rng, (n, n), how)
        best = -np.inf
        for root in range(n):
            forced = scores.copy()
            np.fill_diagonal(forced, -np.inf)
            forced[root, root] = scores[root, root]
            extra, chosen = call(ARBORESCENCE, forced, single_root=False)
            if extra == 0.0:
                best = max(best, forced.ravel()[chosen].sum())
        extra, chosen = call(ARBORESCENCE, scores)
        if best == -np.inf:
            assert extra == -np.inf
        else:
            assert scores.ravel()[chosen].sum() == pytest.approx(best, abs=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("how", HOW)
def test_best_monotone_alignment(shape, how, rng):
    structures = monotone_alignments(*shape)
    for _ in range(1 if how == "equal" else 60):
        check(MONOTONE_ALIGNMENT, structures, random_scores(rng, shape, how))


@every_tree
def test_ties_are_broken_the_same_way_whatever_was_computed_before(name, rng):
    kind, single_root, _ = TREES[name]
    scores = random_scores(rng, (12, 12), "ties")
    _, first = call(kind, scores, single_root)
    call(kind, random_scores(rng, (30, 30), "normal"), single_root)
    assert (call(kind, scores, single_root)[1] == first).all()
