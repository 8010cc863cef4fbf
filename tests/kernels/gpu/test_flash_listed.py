"""Keys and values that are read one by one from lists, beside sums over whole blocks."""

from __future__ import annotations

import math

import pytest
import torch
import triton.language as tl
from tests.contracts.gpu.device import DEVICE

from parsimax.kernels.gpu import passes
from parsimax.kernels.gpu.flash import candidates, launch, listed, rooms
from parsimax.kernels.gpu.flash import problem as problems

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
SIDE = 64 if ON_GPU else 16
BLOCKS = (
    problems.Tiles() if ON_GPU else problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None)
)
TALL = problems.Tiles(32, 16, 4, 1, problems.First(64, 32, 4, 1), None)  # with two parts
ONE_BY_ONE = BLOCKS._replace(listed=1)
CAUSAL = (problems.UNLIMITED, 0)
LONG = (44 if ON_GPU else 14) * SIDE


@pytest.fixture(autouse=True)
def lists_of_few_blocks(monkeypatch):
    """A program of the interpreter takes a second for some twenty of them."""
    if not ON_GPU:
        for module in (candidates, launch):
            monkeypatch.setattr(module, "FEW", tl.constexpr(4))


def inputs(queries=SIDE, keys=LONG, *, items=1, heads=1, shared=1, size=16, ev=16, strength=1.0):
    generator = torch.Generator().manual_seed(queries + keys + ev)

    def draw(many, length, width):
        return torch.randn(items, many, length, width, generator=generator).to(DEVICE)

    return draw(heads, queries, size) * strength, draw(shared, keys, size), draw(shared, keys, ev)


@pytest.fixture
def maps(monkeypatch):
    """Which blocks of queries have lists, of every forward that may make some."""
    found: list[torch.Tensor] = []
    own = launch.forward

    def noting(p, train):
        out, saved = own(p, train)
        if problems.keeps_keys(p):
            found.append(saved.chosen_counts[..., 0] >= 0)
        return out, saved

    monkeypatch.setattr(launch, "forward", noting)
    return found


def results(q, k, v, tiles, alpha, **options):
    """Output without and with gradients, and these."""
    g = options.pop("g", None)
    problem = problems.Problem(
        q, k, v, options.pop("seen", None), alpha, 0.5, tiles=tiles, **options
    )
    alone, _ = launch.forward(problem, train=False)
    out, saved = launch.forward(problem, train=True)
    if g is None:
        generator = torch.Generator().manual_seed(1)
        g = torch.randn(out.shape, generator=generator).to(DEVICE, torch.bfloat16).to(out)
    found = launch.backward(problem, saved, g, want_alpha=isinstance(alpha, torch.Tensor))
    return [alone, out, *(x for x in found if x is not None)]


def check(q, k, v, alpha=1.5, *, tiles=BLOCKS, **options):
    made = results(q, k, v, tiles._replace(listed=1), alpha, **options)
    expected = results(q, k, v, tiles._replace(hold=0, listed=None), alpha, **options)
    for mine, theirs in zip(made, expected, strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("alpha", [1.4, 1.5, 2.0])
def test_values_one_by_one_give_what_blocks_give(alpha, maps):
    q, k, v = inputs(SIDE + 3, strength=0.5 if alpha == 2.0 else 1.0)
    check(q, k, v, alpha)
    assert len(maps) == 2
    assert all(each.any() for each in maps)


@pytest.mark.skipif(ON_GPU, reason="blocks have several parts there as they are")
@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.6])])
def test_blocks_of_several_parts(alpha, maps):
    check(*inputs(45), alpha, tiles=TALL)
    assert maps[0].any()


@pytest.fixture
def works(monkeypatch):
    """Who is to read lists, of every forward and backward that enlists them."""
    found: list[torch.Tensor] = []
    own = passes.Pass.allocate

    def noting(a_pass, like):
        made = own(a_pass, like)
        if "work" in made:
            found.append(made["work"])
        return made

    monkeypatch.setattr(passes.Pass, "allocate", noting)
    return found


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.6])])
def test_programs_that_go_on_to_other_blocks(alpha, maps, works, monkeypatch):
    """Those with lists are fewer than all, and programs fewer than both; each turn is had once."""
    monkeypatch.setattr(launch, "_ONE_WARP", 1)
    monkeypatch.setattr(launch, "_TOGETHER", 40 if ON_GPU else 2)
    monkeypatch.setattr(launch, "_SCRATCH", (1, 1))
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    tall = problems.Tiles() if ON_GPU else TALL
    programs = launch.multiprocessors(DEVICE)
    q, k, v = inputs((180 if ON_GPU else 9) * tall.rows)
    q[:, :, : 2 * tall.rows] *= 0.05  # too many keys for lists
    check(q, k, v, alpha, tiles=tall)
    listed_blocks = maps[0].flatten()
    assert not listed_blocks[:2].any()
    parts = tall.rows // launch._PART
    forwards, backward = works[:2], works[2]
    for work in (*forwards, backward):
        assert work[:, 0].sum() == listed_blocks.sum()
        for blocks, tickets, *numbers in work.tolist():
            # of those that have a first turn, each finds in the end that there is no other
            assert tickets == blocks * parts
            assert len(set(numbers[:blocks])) == blocks
            assert not any(numbers[blocks:])
    assert len(forwards[0]) > 1
    assert forwards[0][:, 0].max() * parts > programs


def test_nothing_is_written_beside_what_is_there_for_it(maps, monkeypatch):
    """As many blocks are enlisted as there are, a few at a time."""
    monkeypatch.setattr(launch, "_TOGETHER", 1)
    monkeypatch.setattr(launch, "_SCRATCH", (1, 1))
    beside, edges = 64, []

    def allocate(room, like):
        if room.strides is not None:
            return like.new_empty_strided(room.shape, room.strides, dtype=room.dtype)
        size = math.prod(room.shape)
        whole = like.new_full((size + 2 * beside,), 77, dtype=room.dtype)
        edges.extend([whole[:beside], whole[beside + size :]])
        made = whole[beside : beside + size].view(room.shape)
        return made.zero_() if room.zeros else made

    monkeypatch.setattr(passes.Room, "allocate", allocate)
    results(*inputs(5 * SIDE - 1), ONE_BY_ONE, 1.5)
    assert maps[0].all()
    assert edges
    assert all((edge == 77).all() for edge in edges)


def test_one_query_at_a_time(maps):
    """As with heads of more than 128."""
    q, k, v = inputs(5, size=160, ev=160, strength=0.3)
    check(q, k, v, tiles=problems.tiles_for(q, v) if ON_GPU else BLOCKS)
    assert maps[0].any()


def test_no_more_keys_than_there_is_room_for(maps, monkeypatch):
    monkeypatch.setattr(launch, "most_chosen", lambda p: 8)
    monkeypatch.setattr(rooms, "most_chosen", lambda p: 8)
    check(*inputs())
    assert not maps[0].any()


@pytest.mark.skipif(ON_GPU, reason="what is compiled keeps its constants")
def test_lists_that_take_longer_than_blocks(maps, monkeypatch):
    monkeypatch.setattr(listed, "_USUAL", tl.constexpr(5))
    data = inputs()
    results(*data, ONE_BY_ONE, 1.5)
    results(*data, ONE_BY_ONE._replace(listed=LONG // SIDE), 1.5)
    assert [each.any().item() for each in maps] == [True, True, False, False]


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.6])])
def test_the_last_step_is_taken_with_the_output(alpha, maps, monkeypatch):
    """Where thresholds are left as they are after few steps."""
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    expected = results(*inputs(), BLOCKS._replace(listed=None), alpha)
    loose = launch.Enough(5e-2, 5e-2, 5e-2)
    launch._FORWARDS.clear()
    monkeypatch.setattr(launch, "_enough", lambda p, train: loose if train else launch._EXACTLY)
    made = results(*inputs(), ONE_BY_ONE, alpha)
    assert maps[-1].any()
    assert (made[1] - expected[1]).norm() <= 1e-5 * expected[1].norm()


def test_scratch_for_a_few_blocks_at_a_time(maps, monkeypatch):
    monkeypatch.setattr(launch, "_TOGETHER", 1)
    monkeypatch.setattr(launch, "_SCRATCH", (1, 1))
    check(*inputs(5 * SIDE))
    assert maps[0].sum() > 3


@pytest.mark.parametrize("alpha", [2.5, torch.tensor([2.5])])
def test_above_two_nothing_is_kept(alpha, maps):
    """Whether a key has weight may hang on the last digit of its score, which is found anew."""
    check(*inputs(), alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha)
    assert not any(each.any() for each in maps)


def test_few_keys_are_not_worth_it(maps):
    q, k, v = inputs()
    results(q, k, v, BLOCKS._replace(listed=LONG // SIDE + 1), 1.5)
    assert not maps


def test_heads_that_differ(maps):
    """A head near softmax has too much to list, and is left to blocks."""
    q, k, v = inputs(SIDE // 2, heads=2)
    check(q, k, v, torch.tensor([1.05, 1.5], device=DEVICE))
    assert maps[0].any(-1).flatten().tolist() == [False, True]


def test_many_scores_are_left_to_blocks(maps):
    q, k, v = inputs(strength=0.05)
    check(q, k, v)
    assert not maps[0].any()


@pytest.mark.parametrize("ev", [24, 40])
def test_values_of_any_size(ev, maps):
    q, k, v = inputs(ev=ev, size=8)
    check(q, k, v)
    assert maps[0].any()


def test_causal_lengths_and_items(maps):
    q, k, v = inputs(items=2)
    lengths = torch.tensor([LONG - 7, 3], device=DEVICE)
    check(q, k, v, lengths=lengths, band=CAUSAL, offset=LONG - SIDE)
    assert maps[0][0].any()


@pytest.mark.parametrize("kind", ["bool", "keys", "added"])
def test_masks(kind, maps):
    q, k, v = inputs()
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(1, 1, SIDE, LONG, generator=generator).to(DEVICE)
    if kind == "bool":
        seen = seen > -0.5
        seen[0, 0, 5] = False  # a query that sees nothing, beside others
    if kind == "keys":
        seen = (seen[:, :, :1] > -0.5).expand(-1, -1, SIDE, -1)
    check(q, k, v, seen=seen)
    assert bool(maps) == (kind != "added")
    assert all(each.any() for each in maps)


def test_a_window(maps):
    q, k, v = inputs(SIDE + 3)
    check(q, k, v, band=(LONG - 2 * SIDE, 2), offset=LONG - SIDE)
    assert maps[0].any()


def test_positions_before_heads(maps):
    """As a model's projections lie."""
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs(heads=2, shared=2))
    check(q, k, v)
    assert maps[0].any()


@pytest.mark.parametrize("bottom_right", [False, True])
def test_packed_sequences(bottom_right, maps):
    q, k, v = inputs(SIDE + 5, LONG + 9)
    starts = (
        torch.tensor([0, 5, SIDE + 5], device=DEVICE),
        torch.tensor([0, 9, LONG + 9]).to(DEVICE),
    )
    packed = problems.Packed(starts[0], starts[1], SIDE, LONG, bottom_right)
    check(q, k, v, packed=packed, band=CAUSAL if bottom_right else None)
    assert maps[0].any()


def test_a_row_that_is_no_row_of_numbers_is_left_to_blocks(maps):
    q, k, v = inputs()
    q[0, 0, 3] = float("nan")
    out = results(q, k, v, ONE_BY_ONE, 1.5)[1]
    assert out.isnan().any(-1).nonzero()[:, -1].tolist() == [3]
    assert not maps[0].any()


@pytest.mark.parametrize(
    ("dtype", "alpha"),
    [(torch.float16, 1.5), (torch.bfloat16, 1.5), (torch.bfloat16, torch.tensor([1.6]))],
)
def test_half_precision(dtype, alpha, maps):
    q, k, v = (x.to(dtype) for x in inputs())
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    made = results(q, k, v, ONE_BY_ONE, alpha)
    wide = [x.float() for x in (q, k, v)]
    expected = results(*wide, BLOCKS._replace(listed=None), alpha)
    for mine, theirs in zip(made, expected, strict=True):
        bound = 2e-3 if dtype == torch.float16 else 1e-2
        assert (mine.float() - theirs).norm() <= bound * theirs.norm()
    assert maps[0].any()


def test_lists_that_fill_their_room(maps, monkeypatch):
    """Keys are read ahead, and there is nothing behind the last one."""
    data = inputs()
    expected = results(*data, ONE_BY_ONE, 1.5)
    _, saved = launch.forward(problems.Problem(*data, None, 1.5, 0.5, tiles=ONE_BY_ONE), train=True)
    longest = saved.chosen_counts.max().item()
    for module in (launch, rooms):
        monkeypatch.setattr(module, "most_chosen", lambda p: longest + longest % 2)
    launch._FORWARDS.clear()
    launch._BACKWARDS.clear()
    made = results(*data, ONE_BY_ONE, 1.5)
    assert all(torch.equal(*pair) for pair in zip(made, expected, strict=True))
    assert maps[-1].all()


@pytest.mark.parametrize("strength", [1.0, 0.05])
def test_the_gradient_of_an_alpha_loses_no_digits(strength, maps):
    """One query sees nothing; scores that are nearly alike are left to blocks."""
    q, k, v = (x.bfloat16() for x in inputs(strength=strength))
    alpha = torch.tensor([1.6], device=DEVICE)
    seen = torch.ones(1, 1, SIDE, LONG, dtype=torch.bool, device=DEVICE)
    seen[0, 0, 5] = False
    mine = results(q, k, v, ONE_BY_ONE, alpha, seen=seen)[-1]
    assert maps[0].all() == (strength == 1.0)
    wide = [x.float() for x in (q, k, v)]
    theirs = results(*wide, BLOCKS._replace(listed=None), alpha, seen=seen)[-1]
    assert (mine - theirs).norm() <= (1e-4 if strength == 1.0 else 1e-2) * theirs.norm()


def test_alpha_where_the_last_step_is_taken_with_the_output(maps, monkeypatch):
    q, k, v = (x.bfloat16() for x in inputs(strength=0.7))
    alpha = torch.tensor([1.6], device=DEVICE)
    wide = [x.float() for x in (q, k, v)]
    theirs = results(*wide, BLOCKS._replace(listed=None), alpha)[-1]
    loose = launch.Enough(5e-2, 5e-2, 5e-2)
    monkeypatch.setattr(launch, "_enough", lambda p, train: loose if train else launch._EXACTLY)
    mine = results(q, k, v, ONE_BY_ONE, alpha)[-1]
    assert maps[0].all()
    assert (mine - theirs).norm() <= 2e-5 * theirs.norm()  # 1e-4 if rounding is not taken out


def test_alpha_where_all_scores_are_negative(maps):
    """Beyond the end of a list, a score of 0 would lie above the threshold."""
    q, k, _ = inputs()
    q, k = q.abs(), -k.abs()
    # all rows agree on where alpha should go: else what is left of their sum has fewer digits
    check(q, k, k, torch.tensor([1.6], device=DEVICE), g=torch.ones_like(q))
    assert maps[0].any()


@pytest.mark.parametrize("alpha", [1.0, 1.1, 2.5])
def test_no_room_where_there_are_no_lists(alpha):
    q, k, v = inputs()
    problem = problems.Problem(q, k, v, None, alpha, 0.5, tiles=ONE_BY_ONE)
    found = rooms.of_forward(problem, train=True)
    assert found["chosen"].shape[2] == found["chosen_counts"].shape[2] == 0


def test_keys_of_packed_sequences_are_counted_within_them():
    long = torch.empty(1, 1, 70_000, 16)
    starts = torch.tensor([0, 1000, 70_000])
    packed = problems.Packed(starts, starts, 69_000, 1000, False)
    keys = [
        rooms.of_chosen(problems.Problem(long, long, long, None, 1.5, 0.5, packed=each), 1)
        for each in (packed, packed._replace(most_keys=69_000), None)
    ]
    assert [x.dtype for x in keys] == [torch.int16, torch.int32, torch.int32]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("keys", [1 << 16, 66_000])
def test_keys_of_more_than_fifteen_bits(keys, maps):
    check(*inputs(SIDE, keys, size=64, ev=64, strength=0.3))
    assert maps[0].any()
