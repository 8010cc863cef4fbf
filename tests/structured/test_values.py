"""SparseMAP over sequences, matchings and subsets, against every structure there is."""

import numpy as np
import pytest
import torch
from tests.oracles import structures as all_of

import parsimax as px
from parsimax.structured import Budget, FromOracle, Matching, Sequence

HOW = {
    "normal": lambda shape: torch.randn(shape).double(),
    "small": lambda shape: 1e-3 * torch.randn(shape).double(),
    "large": lambda shape: 1e4 * torch.randn(shape).double(),
    "shifted": lambda shape: torch.randn(shape).double() + 1e6,
    "ties": lambda shape: torch.randint(-1, 2, shape).double(),
    "equal": lambda shape: torch.full(shape, 0.3).double(),
}
# Exact up to the rounding of sums of scores: 1e-13 of the largest, which stands for an error of at
# most sqrt(2e-13) < 5e-7 in the marginals where scores are of the order of one.
ROUNDING = 1e-13


def check(result, item, everything, scores, extra=None, extra_of=None):
    """A distribution, over members of ``everything``, that is optimal."""
    p = result.probabilities[item].numpy()
    used = p > 0
    structures = result.structures[item].numpy()
    assert np.all(np.diff(p) <= 0)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert not structures[~used].any()
    known = {row.tobytes() for row in everything.astype(np.int8)}
    found = [row.tobytes() for row in structures[used].astype(np.int8)]
    assert len(set(found)) == len(found)
    assert set(found) <= known
    marginals = np.tensordot(p, structures, 1)
    np.testing.assert_allclose(result.marginals[item].numpy(), marginals, atol=1e-13)
    mine = None if extra is None else extra_of(structures[used])
    missed = all_of.gap(everything, scores, p[used], structures[used], extra, mine)
    totals = np.tensordot(everything, scores, scores.ndim)
    scale = max(1.0, np.abs(totals).max(), 0.0 if extra is None else np.abs(extra).max())
    assert missed <= ROUNDING * scale
    assert result.gap[item] <= 1e-6
    assert result.converged[item]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", [(4, 3), (1, 3), (3, 1), (1, 1), (5, 2)])
@pytest.mark.parametrize("strength", [0.0, 1e-8, 1e-3, 1.0, 30.0])
def test_sequences(how, shape, strength):
    n, k = shape
    scores = HOW[how]((4, n, k))
    transitions = strength * torch.randn(4, n - 1, k, k).double()
    if how == "ties":
        transitions = transitions.round()
    result = px.sparsemap(scores, Sequence(transitions))
    everything = all_of.labellings(n, k)
    for i, (z, t) in enumerate(zip(scores.numpy(), transitions.numpy(), strict=True)):

        def extra_of(labels, t=t):
            return all_of.transition_scores(labels, t)

        check(result, i, everything, z, extra_of(everything), extra_of)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", [(5, 5), (4, 5), (5, 3), (1, 4), (4, 1), (2, 6)])
def test_matchings(how, shape):
    scores = HOW[how]((4, *shape))
    result = px.sparsemap(scores, Matching())
    for i, z in enumerate(scores.numpy()):
        check(result, i, all_of.matchings(*shape), z)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("d", "k"), [(6, 2), (6, 5), (5, 0), (5, 5), (1, 1), (9, 4)])
def test_budgets(how, d, k):
    scores = HOW[how]((4, d))
    result = px.sparsemap(scores, Budget(k))
    for i, z in enumerate(scores.numpy()):
        check(result, i, all_of.subsets(d, k), z)
    torch.testing.assert_close(result.marginals, px.budget(scores, k), atol=1e-9, rtol=0)


def test_budget_of_many():
    scores = torch.randn(3, 400).double()
    result = px.sparsemap(scores, Budget(40))
    torch.testing.assert_close(result.marginals, px.budget(scores, 40), atol=1e-9, rtol=0)


def test_no_transitions_is_sparsemax_of_every_position():
    scores = torch.randn(2, 30, 8).double()
    result = px.sparsemap(scores, Sequence())
    torch.testing.assert_close(result.marginals, px.sparsemax(scores), atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(5, 5), (5, 3), (2, 6)])
def test_an_oracle_in_python_gives_what_the_compiled_one_gives(shape):
    everything = torch.from_numpy(all_of.matchings(*shape))

    def best(scores):
        assert scores.dtype == torch.float64
        return everything[torch.tensordot(everything, scores, 2).argmax()]

    scores = torch.randn(3, *shape)
    mine = px.sparsemap(scores, FromOracle(best))
    compiled = px.sparsemap(scores, Matching())
    torch.testing.assert_close(mine.marginals, compiled.marginals)
    assert mine.converged.all()


def test_structures_of_any_size_from_python():
    """All subsets: every marginal on its own is the score, between 0 and 1."""
    scores = torch.randn(4, 2, 2, 2).double()
    result = px.sparsemap(scores, FromOracle(lambda z: (z > 0).double()))
    torch.testing.assert_close(result.marginals, scores.clamp(0, 1))
    by_numpy = px.sparsemap(scores, FromOracle(lambda z: z.numpy() > 0))
    assert torch.equal(by_numpy.marginals, result.marginals)
    assert result.structures.shape == (4, result.probabilities.shape[1], 2, 2, 2)


def test_edge_marginals():
    scores, transitions = torch.randn(3, 6, 4).double(), torch.randn(3, 5, 4, 4).double()
    lengths = torch.tensor([6, 4, 1])
    result = px.sparsemap(scores, Sequence(transitions), lengths)
    edges = result.edge_marginals
    for i, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(edges[i, : n - 1].sum(2), result.marginals[i, : n - 1])
        torch.testing.assert_close(edges[i, : n - 1].sum(1), result.marginals[i, 1:n])
        assert not edges[i, n - 1 :].any()
    assert px.sparsemap(scores, Matching()).edge_marginals is None


def test_transitions_are_shared_by_positions_and_batch():
    scores, one = torch.randn(3, 5, 4).double(), torch.randn(4, 4).double()
    want = px.sparsemap(scores, Sequence(one.expand(3, 4, 4, 4))).marginals
    for given in (one, one[None, None], one.expand(4, 4, 4), one.expand(1, 4, 4, 4)):
        assert torch.equal(px.sparsemap(scores, Sequence(given)).marginals, want)


def test_strong_transitions_over_weak_scores():
    """Many structures with the same parts, apart by transitions: steps along null directions."""
    generator = torch.Generator().manual_seed(3)
    for weak, scale in ((0.05, 0.1), (0.05, 1.0), (0.05, 5.0), (1e-6, 1e-6), (1e-9, 1e-3)):
        scores = weak * torch.randn(8, 8, 2, generator=generator).double()
        transitions = scale * torch.randn(8, 7, 2, 2, generator=generator).double()
        result = px.sparsemap(scores, Sequence(transitions))
        everything = all_of.labellings(8, 2)
        for i, (z, t) in enumerate(zip(scores.numpy(), transitions.numpy(), strict=True)):

            def extra_of(labels, t=t):
                return all_of.transition_scores(labels, t)

            check(result, i, everything, z, extra_of(everything), extra_of)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_once(dtype):
    scores = torch.randn(2, 6, 5).to(dtype)
    for structure in (Sequence(torch.randn(5, 5)), Matching()):
        result = px.sparsemap(scores, structure)
        exact = px.sparsemap(scores.double(), structure)
        assert result.marginals.dtype == result.probabilities.dtype == dtype
        assert torch.equal(result.marginals, exact.marginals.to(dtype))
        assert result.gap.dtype == torch.float64
