"""The SparseMAP loss: value, gradient, targets in their forms."""

import pytest
import torch
from tests.oracles import structures as all_of
from torch.autograd import gradcheck, gradgradcheck

import parsimax as px
from parsimax.structured import Budget, FromOracle, Matching, Sequence


def cases():
    return {
        "matching": (Matching(), (4, 4), all_of.matchings(4, 4)),
        "budget": (Budget(2), (5,), all_of.subsets(5, 2)),
        "python": (FromOracle(lambda z: (z > 0).double()), (4,), all_of.subsets(4, 2)),
        "sequence": (Sequence(torch.randn(3, 3, 3).double()), (4, 3), all_of.labellings(4, 3)),
    }


every = pytest.mark.parametrize("name", ["matching", "budget", "python", "sequence"])


def objective(z, mu, structure, edges=None):
    value = (z * mu - mu.square() / 2).flatten(1).sum(1)
    if edges is not None:
        value = value + (structure.transitions * edges).flatten(1).sum(1)
    return value


@every
def test_value_and_gradient(name):
    structure, shape, everything = cases()[name]
    z = torch.randn(5, *shape).double().requires_grad_()
    y = torch.from_numpy(everything)[torch.randint(len(everything), (5,))]
    r = px.sparsemap(z, structure)
    edges = y_edges = None
    if name == "sequence":
        edges, y_edges = r.edge_marginals, y[:, :-1, :, None] * y[:, 1:, None, :]
    want = objective(z, r.marginals, structure, edges) - objective(z, y, structure, y_edges)
    loss = px.sparsemap_loss(z, y, structure, reduction="none")
    torch.testing.assert_close(loss, want)
    assert (loss >= 0).all()
    (g,) = torch.autograd.grad(loss.sum(), z)
    torch.testing.assert_close(g, r.marginals - y)
    for reduction, value in (("sum", want.sum()), ("mean", want.mean())):
        torch.testing.assert_close(px.sparsemap_loss(z, y, structure, reduction=reduction), value)

    def f(x):
        return px.sparsemap_loss(x, y, structure, reduction="none")

    assert gradcheck(f, z)
    assert gradgradcheck(f, z)


@every
def test_zero_beyond_the_margin(name):
    structure, _, everything = cases()[name]
    y = torch.from_numpy(everything[:3])
    z = (100 * (2 * y - 1)).requires_grad_()
    loss = px.sparsemap_loss(z, y, structure, reduction="none")
    assert torch.equal(loss, torch.zeros(3).double())
    (g,) = torch.autograd.grad(loss.sum(), z)
    torch.testing.assert_close(g, torch.zeros_like(g))


def test_marginals_as_target():
    z = torch.randn(3, 4, 4).double()
    own = px.sparsemap(z, Matching()).marginals
    loss = px.sparsemap_loss(z, own, Matching(), reduction="none")
    torch.testing.assert_close(loss, torch.zeros(3).double(), atol=1e-12, rtol=0)
    y = torch.full((3, 4, 4), 0.25).double().requires_grad_()
    other = torch.randn(3, 4, 4).double()
    assert gradcheck(lambda t: px.sparsemap_loss(other, t, Matching()), y)


def test_labels_as_target():
    structure = Sequence(torch.randn(4, 3, 3))
    z, labels = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    lengths = torch.tensor([5, 3])
    dense = torch.nn.functional.one_hot(labels, 3)
    padded = labels.clone()
    padded[1, 3:] = -100
    want = px.sparsemap_loss(z, dense, structure, lengths)
    assert torch.equal(px.sparsemap_loss(z, padded, structure, lengths), want)
    cut = px.sparsemap_loss(
        z[1:, :3], labels[1:, :3], Sequence(structure.transitions[:2]), reduction="none"
    )
    both = px.sparsemap_loss(z, labels, structure, lengths, reduction="none")
    torch.testing.assert_close(both[1:], cut)
    with pytest.raises(ValueError, match="between 0 and 2"):
        px.sparsemap_loss(z, padded, structure)


@pytest.mark.parametrize("shape", [(2, 3, 3, 3), (3, 3, 3), (3, 3)])
def test_gradient_in_transitions(shape):
    z, t = torch.randn(2, 4, 3).double(), torch.randn(shape).double().requires_grad_()
    labels = torch.randint(3, (2, 4))
    assert gradcheck(lambda t: px.sparsemap_loss(z, labels, Sequence(t)), t)
    assert gradgradcheck(lambda t: px.sparsemap_loss(z, labels, Sequence(t)), t)


def test_forbidden_parts():
    z = torch.randn(2, 3, 3).double().requires_grad_()
    y = torch.eye(3).expand(2, 3, 3)
    mask = torch.ones(2, 3, 3, dtype=torch.bool)
    mask[0, 0, 1] = mask[1, 0, 0] = False
    loss = px.sparsemap_loss(z, y, Matching(), mask=mask, reduction="none")
    assert loss[0].isfinite()
    assert loss[1] == torch.inf
    (g,) = torch.autograd.grad(loss[0], z)
    assert g.isfinite().all()
    assert g[0, 0, 1] == 0


def test_errors():
    z = torch.randn(2, 3, 3)
    with pytest.raises(ValueError, match=r"shape of the scores, \(2, 3, 3\), got \(2, 3\)"):
        px.sparsemap_loss(z, torch.zeros(2, 3), Matching())
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        px.sparsemap_loss(z, torch.full((2, 3, 3), 2.0), Matching())
    with pytest.raises(ValueError, match=r"0 or 1, where there are transitions, got 0\.5"):
        px.sparsemap_loss(z, torch.full((2, 3, 3), 0.5), Sequence(torch.zeros(3, 3)))
    with pytest.raises(ValueError, match="reduction must be one of"):
        px.sparsemap_loss(z, torch.eye(3).expand(2, 3, 3), Matching(), reduction="avg")
    with pytest.raises(TypeError, match=r"target must be a torch\.Tensor"):
        px.sparsemap_loss(z, [1, 2], Matching())
    with pytest.raises(TypeError, match="integer dtype"):
        px.sparsemap_loss(z, torch.zeros(2, 3), Sequence())
