"""Scores above a first threshold, kept in lists, beside keys that are read for every step."""

from __future__ import annotations

import pytest
import torch
import triton.language as tl
from tests.contracts.gpu.device import DEVICE

from parsimax.kernels.gpu import passes
from parsimax.kernels.gpu.flash import candidates, launch
from parsimax.kernels.gpu.flash import problem as problems

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SIDE = 64 if ON_GPU else 16
LISTS = (
    problems.Tiles() if ON_GPU else problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
)
SWEEPS = LISTS._replace(hold=0)
CAUSAL = (problems.UNLIMITED, 0)
# More than those that are read again in any case, and than are looked at first. In the interpreter
# a program takes a second for some twenty of them.
FEW, LOOK, BLOCKS = (24, 16, 40) if ON_GPU else (5, 4, 14)


@pytest.fixture(autouse=True)
def lists_of_few_blocks(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(candidates, "_LOOK", tl.constexpr(LOOK))
        for module in (candidates, launch):
            monkeypatch.setattr(module, "FEW", tl.constexpr(FEW))


def inputs(queries=2 * SIDE, keys=BLOCKS * SIDE, *, items=1, heads=2, strength=1.0, size=16):
    generator = torch.Generator().manual_seed(queries + keys)

    def draw(length):
        return torch.randn(items, heads, length, size, generator=generator).to(DEVICE)

    return draw(queries) * strength, draw(keys), draw(keys)


@pytest.fixture
def rooms(monkeypatch):
    """Lists, and who has them, of every forward; they are NaN before it."""
    found = []
    own = passes.Pass.allocate

    def noting(a_pass, like):
        made = own(a_pass, like)
        if "lists" in made:
            found.append((made["lists"].fill_(float("nan")), made["taken"]))
        return made

    monkeypatch.setattr(passes.Pass, "allocate", noting)
    return found


def results(q, k, v, tiles, alpha, seen=None, **options):
    """(map of live blocks, output and all gradients)."""
    problem = problems.Problem(q, k, v, seen, alpha, 0.3, tiles=tiles, **options)
    out, saved = launch.forward(problem, train=True)
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(out.shape, generator=generator).to(DEVICE)
    found = launch.backward(problem, saved, g, want_alpha=isinstance(alpha, torch.Tensor))
    return saved.live, [out, *(x for x in found if x is not None)]


def check(q, k, v, alpha=1.5, tiles=LISTS, **options):
    live, made = results(q, k, v, tiles, alpha, **options)
    expected_live, expected = results(q, k, v, SWEEPS, alpha, **options)
    assert torch.equal(live, expected_live)
    for mine, theirs in zip(made, expected, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


def used(room):
    """How many places of lists have been written to."""
    lists, _ = room
    return int((~lists.isnan()).sum())


@pytest.mark.parametrize("alpha", [1.4, 1.5, 2.0, 2.5])
def test_lists_give_what_sweeps_give(alpha, rooms):
    q, k, v = inputs(SIDE + 3, BLOCKS * SIDE - 5, heads=1)
    check(q, k, v, alpha)
    assert used(rooms[0]) > 0


@pytest.mark.parametrize(("alpha", "blocks"), [(1.02, BLOCKS), (1.1, BLOCKS), (1.5, FEW), (1.4, 4)])
def test_there_is_no_room_for_lists_that_are_never_made(alpha, blocks, rooms):
    """Near softmax, and of few blocks."""
    q, k, v = inputs(4, blocks * SIDE, heads=1)
    check(q, k, v, alpha)
    assert rooms[0][0].numel() == 0


@pytest.mark.skipif(ON_GPU, reason="tiles are small here")
@pytest.mark.parametrize(("alpha", "lists"), [(1.5, False), (2.0, False), (1.4, True)])
def test_where_keys_are_kept_other_lists_are_of_powers_alone(alpha, lists, rooms):
    """Nine blocks are too few to keep keys for."""
    q, k, v = inputs(SIDE, BLOCKS * SIDE, heads=1)
    for least, made in ((10, lists), (9, True)):
        options = {"lengths": torch.tensor([9 * SIDE - 5])}
        results(q, k, v, LISTS._replace(listed=least), alpha, **options)
        assert (used(rooms[-1]) > 0) is made


def test_heads_with_and_without_lists(rooms):
    q, k, v = inputs(SIDE // 2, heads=3)
    check(q, k, v, torch.tensor([1.02, 1.1, 1.6], device=DEVICE))
    assert used(rooms[0]) > 0


@pytest.mark.parametrize("strength", [0.02, 0.3])
def test_more_scores_than_lists_have_room_for(strength, rooms):
    """Which is clear after few blocks."""
    q, k, v = inputs(SIDE, heads=1, strength=strength)
    check(q, k, v, 1.5, LISTS._replace(hold=16))
    assert used(rooms[0]) > 0


def test_many_scores_that_come_late_do_not_fit(rooms):
    """It shows only after the last block; the last keys are all the same."""
    q, k, v = inputs(SIDE, heads=1)
    late = (BLOCKS - 5) * SIDE
    k[:, :, late:] = k[:, :, late : late + 1]
    k[:, :, :late] *= 0.9
    check(q, k, v, 1.5, LISTS._replace(hold=24 if ON_GPU else 8))
    assert used(rooms[0]) > 0


def test_causal_and_lengths(rooms):
    q, k, v = inputs(BLOCKS * SIDE, heads=1)
    check(q[:, :, -2 * SIDE :], k, v, band=CAUSAL, offset=(BLOCKS - 2) * SIDE)
    lengths = torch.tensor([(BLOCKS - 5) * SIDE + 1], device=DEVICE)
    check(q[:, :, :SIDE], k, v, lengths=lengths)
    assert used(rooms[0]) > 0
    assert used(rooms[2]) > 0


@pytest.mark.parametrize("kind", ["bool", "added"])
def test_masks(kind, rooms):
    q, k, v = inputs(SIDE, heads=1)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(1, 1, SIDE, BLOCKS * SIDE, generator=generator).to(DEVICE)
    check(q, k, v, seen=seen > -0.5 if kind == "bool" else seen)
    assert used(rooms[0]) > 0


def test_what_is_not_a_number_stays_in_its_row(rooms):
    q, k, v = inputs(SIDE, heads=1)
    q[0, 0, 3] = float("nan")
    _, (out, *_) = results(q, k, v, LISTS, 1.5)
    assert out.isnan().any(-1).nonzero()[:, -1].tolist() == [3]
    assert used(rooms[0]) > 0


def test_programs_share_places_and_give_them_back(rooms, monkeypatch):
    monkeypatch.setattr(launch, "_AT_A_TIME", 1)
    q, k, v = inputs(SIDE * (300 if ON_GPU else 1), heads=3)
    check(q, k, v)
    lists, taken = rooms[0]
    assert len(lists) < 3 * (300 if ON_GPU else 1)
    assert not taken.any()


def test_the_same_bits_every_time():
    q, k, v = inputs(heads=1)
    _, one = results(q, k, v, LISTS, 1.5)
    _, two = results(q, k, v, LISTS, 1.5)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
