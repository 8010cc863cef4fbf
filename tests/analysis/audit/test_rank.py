"""τ-b against scipy, its ceiling against every permutation, overlap against every tie-break."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from parsimax.analysis.audit import kendall_tau, sparsity_ceiling, top_k_overlap


def vectors(seed, lengths, ties):
    rng = np.random.default_rng(seed)
    made = []
    for n in lengths:
        values = rng.integers(0, 4, n) if ties else rng.normal(size=n)
        made.append(torch.from_numpy(values.astype(float)))
    return made


@pytest.mark.parametrize("memory", [2**29, 1000])
@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, False)])
def test_tau_is_scipys(first, second, memory):
    lengths = [2, 3, 5, 5, 8, 19, 19, 60, 500]
    x, y = vectors(0, lengths, first), vectors(1, lengths, second)
    ours = kendall_tau(x, y, memory=memory)
    for i, (u, v) in enumerate(zip(x, y, strict=True)):
        if u.unique().numel() < 2 or v.unique().numel() < 2:
            assert ours.tau[i].isnan()
            continue
        # for two tokens scipy's approximation divides by zero
        way = "asymptotic" if len(u) > 2 else "exact"
        theirs = kendalltau(u.numpy(), v.numpy(), method=way)
        assert ours.tau[i].item() == pytest.approx(theirs.statistic, abs=1e-12)
        if len(u) > 2:
            assert ours.p_value[i].item() == pytest.approx(theirs.pvalue, abs=1e-12)
        assert not ours.reason[i]


def test_sparse_long_text():
    """500 tokens of which 5 have weight: the case that made the ceiling necessary."""
    rng = np.random.default_rng(0)
    importance = rng.random(500)
    weights = np.zeros(500)
    first = importance.argsort()[-5:]
    weights[first] = importance[first]
    ours = kendall_tau([torch.from_numpy(weights)], [torch.from_numpy(importance)])
    assert ours.tau.item() == pytest.approx(kendalltau(weights, importance).statistic, abs=1e-12)
    assert ours.ceiling.item() == pytest.approx(sparsity_ceiling(500, 495), abs=1e-12)
    assert ours.tau.item() == pytest.approx(ours.ceiling.item(), abs=1e-12)
    assert ours.tau.item() < 0.15


small = st.lists(st.integers(0, 3), min_size=5, max_size=5)


@given(small, small)
def test_ceiling_is_the_best_of_all_orders(u, v):
    ours = kendall_tau([torch.tensor(u)], [torch.tensor(v)])
    if len(set(u)) < 2 or len(set(v)) < 2:
        assert ours.reason[0].endswith("is constant")
        return
    orders = set(itertools.permutations(v))
    best = max(kendalltau(u, order).statistic for order in orders)
    assert ours.ceiling.item() == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("zeros", range(6))
def test_formula_of_the_ceiling(zeros):
    """√(1 − m(m−1)/(n(n−1))) against every order of importances without ties."""
    weights = [0.0] * zeros + [0.1 * k for k in range(1, 7 - zeros)]
    best = max(kendalltau(weights, order).statistic for order in itertools.permutations(range(6)))
    assert sparsity_ceiling(6, zeros) == pytest.approx(best, abs=1e-12)
    ours = kendall_tau([torch.tensor(weights)], [torch.arange(6.0)])
    assert ours.ceiling.item() == pytest.approx(best, abs=1e-12)


def test_undefined_cases_have_reasons():
    good = torch.tensor([1.0, 2.0, 3.0])
    pairs = [
        (torch.ones(3), good, "attention is constant"),
        (good, torch.zeros(3), "importance is constant"),
        (torch.ones(1), torch.ones(1), "fewer than two tokens to rank"),
        (torch.ones(0), torch.ones(0), "fewer than two tokens to rank"),
        (torch.tensor([1.0, math.nan, 2.0]), good, "attention is not finite"),
        (good, good, ""),
    ]
    ours = kendall_tau(
        [p[0] for p in pairs], [p[1] for p in pairs], names=("attention", "importance")
    )
    assert list(ours.reason) == [p[2] for p in pairs]
    assert ours.tau.isnan().tolist() == [True] * 5 + [False]


def test_tiny_differences_are_differences():
    tiny = 5e-324  # the smallest number there is
    ours = kendall_tau([torch.tensor([0.0, tiny, 1.0], dtype=torch.float64)], [torch.arange(3.0)])
    assert ours.tau.item() == 1.0


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="as many vectors"):
        kendall_tau([torch.ones(2)], [])
    with pytest.raises(ValueError, match="of one length"):
        kendall_tau([torch.ones(2)], [torch.ones(3)])
    with pytest.raises(ValueError, match="zeros"):
        sparsity_ceiling(3, 4)
    with pytest.raises(ValueError, match="k must lie"):
        top_k_overlap(torch.ones(2), torch.ones(2), 3)


@given(st.lists(st.integers(0, 2), min_size=5, max_size=5), small, st.integers(1, 5))
def test_overlap_is_the_mean_over_tie_breaks(u, v, k):
    def expected_members(values):
        """How often each index is among the first k, over all orders of the indices."""
        counts = np.zeros(5)
        for order in itertools.permutations(range(5)):
            first = sorted(order, key=lambda i: -values[i])[:k]
            counts[first] += 1
        return counts / math.factorial(5)

    expected = (expected_members(u) * expected_members(v)).sum() / k
    ours = top_k_overlap(torch.tensor(u), torch.tensor(v), k)
    assert ours == pytest.approx(expected, abs=1e-9)
