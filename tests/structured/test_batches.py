"""Batches: lengths, masks, special rows, threads, warm starts, warnings."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from tests.oracles import structures as all_of

import parsimax as px
from parsimax.structured import Budget, ConvergenceWarning, FromOracle, Matching, Sequence


def top_two(z):
    out = torch.zeros_like(z)
    out.view(-1)[z.reshape(-1).topk(min(2, z.numel())).indices] = 1
    return out


def structures(n, k):
    return {
        "sequence": (Sequence(torch.randn(n - 1, k, k).double()), (n, k)),
        "matching": (Matching(), (n, k)),
        "budget": (Budget(2), (n,)),
        "python": (FromOracle(top_two), (n, k)),
    }


every = pytest.mark.parametrize("name", ["sequence", "matching", "budget", "python"])


@every
def test_a_shorter_length_gives_the_same_as_the_cut_input(name):
    structure, shape = structures(6, 5)[name]
    scores = torch.randn(4, *shape).double()
    sizes = torch.tensor([[6, 5], [3, 2], [4, 5], [2, 4]])
    two_sided = name in ("matching", "python")
    result = px.sparsemap(scores, structure, sizes if two_sided else sizes[:, 0])
    for i, (n, m) in enumerate(sizes.tolist()):
        part = (slice(i, i + 1), slice(n), slice(m)) if two_sided else (slice(i, i + 1), slice(n))
        small = structure
        if name == "sequence":
            small = Sequence(structure.transitions[: n - 1])
        cut = px.sparsemap(scores[part], small)
        assert torch.equal(result.marginals[part], cut.marginals)
        outside = torch.ones_like(scores[i : i + 1], dtype=torch.bool)
        outside[(slice(None), *part[1:])] = False
        assert not result.marginals[i : i + 1][outside].any()
        count = cut.probabilities.shape[1]
        assert torch.equal(result.probabilities[i, :count], cut.probabilities[0])
        assert not result.probabilities[i, count:].any()
        assert result.gap[i] == cut.gap[0]


def test_one_length_for_both_sides():
    scores = torch.randn(2, 5, 4)
    both = px.sparsemap(scores, Matching(), torch.tensor([4, 2])).marginals
    pairs = px.sparsemap(scores, Matching(), torch.tensor([[4, 4], [2, 2]])).marginals
    assert torch.equal(both, pairs)


@every
def test_no_length_at_all(name):
    structure, shape = structures(4, 3)[name]
    scores = torch.randn(2, *shape, requires_grad=True)
    result = px.sparsemap(scores, structure, torch.tensor([2, 0]))
    assert not result.marginals[1].any()
    assert not result.probabilities[1].any()
    assert result.converged.all()
    result.marginals.square().sum().backward()
    assert not scores.grad[1].any()


@every
def test_leading_dimensions_and_empty_batches(name):
    structure, shape = structures(4, 3)[name]
    scores = torch.randn(6, *shape)
    want = px.sparsemap(scores, structure)
    none = px.sparsemap(scores[:0], structure)
    assert none.marginals.shape == (0, *shape)
    assert none.structures.shape == (0, 0, *shape)
    if name == "python":
        return  # one batch dimension, because the oracle's shape is what follows it
    grid = px.sparsemap(scores.reshape(2, 3, *shape), structure)
    assert torch.equal(grid.marginals.reshape(6, *shape), want.marginals)
    assert torch.equal(grid.structures.reshape(want.structures.shape), want.structures)
    assert grid.gap.shape == grid.converged.shape == (2, 3)
    single = px.sparsemap(scores[0], structure)
    assert torch.equal(single.marginals, want.marginals[0])
    assert single.gap.shape == ()


@every
def test_mask_and_minus_infinity(name):
    structure, shape = structures(4, 4)[name]
    scores = torch.randn(5, *shape).double()
    mask = torch.rand(5, *shape) > 0.25
    if name in ("sequence", "matching"):
        mask |= torch.eye(4, dtype=torch.bool)
    if name == "budget":
        mask[:, :2] = True
    masked = px.sparsemap(scores, structure, mask=mask)
    forbidden = px.sparsemap(scores.masked_fill(~mask, -torch.inf), structure)
    assert torch.equal(masked.marginals, forbidden.marginals)
    assert not masked.marginals[~mask].any()
    if name == "matching":
        everything = all_of.matchings(4, 4)
        for i in range(5):
            allowed = everything[~(everything * ~mask[i].numpy()).any((1, 2))]
            p = masked.probabilities[i].numpy()
            chosen = masked.structures[i].numpy()
            assert all_of.gap(allowed, scores[i].numpy(), p, chosen) <= 1e-12


def test_forbidden_transitions():
    t = torch.randn(4, 3, 3).double()
    t[:, 0, 1] = t[:, 2, 2] = -torch.inf
    scores = torch.randn(3, 5, 3).double()
    result = px.sparsemap(scores, Sequence(t))
    everything = all_of.labellings(5, 3)
    extra = all_of.transition_scores(everything, t.numpy())
    everything, extra = everything[extra > -np.inf], extra[extra > -np.inf]
    for i in range(3):
        p, chosen = result.probabilities[i].numpy(), result.structures[i].numpy()
        chosen_extra = all_of.transition_scores(chosen, t.numpy())
        gap = all_of.gap(everything, scores[i].numpy(), p, chosen, extra, chosen_extra)
        assert gap <= 1e-12


@every
def test_special_rows(name):
    structure, shape = structures(4, 4)[name]
    scores = torch.randn(4, *shape).double()
    alone = px.sparsemap(scores[:1], structure).marginals
    scores[1] = -torch.inf
    scores[2].view(-1)[0] = torch.nan
    scores[3].view(-1)[1] = torch.inf
    scores.requires_grad_()
    result = px.sparsemap(scores, structure)
    assert torch.equal(result.marginals[:1], alone)
    assert not result.marginals[1].any()
    assert result.marginals[2:].isnan().all()
    assert result.gap[2:].isnan().all()
    assert result.converged.tolist() == [True, True, False, False]
    result.marginals[:2].square().sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad[1:].any()


def test_scores_that_forbid_everything():
    scores = torch.zeros(2, 3, 3)
    scores[1, 0] = -torch.inf
    with pytest.raises(ValueError, match=r"forbid every structure.*item 1"):
        px.sparsemap(scores, Matching())
    t = torch.full((2, 2), -torch.inf)
    with pytest.raises(ValueError, match=r"forbid every structure.*item 0"):
        px.sparsemap(torch.zeros(1, 3, 2), Sequence(t))


@every
def test_an_instance_does_not_depend_on_its_neighbours_or_threads(name):
    structure, shape = structures(12, 12)[name]
    scores = torch.randn(9, *shape).double()
    if name == "budget":
        scores = torch.randn(9, 300).double()
        structure = Budget(80)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = px.sparsemap(scores, structure)
        torch.set_num_threads(3)
        three = px.sparsemap(scores, structure)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.marginals, three.marginals)
    assert torch.equal(one.probabilities, three.probabilities)
    for i in range(9):
        alone = px.sparsemap(scores[i : i + 1], structure)
        assert torch.equal(alone.marginals[0], one.marginals[i])


@every
def test_warm_start(name):
    structure, shape = structures(10, 10)[name]
    scores = torch.randn(3, *shape).double()
    cold = px.sparsemap(scores, structure)
    again = px.sparsemap(scores, structure, warm_start=cold)
    assert (again.iterations == 1).all()
    torch.testing.assert_close(again.marginals, cold.marginals, atol=1e-12, rtol=0)
    near = scores + 0.01 * torch.randn_like(scores)
    warm = px.sparsemap(near, structure, warm_start=cold)
    fresh = px.sparsemap(near, structure)
    assert warm.iterations.sum() < fresh.iterations.sum()
    torch.testing.assert_close(warm.marginals, fresh.marginals, atol=1e-9, rtol=0)
    # whatever it starts from, also something else entirely, it ends at the solution
    far = px.sparsemap(-scores, structure, warm_start=cold)
    torch.testing.assert_close(far.marginals, px.sparsemap(-scores, structure).marginals)


def test_warm_start_with_other_lengths_and_masks():
    scores = torch.randn(3, 5, 4).double()
    t = Sequence(torch.randn(4, 4, 4).double())
    lengths, others = torch.tensor([5, 3, 2]), torch.tensor([4, 3, 5])
    warm = px.sparsemap(scores, t, lengths)
    mask = torch.rand(3, 5, 4) > 0.4
    mask[..., 0] = True
    want = px.sparsemap(scores, t, others, mask=mask).marginals
    got = px.sparsemap(scores, t, others, mask=mask, warm_start=warm).marginals
    torch.testing.assert_close(got, want)


def test_one_warning_that_names_the_gap():
    scores = torch.randn(5, 10, 10)
    with pytest.warns(ConvergenceWarning) as caught:
        result = px.sparsemap(scores, Matching(), max_iter=3)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert f"{result.gap.max():.3g}" in text
    assert "5 of 5" in text
    assert not result.converged.any()
    assert (result.iterations == 4).all()  # once more, to measure the gap
    for z, mu, gap in zip(scores, result.marginals, result.gap, strict=True):
        left = (z - mu).numpy()
        rows, columns = linear_sum_assignment(left, maximize=True)
        missed = left[rows, columns].sum() - (left * mu.numpy()).sum()
        assert missed == pytest.approx(gap.item(), rel=1e-5)
    assert caught[0].filename == __file__
    torch.testing.assert_close(result.marginals.sum(-1), torch.ones(5, 10))


def viterbi(scores, transitions):
    """The value of the best labelling, in a loop over positions."""
    best = scores[0]
    for i in range(1, len(scores)):
        best = (best[:, None] + transitions[i - 1]).max(0) + scores[i]
    return best.max()


@pytest.mark.parametrize(("n", "k"), [(100, 10), (200, 5), (50, 50)])
def test_long_sequences_converge(n, k):
    scores, transitions = torch.randn(16, n, k), torch.randn(16, n - 1, k, k)
    result = px.sparsemap(scores.double(), Sequence(transitions.double()), tol=1e-6)
    assert result.converged.all()
    for i in range(16):
        z, t = scores[i].double().numpy(), transitions[i].double().numpy()
        mu, edges = result.marginals[i].numpy(), result.edge_marginals[i].numpy()
        assert viterbi(z - mu, t) - ((z - mu) * mu).sum() - (t * edges).sum() <= 1e-9


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.03])
def test_weak_scores_converge(scale):
    """As they are when training begins: all but uniform marginals, and thousands of steps."""
    scores = scale * torch.randn(3, 30, 4).double()
    transitions = scale * torch.randn(3, 29, 4, 4).double()
    result = px.sparsemap(scores, Sequence(transitions), tol=1e-6 * scale)
    assert result.converged.all()
    for i in range(3):
        z, t = scores[i].numpy(), transitions[i].numpy()
        mu, edges = result.marginals[i].numpy(), result.edge_marginals[i].numpy()
        missed = viterbi(z - mu, t) - ((z - mu) * mu).sum() - (t * edges).sum()
        assert missed <= 1e-6 * scale + 1e-14
    with pytest.warns(ConvergenceWarning, match="3 of 3"):
        few = px.sparsemap(scores, Sequence(transitions), tol=1e-9 * scale, max_iter=20)
    assert (few.iterations <= 22).all()  # one to end a stage, and one to measure the gap


@pytest.mark.parametrize(
    ("n", "k", "strength", "weaker"),
    [
        (30, 6, 1e-3, 1e-8),
        (30, 6, 1e-2, 1e-6),
        (20, 10, 1e-2, 1e-6),
        (30, 6, 1e-3, 1e-5),
        (30, 6, 1e-2, 1e-5),
        (30, 6, 1e-1, 1e-6),
        (30, 10, 1e-1, 1e-3),
        (30, 10, 0.0, 1e-3),
    ],
)
def test_transitions_that_are_weaker_than_scores(n, k, strength, weaker):
    """As at the start of training. Few steps, and an optimum near that without transitions."""
    torch.manual_seed(0)
    scores = strength * torch.randn(2, n, k, dtype=torch.float64)
    transitions = weaker * torch.randn(n - 1, k, k, dtype=torch.float64)
    r = px.sparsemap(scores, Sequence(transitions))
    assert r.gap.max() <= 1e-11
    assert r.iterations.max() < 1000
    # of two strongly concave functions that differ by so little, optima are near each other
    apart = (r.marginals - px.sparsemax(scores)).square().sum((1, 2))
    assert apart.max() <= 2 * 2 * (n - 1) * transitions.abs().max()
    # the gap, by all labellings' best alone: Viterbi in the plainest form
    for z, p, y, mu in zip(scores, r.probabilities, r.structures, r.marginals, strict=True):
        best = z[0] - mu[0]
        for i in range(1, n):
            best = (best[:, None] + transitions[i - 1]).amax(0) + z[i] - mu[i]
        edges = torch.einsum("s,sia,sib->iab", p, y[:, :-1], y[:, 1:])
        value = (edges * transitions).sum() + (mu * (z - mu)).sum()
        assert best.max() - value <= 1e-11


@pytest.mark.parametrize(("strength", "weaker"), [(1e-3, 1e-8), (1e-2, 1e-5), (0.1, 1e-3)])
def test_forbidden_and_weak_transitions_converge(strength, weaker):
    torch.manual_seed(0)
    scores = strength * torch.randn(1, 30, 6, dtype=torch.float64)
    transitions = weaker * torch.randn(29, 6, 6, dtype=torch.float64)
    transitions[:, 0, 1] = transitions[:, 2, 3] = -torch.inf
    if weaker == 1e-3:
        transitions[5, :, 1:] = -torch.inf  # sparsemax of every position would need these
    r = px.sparsemap(scores, Sequence(transitions))
    assert r.gap.max() <= 1e-11
    assert r.iterations.max() < 2000
    assert r.edge_marginals[transitions[None] == -torch.inf].max() == 0
    with pytest.raises(ValueError, match="forbid every structure"):
        px.sparsemap(scores, Sequence(torch.full((6, 6), -torch.inf)))


@pytest.mark.parametrize("shape", [(50, 50), (100, 100), (40, 60)])
def test_large_matchings_converge(shape):
    scores = torch.randn(4 if shape[0] == 100 else 16, *shape).double()
    result = px.sparsemap(scores, Matching(), tol=1e-6)
    assert result.converged.all()
    for left, mu in zip((scores - result.marginals).numpy(), result.marginals.numpy(), strict=True):
        rows, columns = linear_sum_assignment(left, maximize=True)
        assert left[rows, columns].sum() - (left * mu).sum() <= 1e-9


@every
def test_gradients_of_an_empty_batch(name):
    structure, shape = structures(4, 3)[name]
    scores = torch.randn(0, *shape, requires_grad=True)
    r = px.sparsemap(scores, structure)
    (r.marginals.sum() + r.probabilities.sum()).backward()
    assert scores.grad.shape == scores.shape
    again = px.sparsemap(scores, structure, warm_start=r)
    assert again.marginals.shape == scores.shape
    if name == "sequence":
        assert r.edge_marginals.shape == (0, 3, 3, 3)
    detached = scores.detach()
    _, tangent = torch.func.jvp(
        lambda z: px.sparsemap(z, structure).marginals, (detached,), (detached,)
    )
    assert tangent.shape == scores.shape


def test_an_empty_batch_of_transitions_and_losses():
    transitions = torch.randn(0, 3, 3, 3, requires_grad=True)
    scores = torch.randn(0, 4, 3, requires_grad=True)
    loss = px.sparsemap_loss(scores, torch.zeros(0, 4, 3), Sequence(transitions))
    loss.backward()
    assert loss == 0
    assert transitions.grad.shape == transitions.shape
    shared = torch.randn(3, 3, requires_grad=True)
    px.sparsemap(scores, Sequence(shared)).marginals.sum().backward()
    assert torch.equal(shared.grad, torch.zeros(3, 3))


@pytest.mark.parametrize("beyond", [torch.nan, torch.inf, -torch.inf])
def test_transitions_beyond_a_length_count_for_nothing(beyond):
    scores, transitions = torch.randn(3, 4, 3).double(), torch.randn(3, 3, 3, 3).double()
    transitions[1, 1:], transitions[2] = beyond, beyond
    transitions.requires_grad_()
    lengths = torch.tensor([4, 2, 1])
    r = px.sparsemap(scores, Sequence(transitions), lengths=lengths)
    for i, n in enumerate(lengths.tolist()):
        cut = Sequence(transitions.detach()[i, : n - 1])
        want = px.sparsemap(scores[i, :n], cut).marginals
        torch.testing.assert_close(r.marginals[i, :n], want, rtol=0, atol=1e-12)
    r.marginals.square().sum().backward()
    assert transitions.grad.isfinite().all()
    labels = torch.zeros(3, 4, dtype=torch.long)
    loss = px.sparsemap_loss(scores, labels, Sequence(transitions), lengths=lengths)
    transitions.grad = None
    loss.backward()
    assert loss.isfinite()
    assert transitions.grad.isfinite().all()
