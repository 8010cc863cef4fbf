"""What every Fenchel-Young loss promises, for every registered mapping; new ones are in, too."""

import dataclasses

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.losses import oracle
from torch.func import jacfwd, jacrev

import parsimax as px
from parsimax.mappings import Mapping, registry

EXTRA = ["entmax(alpha=1.2)", "entmax(alpha=3.0)", "sparsegen(lam=0.5)", "normmax(alpha=1.5)"]
EXTRA += ["budget(k=1)", "budget(k=2.5)", "fusedmax(lam=0.4)", "oscarmax(lam=0.2)"]
WITHOUT = {"constrained_softmax", "constrained_sparsemax"}  # their bounds exclude targets
MAPPINGS = [px.mappings.parse(text) for text in [*registry(), *EXTRA] if text not in WITHOUT]
ON_SIMPLEX = [m for m in MAPPINGS if not isinstance(m, px.mappings.Budget) or m.k == 1]

every_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
every_backend = pytest.mark.parametrize("backend", AVAILABLE)


def scores(rows: int = 12, classes: int = 7, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, classes, generator=generator, dtype=torch.float64)


def targets(mapping: Mapping, rows: int = 12, classes: int = 7) -> torch.Tensor:
    """Points of the mapping's own polytope, with zeros and without."""
    return mapping(scores(rows, classes, 0.5, seed=1))


@every_backend
@every_mapping
def test_value_is_the_definition(mapping, backend):
    """Omega(y) + Omega*(z) - <z, y>, with the conjugate from a general optimiser."""
    z, y = scores(), targets(mapping)
    losses = px.fenchel_young_loss(z, y, mapping, reduction="none", backend=backend)
    name, parameter = mapping.rowmap.name, float(mapping.parameter)
    omega = oracle.OMEGA[name]
    for row, target, loss in zip(z.numpy(), y.numpy(), losses, strict=True):
        exact = oracle.conjugate(name, parameter, row) + omega(target, parameter) - row @ target
        # Omega is not smooth at the boundary, which costs the optimiser half of its digits
        assert loss.item() == pytest.approx(exact, abs=1e-6)


@every_backend
@every_mapping
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nonnegative_and_zero_at_the_output_alone(mapping, dtype, backend):
    z, y = scores().to(dtype), targets(mapping).to(dtype)
    loss = px.fenchel_young_loss(z, y, mapping, reduction="none", backend=backend)
    assert loss.gt(1e-3).all()
    own = px.fenchel_young_loss(z, mapping(z), mapping, reduction="none", backend=backend)
    # what p lacks to sum to its mass counts with |z|, about ten here
    assert own.abs().max() <= 50 * torch.finfo(dtype).eps
    if mapping in ON_SIMPLEX:
        assert own.ge(0).all()


@every_backend
@every_mapping
def test_gradient_is_p_minus_y(mapping, backend):
    z, y = scores().requires_grad_(), targets(mapping)
    loss = px.fenchel_young_loss(z, y, mapping, reduction="sum", backend=backend)
    (g,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(g, mapping(z) - y)
    assert torch.autograd.gradcheck(
        lambda z: px.fenchel_young_loss(z, y, mapping, backend=backend), (z,)
    )
    assert torch.autograd.gradgradcheck(
        lambda z: px.fenchel_young_loss(z, y, mapping, backend=backend), (z,)
    )


@every_backend
@pytest.mark.parametrize("mapping", ON_SIMPLEX, ids=str)
def test_class_indices_are_one_hot_targets(mapping, backend):
    z = scores().requires_grad_()
    index = torch.arange(12) % 7
    one_hot = torch.eye(7, dtype=torch.float64)[index]
    weight = torch.linspace(0.5, 2, 7, dtype=torch.float64)
    for smoothing in (0.0, 0.2):
        options = {"weight": weight, "reduction": "none", "backend": backend}
        options["label_smoothing"] = smoothing
        by_index = px.fenchel_young_loss(z, index, mapping, **options)
        dense = px.fenchel_young_loss(z, one_hot, mapping, **options)
        torch.testing.assert_close(by_index, dense)
        g = torch.linspace(1, 2, 12, dtype=torch.float64)
        torch.testing.assert_close(
            torch.autograd.grad(by_index, z, g), torch.autograd.grad(dense, z, g)
        )


@every_backend
@every_mapping
def test_rows_do_not_know_their_neighbours(mapping, backend):
    z, y = scores().float(), targets(mapping).float()
    together = px.fenchel_young_loss(z, y, mapping, reduction="none", backend=backend)
    for i in range(12):
        alone = px.fenchel_young_loss(z[i], y[i], mapping, backend=backend)
        assert alone.equal(together[i])


@every_backend
@every_mapping
def test_shifts_of_a_million(mapping, backend):
    z = (scores() * 8).round() / 8  # so that float32 holds the shifted scores exactly
    y = targets(mapping).float()
    plain = px.fenchel_young_loss(z.float(), y, mapping, reduction="none", backend=backend)
    moved = px.fenchel_young_loss(
        (z + 2**20).float(), y, mapping, reduction="none", backend=backend
    )
    # p of budget is z - tau with tau of the size of the scores
    torch.testing.assert_close(moved, plain, rtol=1e-6, atol=1e-6)


@every_backend
@every_mapping
def test_masked_classes(mapping, backend):
    """A class with the score -inf is as good as absent, and impossible as a target."""
    z, y = scores(12, 5), targets(mapping, 12, 5)
    gone = torch.full((12, 2), -torch.inf, dtype=torch.float64)
    wide = torch.cat([z, gone], -1).requires_grad_()
    padded = torch.cat([y, torch.zeros(12, 2, dtype=torch.float64)], -1)
    loss = px.fenchel_young_loss(wide, padded, mapping, reduction="none", backend=backend)
    wanted = px.fenchel_young_loss(z, y, mapping, reduction="none", backend=backend)
    torch.testing.assert_close(loss, wanted)
    (g,) = torch.autograd.grad(loss.sum(), wide)
    assert g[:, 5:].eq(0).all()
    assert g.isfinite().all()
    impossible = px.fenchel_young_loss(
        wide, padded.roll(1, -1), mapping, reduction="none", backend=backend
    )
    assert (impossible.isinf() == (padded.roll(1, -1)[:, 5] > 0)).all()


@every_mapping
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(mapping, dtype):
    z, y = scores().to(dtype).requires_grad_(), targets(mapping).to(dtype)
    loss = px.fenchel_young_loss(z, y, mapping)
    exact = px.fenchel_young_loss(z.double(), y.double(), mapping)
    assert loss.dtype == dtype
    torch.testing.assert_close(loss.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)
    assert torch.autograd.grad(loss, z)[0].dtype == dtype


@every_mapping
def test_no_items(mapping):
    for z in (torch.zeros(0, 7, requires_grad=True), torch.zeros(2, 7, 0, requires_grad=True)):
        y = torch.zeros(z.shape)
        assert px.fenchel_young_loss(z, y, mapping) == 0
        loss = px.fenchel_young_loss(z, y, mapping, reduction="none")
        assert loss.shape == (z.shape[0], *z.shape[2:])
        assert torch.autograd.grad(loss.sum(), z)[0].shape == z.shape


@every_mapping
def test_forward_mode_inside_forward_mode(mapping):
    """Second and third derivatives in scores and parameter, by forward mode alone."""
    z, y = scores(3, 4, scale=0.3), targets(mapping, 3, 4)  # near enough for no kink at a whole k
    name = next((field.name for field in dataclasses.fields(mapping)), None)

    def loss(z, parameter=None):
        given = mapping if parameter is None else dataclasses.replace(mapping, **{name: parameter})
        mass = mapping.rowmap.mass(1.0 if parameter is None else parameter / mapping.parameter)
        return px.fenchel_young_loss(z, y * mass, given)

    wanted = jacrev(jacrev(loss))(z)
    assert wanted.abs().max() > 1e-3
    torch.testing.assert_close(jacfwd(jacfwd(loss))(z), wanted)
    third = jacrev(jacrev(jacrev(loss)))(z)
    torch.testing.assert_close(jacfwd(jacfwd(jacfwd(loss)))(z), third)
    if name is not None:
        parameter = torch.tensor(float(mapping.parameter), dtype=torch.float64)
        for first, second in ((0, 1), (1, 0), (1, 1)):
            torch.testing.assert_close(
                jacfwd(jacfwd(loss, first), second)(z, parameter),
                jacrev(jacrev(loss, first), second)(z, parameter),
            )


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_mappings_with_bounds_have_no_loss_and_say_so(name):
    with pytest.raises(TypeError, match=f"{name} has a bound for every entry, and no .* loss"):
        px.fenchel_young_loss(scores(), torch.zeros(12, dtype=torch.long), name)
