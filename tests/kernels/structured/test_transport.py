"""Couplings of two distributions, against linear programming."""

import numpy as np
import pytest
from scipy.optimize import linprog

from parsimax.kernels.cpu.structured.transport import couple, take_path


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 3), (5, 8), (9, 9)])
@pytest.mark.parametrize("how", ["normal", "uniform", "equal gains", "small gains"])
def test_the_best_coupling_on_a_tree(shape, how):
    p, q = shape
    rng = np.random.default_rng(p * 10 + q)
    supply, demand = rng.random(p) + 0.1, rng.random(q) + 0.1
    if how == "uniform":
        supply, demand = np.ones(p), np.ones(q)
    supply, demand = supply / supply.sum(), demand / demand.sum()
    gains = rng.standard_normal(shape) * (1e-9 if how == "small gains" else 1.0)
    if how == "equal gains":
        gains[:] = 0.3
    flow = np.zeros(shape)
    couple(gains, supply, demand, flow)
    assert flow.min() >= 0
    np.testing.assert_allclose(flow.sum(1), supply, atol=1e-14)
    np.testing.assert_allclose(flow.sum(0), demand, atol=1e-14)
    assert (flow > 0).sum() <= p + q - 1
    scale = np.abs(gains).max()
    sums = np.vstack([np.kron(np.eye(p), np.ones(q)), np.kron(np.ones(p), np.eye(q))])
    best = linprog(-gains.ravel() / scale, A_eq=sums, b_eq=np.concatenate([supply, demand]))
    assert (gains / scale * flow).sum() == pytest.approx(-best.fun, abs=1e-9)


def test_sequences_use_up_a_chain_and_are_independent():
    rng = np.random.default_rng(0)
    n, k = 6, 4
    marginals = rng.dirichlet(np.ones(k), n)
    flows = np.zeros((n - 1, k, k))
    for i in range(n - 1):
        couple(rng.standard_normal((k, k)), marginals[i], marginals[i + 1], flows[i])
    left, chosen = marginals[0].copy(), np.empty(n, np.int32)
    masses, rows = [], []
    while (mass := take_path(left, flows, chosen)) > 0:
        masses.append(mass)
        rows.append(np.bincount(chosen, minlength=n * k))
    rows = np.array(rows)
    np.testing.assert_allclose(np.array(masses) @ rows, marginals.ravel(), atol=1e-12)
    assert np.linalg.matrix_rank(rows) == len(rows) <= 1 + n * (k - 1)
