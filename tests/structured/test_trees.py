"""SparseMAP over trees and monotone alignments, against all of them and another solver."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tests.oracles import trees as enumeration
from tests.oracles.polytopes import gap, nearest_marginals

import parsimax as px
from parsimax.kernels.cpu.structured import oracles

trees = px.structured
STRUCTURES = {  # structure, kind, single root, projective
    "arborescence": (trees.Arborescence(), "tree", True, False),
    "arborescence, any roots": (trees.Arborescence(single_root=False), "tree", False, False),
    "projective": (trees.ProjectiveTree(), "tree", True, True),
    "projective, any roots": (trees.ProjectiveTree(single_root=False), "tree", False, True),
    "monotone": (trees.MonotoneAlignment(), "alignment", None, None),
}
TREES = [name for name in STRUCTURES if name != "monotone"]
every = pytest.mark.parametrize("name", STRUCTURES)


@cache
def members(name: str, n: int, m: int) -> np.ndarray:
    _, kind, single_root, projective = STRUCTURES[name]
    if kind == "alignment":
        return enumeration.monotone_alignments(n, m)
    return enumeration.trees(n, single_root, projective)


def shapes(name: str) -> list[tuple[int, int]]:
    if name == "monotone":
        return [(1, 1), (1, 3), (4, 1), (3, 5), (5, 3), (4, 4)]
    return [(n, n) for n in range(1, 6)]


def random_scores(shape: tuple[int, ...], how: str) -> torch.Tensor:
    if how == "ties":
        return torch.randint(-1, 2, shape).double()
    if how == "equal":
        return torch.full(shape, 0.7, dtype=torch.float64)
    scale = {"normal": 1.0, "small": 0.1, "large": 10.0, "shifted": 1.0}[how]
    return scale * torch.randn(shape, dtype=torch.float64) + (20.0 if how == "shifted" else 0.0)


@every
@pytest.mark.parametrize("how", ["normal", "small", "large", "shifted", "ties", "equal"])
def test_marginals_are_the_nearest_point_of_the_hull(name, how):
    structure = STRUCTURES[name][0]
    for shape in shapes(name):
        scores = random_scores((4, *shape), how)
        found = px.sparsemap(scores, structure)
        assert found.converged.all()
        for z, mu in zip(scores.numpy(), found.marginals.numpy(), strict=True):
            everything = members(name, *shape)
            np.testing.assert_allclose(mu, nearest_marginals(everything, z), atol=1e-8, rtol=0)
            assert gap(everything, z, mu) <= 1e-6  # the tolerance, from all structures


@every
def test_structures_are_of_the_kind_and_mix_to_the_marginals(name):
    structure = STRUCTURES[name][0]
    shape = shapes(name)[3]
    found = px.sparsemap(random_scores((6, *shape), "normal"), structure)
    known = {s.tobytes() for s in members(name, *shape)}
    for structures, probabilities in zip(found.structures, found.probabilities, strict=True):
        active = probabilities > 0
        rows = [s.double().numpy().tobytes() for s in structures[active]]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= known
        assert (structures[~active] == 0).all()
        assert (probabilities.diff() <= 0).all()
    mixed = torch.einsum("bk,bkij->bij", found.probabilities, found.structures.double())
    torch.testing.assert_close(mixed, found.marginals, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(6).double())


@every
def test_a_shorter_length_gives_what_the_cut_input_gives(name):
    structure = STRUCTURES[name][0]
    scores = random_scores((5, 6, 6), "normal")
    sizes = torch.tensor([[6, 6], [1, 1], [4, 4], [5, 5], [2, 2]])
    if name == "monotone":
        sizes = torch.tensor([[6, 6], [1, 5], [5, 1], [3, 4], [6, 2]])
    found = px.sparsemap(scores, structure, lengths=sizes if name == "monotone" else sizes[:, 0])
    for i, (n, m) in enumerate(sizes.tolist()):
        cut = px.sparsemap(scores[i : i + 1, :n, :m], structure)
        assert torch.equal(found.marginals[i, :n, :m], cut.marginals[0])
        assert found.marginals[i, n:].abs().sum() == found.marginals[i, :, m:].abs().sum() == 0


@every
def test_a_forbidden_part_is_as_if_no_structure_had_it(name):
    structure = STRUCTURES[name][0]
    shape = shapes(name)[-1]
    everything = members(name, *shape)
    checked = 0
    for _ in range(12):
        z = random_scores(shape, "normal")
        z[torch.rand(shape) < 0.3] = -torch.inf
        banned = torch.isinf(z).numpy()
        allowed = everything[~(everything * banned).any(axis=(1, 2))]
        if len(allowed) == 0:
            continue
        checked += 1
        mu = px.sparsemap(z[None], structure).marginals[0].numpy()
        finite = np.where(banned, 0.0, z.numpy())
        np.testing.assert_allclose(mu, nearest_marginals(allowed, finite), atol=1e-8, rtol=0)
    assert checked >= 4


@every
def test_gradients(name):
    structure = STRUCTURES[name][0]
    shape = shapes(name)[3]
    scores = random_scores((3, *shape), "normal").requires_grad_()
    assert torch.autograd.gradcheck(lambda z: px.sparsemap(z, structure).marginals, scores)


@every
def test_loss(name):
    """Zero at its own solution, at least zero elsewhere; the gradient is marginals less target."""
    structure = STRUCTURES[name][0]
    shape = shapes(name)[3]
    scores = random_scores((4, *shape), "normal").requires_grad_()
    everything = torch.from_numpy(members(name, *shape))
    target = everything[torch.randint(len(everything), (4,))]
    loss = px.sparsemap_loss(scores, target, structure, reduction="none")
    marginals = px.sparsemap(scores, structure).marginals
    value = (scores * marginals).sum((1, 2)) - 0.5 * marginals.square().sum((1, 2))
    aim = (scores * target).sum((1, 2)) - 0.5 * target.square().sum((1, 2))
    torch.testing.assert_close(loss, value - aim)
    assert (loss >= 0).all()
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    torch.testing.assert_close(gradient, marginals - target, atol=1e-9, rtol=0)
    sure = px.sparsemap_loss(1e3 * target, target, structure)
    torch.testing.assert_close(sure, torch.zeros_like(sure), atol=1e-9, rtol=0)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_solved_in_float64_whatever_the_dtype(name, dtype):
    structure = STRUCTURES[name][0]
    scores = random_scores((3, *shapes(name)[3]), "normal").to(dtype)
    found = px.sparsemap(scores, structure)
    assert found.marginals.dtype == dtype
    wide = px.sparsemap(scores.double(), structure)
    assert torch.equal(found.marginals, wide.marginals.to(dtype))


def best_score(scores: np.ndarray, structure: px.structured.Structure) -> float:
    """By one MAP call."""
    kind = getattr(oracles, structure.kind)
    dims = (*scores.shape, *structure.options)
    floats, integers = oracles.workspace(kind, dims)
    chosen = np.empty(oracles.slots(kind, np.array(dims)), np.int32)
    room = np.zeros(floats), np.zeros(integers, np.int64)
    flat = np.ascontiguousarray(scores).ravel()
    oracles.map_oracle(kind, flat, np.empty(0), np.array(dims), chosen, *room)
    return float(flat[chosen].sum())


@every
def test_converges_at_length_50(name):
    structure = STRUCTURES[name][0]
    scores = random_scores((16, 50, 50), "normal")
    found = px.sparsemap(scores, structure, tol=1e-6)
    assert found.converged.all()
    left = (scores - found.marginals).numpy()
    for z, mu in zip(left, found.marginals.numpy(), strict=True):
        assert best_score(z, structure) - (z * mu).sum() <= 1e-5


# --- the numeric contract, as far as it applies to structures -------------------------------------


@every
def test_a_shift_changes_nothing(name):
    """Structures of one kind have equally many parts; integers shift without rounding."""
    structure = STRUCTURES[name][0]
    scores = torch.randint(-8, 9, (3, *shapes(name)[3])).double() / 8
    found = px.sparsemap(scores, structure).marginals
    for shift in (-1e6, 1e6):
        shifted = px.sparsemap(scores + shift, structure).marginals
        torch.testing.assert_close(shifted, found, atol=1e-12, rtol=0)


@every
def test_large_scores_choose_the_best_structure(name):
    structure = STRUCTURES[name][0]
    shape = shapes(name)[3]
    scores = 1e4 * random_scores((3, *shape), "normal")
    found = px.sparsemap(scores, structure)
    for z, mu in zip(scores.numpy(), found.marginals.numpy(), strict=True):
        everything = members(name, *shape)
        best = everything[np.tensordot(everything, z, 2).argmax()]
        np.testing.assert_array_equal(mu, best)


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(name, bad):
    structure = STRUCTURES[name][0]
    scores = random_scores((3, *shapes(name)[3]), "normal")
    alone = px.sparsemap(scores, structure).marginals
    scores[1, 0, 0] = bad
    found = px.sparsemap(scores, structure).marginals
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], alone[[0, 2]])


@every
def test_nothing_allowed_gives_zeros_and_no_gradient(name):
    structure = STRUCTURES[name][0]
    scores = random_scores((2, *shapes(name)[3]), "normal")
    scores[1] = -torch.inf
    scores.requires_grad_()
    found = px.sparsemap(scores, structure)
    assert (found.marginals[1] == 0).all()
    found.marginals.square().sum().backward()
    assert (scores.grad[1] == 0).all()
    assert scores.grad[0].abs().sum() > 0


@every
def test_layout_and_company_do_not_matter(name):
    structure = STRUCTURES[name][0]
    n, m = shapes(name)[3]
    scores = random_scores((5, n, m), "normal")
    found = px.sparsemap(scores, structure).marginals
    strided = scores.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert torch.equal(px.sparsemap(strided, structure).marginals, found)
    for i in range(5):
        assert torch.equal(px.sparsemap(scores[i : i + 1], structure).marginals[0], found[i])
    same = scores[:1].expand(4, n, m)
    assert torch.equal(px.sparsemap(same, structure).marginals, found[:1].expand(4, n, m))
    assert px.sparsemap(scores[:0], structure).marginals.shape == (0, n, m)


@every
def test_second_derivatives(name):
    structure = STRUCTURES[name][0]
    scores = random_scores((2, *shapes(name)[2]), "normal").requires_grad_()
    target = px.sparsemap(scores.detach() + 1, structure).structures[:, 0]
    assert torch.autograd.gradgradcheck(
        lambda z: px.sparsemap_loss(z, target, structure, reduction="sum"), scores
    )


@every
def test_probabilities_are_differentiable(name):
    """Through the few structures: a function of their probabilities alone."""
    structure = STRUCTURES[name][0]
    scores = random_scores((2, *shapes(name)[2]), "normal").requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: px.sparsemap(z, structure).probabilities.square().sum(), scores
    )


@pytest.mark.parametrize("name", TREES)
def test_a_tree_needs_square_scores(name):
    with pytest.raises(ValueError, match="got 3 x 4, and trees need a square"):
        px.sparsemap(torch.zeros(2, 3, 4), STRUCTURES[name][0])


@pytest.mark.parametrize("cls", [px.structured.Arborescence, px.structured.ProjectiveTree])
def test_single_root_is_a_flag(cls):
    with pytest.raises(TypeError, match="single_root must be True or False, got int 1"):
        cls(single_root=1)


def test_one_root_and_several():
    """Two words that want to hang from the root: only one may, by default."""
    scores = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    for cls in (trees.Arborescence, trees.ProjectiveTree):
        one = px.sparsemap(scores, cls()).marginals
        assert one.diagonal(dim1=1, dim2=2).sum().item() == pytest.approx(1.0)
        several = px.sparsemap(scores, cls(single_root=False)).marginals
        assert torch.equal(several[0], torch.eye(2))
