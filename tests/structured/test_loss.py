"""The SparseMAP loss: value, gradient, targets in their forms."""

import pytest
import torch
from tests.oracles import structures as all_of
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import parsimax as px
from parsimax.structured import (
    Arborescence,
    Budget,
    FromOracle,
    Matching,
    MonotoneAlignment,
    ProjectiveTree,
    Sequence,
)


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


@pytest.mark.parametrize("name", ["matching", "budget", "sequence"])
def test_torch_func(name):
    structure, shape, everything = cases()[name]
    z = torch.randn(4, *shape).double()
    y = torch.from_numpy(everything).double()[torch.randint(len(everything), (4,))]

    def one(z, y):
        return px.sparsemap_loss(z[None], y[None], structure)

    r = px.sparsemap(z, structure)
    losses = px.sparsemap_loss(z, y, structure, reduction="none")
    torch.testing.assert_close(vmap(one)(z, y), losses)
    torch.testing.assert_close(vmap(one, in_dims=(0, None))(z, y[0])[0], losses[0])
    want = r.marginals - y
    for derivative in (jacfwd, jacrev, grad):
        torch.testing.assert_close(derivative(one)(z[0], y[0]), want[0])
        torch.testing.assert_close(vmap(derivative(one))(z, y), want)
    second = jacrev(lambda x: px.sparsemap(x[None], structure).marginals[0])(z[0])
    for twice in (hessian(one), jacrev(jacrev(one)), jacrev(jacfwd(one)), jacfwd(jacfwd(one))):
        torch.testing.assert_close(twice(z[0], y[0]), second)


def test_torch_func_in_transitions():
    t, z = torch.randn(3, 3, 3).double(), torch.randn(1, 4, 3).double()
    labels = torch.tensor([[0, 2, 1, 1]])

    def f(t):
        return px.sparsemap_loss(z, labels, Sequence(t))

    (want,) = torch.autograd.grad(f(t.requires_grad_()), t)
    t = t.detach()
    torch.testing.assert_close(jacfwd(f)(t), want)
    torch.testing.assert_close(grad(f)(t), want)
    edges = jacrev(lambda x: px.sparsemap(z, Sequence(x)).edge_marginals[0])(t)
    torch.testing.assert_close(hessian(f)(t), edges)


WRONG = {
    "matching: too many": (Matching(), torch.ones(1, 3, 3)),
    "matching: none": (Matching(), torch.zeros(1, 3, 3)),
    "matching: a column twice": (Matching(), torch.tensor([[[1.0, 0, 0], [1.0, 0, 0]]])),
    "matching: a row is missing": (Matching(), torch.tensor([[[1.0, 0, 0], [0, 0, 0]]])),
    "budget": (Budget(2), torch.tensor([[1.0, 0, 0, 0]])),
    "sequence": (Sequence(), torch.tensor([[[1.0, 0], [0, 0]]])),
    "sequence with transitions": (Sequence(torch.zeros(2, 2)), torch.ones(1, 3, 2)),
    "tree: two heads": (Arborescence(), torch.ones(1, 2, 2)),
    "tree: two roots": (Arborescence(), torch.eye(2)[None]),
    "tree: no root": (ProjectiveTree(single_root=False), torch.eye(2).flip(0)[None]),
    "alignment": (MonotoneAlignment(), torch.tensor([[[1.0, 1, 0], [0, 1, 0]]])),
}


@pytest.mark.parametrize("name", WRONG)
def test_targets_that_are_no_structure(name):
    structure, y = WRONG[name]
    with pytest.raises(ValueError, match=f"target must be a structure.*{structure}.*item 0"):
        px.sparsemap_loss(torch.randn(y.shape), y, structure)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True])
def test_mixtures_are_targets_in_any_dtype(dtype, wide):
    shape = (3, 6, 9) if wide else (3, 8, 8)
    kinds = [Matching(), Sequence(), MonotoneAlignment()]
    if not wide:
        kinds += [Arborescence(), ProjectiveTree(), Arborescence(single_root=False)]
    for structure in kinds:
        scores = 0.3 * torch.randn(shape)
        lengths = torch.tensor([shape[1], 4, 0])
        y = px.sparsemap(scores, structure, lengths=lengths).marginals.to(dtype)
        assert px.sparsemap_loss(scores, y, structure, lengths=lengths) < 1e-2
    scores = torch.randn(3, 50)
    y = px.sparsemap(scores, Budget(20)).marginals.to(dtype)
    assert px.sparsemap_loss(scores, y, Budget(20)) < 1e-2


def test_where_nothing_is_allowed_zeros_are_the_target():
    mask = torch.tensor([True, False])[:, None, None].expand(2, 3, 3)
    y = torch.stack([torch.eye(3), torch.zeros(3, 3)])
    loss = px.sparsemap_loss(torch.randn(2, 3, 3), y, Matching(), mask=mask, reduction="none")
    assert loss[1] == 0
