"""Derivatives of sparsemap in scores and transitions, of all results, and of any order."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import parsimax as px
from parsimax.structured import Budget, FromOracle, Matching, Sequence


def best_subset(z):
    return (z > 0).double()


STRUCTURES = {
    "matching": (Matching(), (4, 4)),
    "wide": (Matching(), (3, 5)),
    "budget": (Budget(2), (6,)),
    "python": (FromOracle(best_subset), (5,)),
    "sequence": (Sequence(), (4, 3)),
}
every = pytest.mark.parametrize("name", STRUCTURES)


def leaf(*shape):
    return torch.randn(*shape).double().requires_grad_()


@every
def test_scores(name):
    structure, shape = STRUCTURES[name]

    def both(z):
        r = px.sparsemap(z, structure)
        return r.marginals, r.probabilities

    assert gradcheck(both, leaf(3, *shape), check_forward_ad=True)
    assert gradgradcheck(lambda z: both(z)[0].square(), leaf(2, *shape))


@pytest.mark.parametrize("shape", [(3, 3, 4, 4), (1, 3, 4, 4), (3, 1, 4, 4), (3, 4, 4), (4, 4)])
def test_transitions(shape):
    def everything(z, t):
        r = px.sparsemap(z, Sequence(t))
        return r.marginals, r.probabilities, r.edge_marginals

    scores, transitions = leaf(3, 4, 4), leaf(*shape)
    assert gradcheck(everything, (scores, transitions), check_forward_ad=True)
    # through transitions alone, and scores alone
    assert gradcheck(lambda t: everything(scores.detach(), t), transitions)
    assert gradcheck(lambda z: everything(z, transitions.detach()), scores)
    assert gradgradcheck(lambda z, t: everything(z, t)[0].square(), (scores, transitions))


def test_a_function_of_structures():
    """The expectation of any function over the found structures has a gradient."""
    scores = leaf(2, 5, 5)

    def risk(z):
        r = px.sparsemap(z, Matching())
        cost = (r.structures * torch.arange(25.0).reshape(5, 5)).sum((-1, -2)).square()
        return (r.probabilities * cost).sum(-1)

    assert gradcheck(risk, scores)


@every
def test_lengths_and_masks(name):
    structure, shape = STRUCTURES[name]
    scores = leaf(2, *shape)
    lengths = torch.tensor([3, 2])
    mask = torch.rand(2, *shape) > 0.2
    mask[..., :2] = True
    if len(shape) == 2:
        mask |= torch.eye(*shape, dtype=torch.bool)
    assert gradcheck(lambda z: px.sparsemap(z, structure, lengths).marginals, scores)
    assert gradcheck(lambda z: px.sparsemap(z, structure, mask=mask).marginals, scores)
    (g,) = torch.autograd.grad(px.sparsemap(scores, structure, lengths).marginals[0].sum(), scores)
    assert not g[1].any()


def test_warm_starts_have_the_same_gradient():
    scores = leaf(2, 6, 6)
    weights = torch.randn(2, 6, 6).double()
    cold = px.sparsemap(scores, Matching())
    warm = px.sparsemap(scores, Matching(), warm_start=cold)
    want, got = (
        torch.autograd.grad((r.marginals * weights).sum(), scores)[0] for r in (cold, warm)
    )
    torch.testing.assert_close(got, want)


def test_torch_func():
    t = torch.randn(3, 4, 4).double()
    z = torch.randn(4, 4).double()

    def one(z, t=t):
        return px.sparsemap(z[None], Sequence(t)).marginals[0]

    want = torch.autograd.functional.jacobian(one, z)
    torch.testing.assert_close(jacrev(one)(z), want)
    torch.testing.assert_close(jacfwd(one)(z), want)
    torch.testing.assert_close(want, want.permute(2, 3, 0, 1))  # symmetric
    direction = torch.randn_like(z)
    torch.testing.assert_close(jvp(one, (z,), (direction,))[1], torch.tensordot(want, direction, 2))
    batch = torch.randn(5, 4, 4).double()
    each = torch.stack([one(x) for x in batch])
    torch.testing.assert_close(vmap(one)(batch), each)
    per_instance = vmap(grad(lambda x: one(x).square().sum()))(batch)
    loop = torch.stack([grad(lambda x: one(x).square().sum())(x) for x in batch])
    torch.testing.assert_close(per_instance, loop)
    ts = torch.randn(5, 3, 4, 4).double()
    torch.testing.assert_close(
        vmap(one, in_dims=(None, 0))(z, ts), torch.stack([one(z, x) for x in ts])
    )
    # half the squared norm of marginals has the Hessian J'J of a piecewise linear map
    square = hessian(lambda x: one(x).square().sum() / 2)(z)
    torch.testing.assert_close(square, torch.tensordot(want, want, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_have_the_dtype_of_their_argument(dtype):
    scores = torch.randn(2, 4, 3, dtype=dtype, requires_grad=True)
    transitions = torch.randn(3, 3, requires_grad=True)
    r = px.sparsemap(scores, Sequence(transitions))
    (r.marginals.square().sum() + r.probabilities[:, 0].sum()).backward()
    assert scores.grad.dtype == dtype
    assert transitions.grad.dtype == torch.float32
    exact = [x.detach().double().requires_grad_() for x in (scores, transitions)]
    wide = px.sparsemap(exact[0], Sequence(exact[1]))
    (wide.marginals.square().sum() + wide.probabilities[:, 0].sum()).backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(scores.grad.double(), exact[0].grad, atol=tolerance, rtol=tolerance)


def test_a_gradient_that_nobody_asked_for():
    transitions = torch.randn(3, 3, requires_grad=True)
    r = px.sparsemap(torch.randn(2, 4, 3), Sequence(transitions))
    r.marginals.square().sum().backward()
    assert transitions.grad.any()
    with torch.no_grad():
        assert not px.sparsemap(torch.randn(2, 4, 3), Sequence(transitions)).marginals.requires_grad


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.transitions = torch.nn.Parameter(torch.zeros(3, 3))

    def forward(self, x):
        return px.sparsemap(x, Sequence(self.transitions)).marginals


def test_transitions_learn():
    """A tagger whose scores say nothing learns which label follows which."""
    tagger = Tagger()
    target = torch.eye(3)[torch.tensor([[0, 1, 2, 0, 1, 2]])]
    scores = 0.1 * torch.randn(1, 6, 3)
    scores[0, 0, 0] = 1.0
    optimizer = torch.optim.SGD(tagger.parameters(), 0.5)
    for _ in range(60):
        loss = px.sparsemap_loss(scores, target, Sequence(tagger.transitions))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(tagger(scores).argmax(-1), target.argmax(-1))
    assert loss < 0.01
    swapped = {"transitions": -tagger.transitions}
    worse = functional_call(tagger, swapped, (scores,))
    assert not torch.equal(worse.argmax(-1), target.argmax(-1))


@every
def test_hessians(name):
    """Forward over reverse mode, twice: nothing of one transform may be kept for the next."""
    structure, shape = STRUCTURES[name]
    z = torch.randn(*shape).double()

    def energy(x):
        return px.sparsemap(x[None], structure).marginals.square().sum() / 2

    want = torch.autograd.functional.hessian(energy, z)
    for _ in range(2):
        torch.testing.assert_close(jacfwd(grad(energy))(z), want)
        torch.testing.assert_close(hessian(energy)(z), want)


def test_a_compiled_graph_is_cut_and_goes_on():
    weight = torch.randn(5, 4, requires_grad=True)

    def model(x):
        z = (x @ weight).relu()
        return (px.sparsemap(z, Matching()).marginals * z).sum()

    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        x = torch.randn(2, 4, 5)
        want, got = model(x), compiled(x)
        assert torch.equal(got, want)
        assert torch.equal(*(torch.autograd.grad(y, weight)[0] for y in (want, got)))


def test_vmap_over_an_oracle_in_python():
    structure = FromOracle(lambda z: torch.eye(z.shape[1])[z.argmax(-1)])
    scores = torch.randn(4, 2, 3, 3).double()
    want = torch.stack([px.sparsemap(x, structure).marginals for x in scores])
    got = vmap(lambda x: px.sparsemap(x, structure).marginals)(scores)
    torch.testing.assert_close(got, want)
    nested = vmap(vmap(lambda x: px.sparsemap(x[None], structure).marginals[0]))(scores)
    torch.testing.assert_close(nested, want)
    lengths = torch.tensor([[3, 2], [1, 3]])
    want = torch.stack([px.sparsemap(x, structure, lengths=lengths).marginals for x in scores])
    got = vmap(lambda x: px.sparsemap(x, structure, lengths=lengths).marginals)(scores)
    torch.testing.assert_close(got, want)


def test_transitions_keep_their_digits_beside_half_scores():
    torch.manual_seed(0)
    scores = torch.randn(3, 5, 4, dtype=torch.bfloat16)
    transitions = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randint(-4, 5, (3, 5, 4)).to(torch.bfloat16)
    # the gradient that arrives is exact in bfloat16, and so is every step after it in float64
    got, want = (
        torch.autograd.grad((r.marginals * weights.to(r.marginals.dtype)).sum(), transitions)[0]
        for r in (
            px.sparsemap(scores, Sequence(transitions)),
            px.sparsemap(scores.double(), Sequence(transitions)),
        )
    )
    assert want.abs().max() > 0.1
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    _, tangent = jvp(
        lambda t: px.sparsemap(scores, Sequence(t)).marginals,
        (transitions.detach(),),
        (torch.ones_like(transitions),),
    )
    assert tangent.dtype == torch.bfloat16
