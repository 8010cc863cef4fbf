"""Joint alignments and latent trees as attention: contexts, masks, gradients, messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles.polytopes import nearest_marginals
from tests.oracles.trees import monotone_alignments, trees

import parsimax as px

ALIGNMENTS = ["matching", "monotone", "sequence"]
every = pytest.mark.parametrize("structure", ALIGNMENTS)


def module(structure, size=4, **options):
    return px.nn.StructuredAttention(size, 3, structure, dtype=torch.float64, **options)


def inputs(batch=2, lq=4, lk=5):
    return (
        torch.randn(batch, lq, 4, dtype=torch.float64),
        torch.randn(batch, lk, 3, dtype=torch.float64),
    )


@every
def test_contexts_are_the_weighted_sums_of_both_sides(structure):
    query, memory = inputs()
    attention = module(structure)
    found = attention.align(query, memory)
    torch.testing.assert_close(found.context, found.weights @ memory)
    torch.testing.assert_close(found.memory_context, found.weights.mT @ query)
    context, weights = attention(query, memory)
    assert torch.equal(context, found.context)
    assert torch.equal(weights, found.weights)
    mixed = torch.einsum("bk,bkij->bij", found.probabilities, found.structures)
    torch.testing.assert_close(mixed, weights)
    assert found.converged.all()
    assert weights.sum(-1).allclose(torch.ones(2, 4).double())  # no more queries than entries


def test_every_query_picks_an_entry_and_never_goes_back():
    """Against all monotone alignments: columns are queries there, and rows the memory."""
    query, memory = inputs()
    attention = module("monotone")
    weights = attention(query, memory).weights
    scores = (query @ attention.weight @ memory.mT).detach().numpy()
    for z, w in zip(scores, weights.detach().numpy(), strict=True):
        expected = nearest_marginals(monotone_alignments(5, 4), z.T).T
        np.testing.assert_allclose(w, expected, atol=1e-8, rtol=0)


def test_a_sequence_prefers_the_jumps_that_are_worth_more():
    """Scores that say nothing: only jumps decide, and they say: one step on, or cannot."""
    attention = module("sequence", reach=2)
    with torch.no_grad():
        attention.weight.zero_()
        attention.jumps.copy_(torch.tensor([-9.0, -9.0, -9.0, 9.0, -9.0]))
    query, memory = inputs(1, 4, 4)
    assert torch.equal(attention(query, memory).weights[0], torch.eye(4).double())


@every
def test_padding_is_as_if_it_were_not_there(structure):
    query, memory = inputs(3, 5, 6)
    attention = module(structure)
    sizes = [(5, 6), (2, 4), (4, 3)]
    query_mask = torch.arange(5) < torch.tensor([[n] for n, _ in sizes])
    mask = torch.arange(6) < torch.tensor([[m] for _, m in sizes])
    found = attention.align(query, memory, mask, query_mask)
    for i, (n, m) in enumerate(sizes):
        cut = attention.align(query[i : i + 1, :n], memory[i : i + 1, :m])
        torch.testing.assert_close(found.weights[i, :n, :m], cut.weights[0], atol=1e-9, rtol=0)
        torch.testing.assert_close(found.context[i, :n], cut.context[0], atol=1e-9, rtol=0)
        assert (found.weights[i, n:] == 0).all()
        assert (found.weights[i, :, m:] == 0).all()


@every
def test_a_gap_in_the_middle_is_closed(structure):
    query, memory = inputs(1, 4, 6)
    attention = module(structure)
    keep, keep_query = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 2, 3])
    mask, query_mask = torch.zeros(1, 6, dtype=torch.bool), torch.zeros(1, 4, dtype=torch.bool)
    mask[0, keep] = True
    query_mask[0, keep_query] = True
    found = attention.align(query, memory, mask, query_mask)
    cut = attention.align(query[:, keep_query], memory[:, keep])
    inside = found.weights[:, keep_query][:, :, keep]
    torch.testing.assert_close(inside, cut.weights, atol=1e-9, rtol=0)
    assert found.weights.sum().item() == pytest.approx(inside.sum().item())
    mixed = torch.einsum("bk,bkij->bij", found.probabilities, found.structures)
    torch.testing.assert_close(mixed, found.weights)


@every
def test_nothing_to_see_gives_zeros(structure):
    query, memory = inputs(2)
    mask = torch.tensor([[True] * 5, [False] * 5])
    query.requires_grad_()
    context, weights = module(structure)(query, memory, mask)
    assert (weights[1] == 0).all()
    assert (context[1] == 0).all()
    context.square().sum().backward()
    assert (query.grad[1] == 0).all()
    assert query.grad[0].abs().sum() > 0


@every
def test_a_cell_can_be_forbidden(structure):
    query, memory = inputs(2)
    attention = module(structure)
    cells = torch.ones(2, 4, 5, dtype=torch.bool)
    free = attention(query, memory, cells).weights
    torch.testing.assert_close(free, attention(query, memory).weights)
    where = free[0].argmax()
    cells[0].view(-1)[where] = False
    weights = attention(query, memory, cells).weights
    assert weights[0].reshape(-1)[where] == 0
    assert torch.equal(weights[1], free[1])


@every
def test_gradients_reach_inputs_and_parameters(structure):
    query, memory = inputs(1, 3, 4)
    attention = module(structure)
    names = [name for name, _ in attention.named_parameters()]
    assert names == (["weight", "jumps"] if structure == "sequence" else ["weight"])
    with torch.no_grad():  # several structures, so that all gradients are there
        attention.weight.mul_(0.3)

    def run(query, memory, *parameters):
        return torch.func.functional_call(
            attention, dict(zip(names, parameters, strict=True)), (query, memory)
        )

    arguments = [query, memory, *(p.detach() for p in attention.parameters())]
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in arguments])


def test_a_structure_of_ones_own_and_with_settings():
    def best_cell(scores):
        found = torch.zeros_like(scores)
        found.view(-1)[scores.argmax()] = 1
        return found

    query, memory = inputs(1)
    weights = module(px.structured.FromOracle(best_cell))(query, memory).weights
    assert weights.sum().item() == pytest.approx(1.0)
    steps = torch.zeros(5, 5, dtype=torch.float64)
    free = module(px.structured.Sequence(steps))(query, memory)
    assert free.weights.sum(-1).allclose(torch.ones(1, 4).double())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: module("matchings"), r"structure must be 'matching', 'monotone', 'sequence' or"),
        (lambda: module(px.structured.Arborescence()), "LatentTreeAttention attends by trees"),
        (lambda: module(px.structured.Budget(2)), "one over matrices"),
        (lambda: module("matching", size=0), "query_dim must be at least 1"),
        (lambda: px.nn.LatentTreeAttention(3, tree="eisner"), "tree must be 'arborescence', 'proj"),
    ],
)
def test_constructors_are_checked(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(2, 4)}, "a joint alignment needs all queries at once"),
        ({"memory": torch.zeros(2, 5, 2)}, r"memory must have shape \(B, Lk, 3\)"),
        ({"mask": torch.ones(2, 4).bool()}, r"mask must have shape \(2, 5\), got \(2, 4\)"),
        ({"mask": torch.ones(2, 5, 4).bool()}, r"mask must have shape \(2, 4, 5\)"),
        ({"query_mask": torch.ones(2, 5).bool()}, r"query_mask must have shape \(2, 4\)"),
    ],
)
def test_inputs_are_checked(change, message):
    query, memory = inputs()
    arguments = {"query": query, "memory": memory, **change}
    with pytest.raises(ValueError, match=message):
        module("matching")(**arguments)
    with pytest.raises(TypeError, match="mask must be a bool tensor"):
        module("matching")(query, memory, torch.ones(2, 5))


# --- latent trees --------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", ["arborescence", "projective"])
def test_words_attend_to_their_heads(tree):
    attention = px.nn.LatentTreeAttention(3, tree, dtype=torch.float64)
    words = torch.randn(2, 4, 3, dtype=torch.float64)
    found = attention.parse(words)
    everything = trees(4, True, tree == "projective")
    keys = attention.key_proj(words)
    asked = attention.query_proj(words) / 3**0.5
    for i in range(2):
        scores = keys[i] @ asked[i].T
        scores = scores - scores.diag().diag() + (asked[i] @ attention.root_key).diag()
        mu = nearest_marginals(everything, scores.detach().numpy())
        np.testing.assert_allclose(found.marginals[i].detach().numpy(), mu, atol=1e-8, rtol=0)
        for m in range(4):
            head = sum(mu[h, m] * (words[i, h] if h != m else attention.root) for h in range(4))
            torch.testing.assert_close(found.heads[i, m], head, atol=1e-7, rtol=0)
            child = sum(mu[m, c] * words[i, c] for c in range(4) if c != m)
            torch.testing.assert_close(found.children[i, m], child, atol=1e-7, rtol=0)
    context, weights = attention(words)
    assert torch.equal(context, found.heads)
    assert torch.equal(weights, found.marginals.mT)


@pytest.mark.parametrize("tree", ["arborescence", px.structured.ProjectiveTree(single_root=False)])
def test_masked_words_are_no_part_of_the_tree(tree):
    attention = px.nn.LatentTreeAttention(3, tree, dtype=torch.float64)
    words = torch.randn(1, 6, 3, dtype=torch.float64)
    keep = torch.tensor([0, 1, 3, 5])
    mask = torch.zeros(1, 6, dtype=torch.bool)
    mask[0, keep] = True
    found, cut = attention.parse(words, mask), attention.parse(words[:, keep])
    inside = found.marginals[:, keep][:, :, keep]
    torch.testing.assert_close(inside, cut.marginals, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.heads[:, keep], cut.heads, atol=1e-9, rtol=0)
    assert found.marginals.sum().item() == pytest.approx(4.0)
    assert (found.heads[0, ~mask[0]] == 0).all()


def test_gradients_of_a_latent_tree():
    attention = px.nn.LatentTreeAttention(3, dtype=torch.float64)
    words = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attention(x).context, words)
    attention(words).context.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attention.parameters())


def test_words_are_checked():
    attention = px.nn.LatentTreeAttention(3)
    with pytest.raises(ValueError, match=r"words must have shape \(B, n, 3\)"):
        attention(torch.zeros(2, 4, 5))


@pytest.mark.parametrize("structure", ["matching", "monotone", "sequence"])
def test_gradients_of_an_empty_batch(structure):
    attention = px.nn.StructuredAttention(4, 5, structure=structure)
    query = torch.randn(0, 3, 4, requires_grad=True)
    context, weights = attention(query, torch.randn(0, 6, 5))
    (context.sum() + weights.sum()).backward()
    assert query.grad.shape == query.shape
    assert not attention.weight.grad.any()
