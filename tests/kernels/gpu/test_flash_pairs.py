"""Tiles of two blocks, where these have weight almost everywhere, beside tiles of one."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE

from parsimax.kernels.gpu.flash import launch
from parsimax.kernels.gpu.flash import problem as problems

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SIDE = 64 if ON_GPU else 16
ONE = (
    problems.Tiles() if ON_GPU else problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
)
TWO = ONE._replace(pairs=True, tall=True)
CAUSAL = (problems.UNLIMITED, 0)


def inputs(queries, keys, *, items=1, heads=2, shared=2, size=16):
    """The last queries of the first head see all blocks, and the others only some."""
    generator = torch.Generator().manual_seed(queries + keys)

    def draw(many, length):
        return torch.randn(items, many, length, size, generator=generator).to(DEVICE)

    q, k, v = draw(heads, queries), draw(shared, keys), draw(shared, keys)
    q *= 0.3  # such scores that all blocks have weight
    q[..., 0], k[..., 0] = 0.0, 0.0
    k[:, :, SIDE : 2 * SIDE, 0] = -1.0
    q[:, 1:, :, 0] = 40.0  # second head: a block far below the others
    q[:, :, : 2 * SIDE, 0] = 40.0
    return q, k, v


def results(q, k, v, tiles, alpha=1.5, **options):
    """(counts of live blocks, output and all gradients)."""
    options = {"band": None, **options}
    problem = problems.Problem(q, k, v, None, alpha, 0.5, tiles=tiles, **options)
    out, saved = launch.forward(problem, train=True)
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(out.shape, generator=generator).to(DEVICE)
    found = launch.backward(problem, saved, g, want_alpha=isinstance(alpha, torch.Tensor))
    return saved, [out, *(x for x in found if x is not None)]


def check(q, k, v, alpha=1.5, **options):
    one, expected = results(q, k, v, ONE, alpha, **options)
    two, made = results(q, k, v, TWO, alpha, **options)
    assert torch.equal(one.live, two.live)
    assert torch.equal(one.row_lists[1], two.row_lists[1])
    for mine, theirs in zip(made, expected, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()
    return one.live.bool()


def note_launches(kernel, told, monkeypatch):
    """Write down for whom each launch of the kernel is: nobody, others or pairs."""
    run = kernel.__class__.__getitem__

    class Noting:
        def __getitem__(self, grid):
            def launched(*arguments, **options):
                told.append(options["PAIRS"])
                return run(kernel, grid)(*arguments, **options)

            return launched

    monkeypatch.setattr(launch, "output_kernel", Noting())


@pytest.mark.parametrize(
    ("queries", "keys", "band"),
    [(4, 4, None), (4, 4, CAUSAL), (5, 3, (3 * SIDE, SIDE // 2)), (5, 3, CAUSAL)],
)
def test_pairs_give_what_single_blocks_give(queries, keys, band):
    q, k, v = inputs(queries * SIDE, keys * SIDE)
    check(q, k, v, band=band)


def test_some_pairs_see_all_and_some_do_not():
    q, k, v = inputs(6 * SIDE, 4 * SIDE)
    live = check(q, k, v)
    assert live[:, 0, 2:].all()
    assert not live[:, 1].all(-1).any()
    assert not live[:, 0, :2].all(-1).any()


@pytest.mark.parametrize("band", [None, CAUSAL])
def test_the_last_blocks_are_not_whole(band):
    q, k, v = inputs(3 * SIDE + 5, 4 * SIDE - 3)
    check(q, k, v, band=band, offset=SIDE)


def test_heads_that_share_keys_and_lengths():
    q, k, v = inputs(2 * SIDE + 2, 4 * SIDE, items=2, heads=4)
    lengths = torch.tensor([4 * SIDE - 7, 0], device=DEVICE)
    check(q, k, v, lengths=lengths)


@pytest.mark.parametrize("alphas", [(1.02, 1.4), (1.0, 2.5)])
def test_an_alpha_for_each_head(alphas):
    q, k, v = inputs(2 * SIDE, 2 * SIDE)
    check(q, k, v, torch.tensor(alphas, device=DEVICE), band=CAUSAL)


def test_what_is_not_a_number_stays_where_it_is():
    """Also at the end of a head whose last tall block has no second half."""
    q, k, v = inputs(3 * SIDE, 4 * SIDE)
    q[0, 0, -1] = float("nan")
    _, expected = results(q, k, v, ONE)
    _, made = results(q, k, v, TWO)
    assert torch.equal(made[0].isnan(), expected[0].isnan())
    assert made[0].isnan().any(-1).sum() == 1
    assert torch.equal(made[1].isnan(), expected[1].isnan())


def test_launches_for_pairs_are_there_only_if_asked_for(monkeypatch):
    told: list[int] = []
    q, k, v = inputs(2 * SIDE, 2 * SIDE)
    note_launches(launch.output_kernel, told, monkeypatch)
    for tiles in (ONE, TWO):
        problem = problems.Problem(q, k, v, None, 1.5, 0.5, tiles=tiles)
        launch.forward(problem, train=False)
    assert told == [0, 2, 1]
