"""One step of decoding by kernels, against loops over float64 scores."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import DEVICE

import parsimax as px
from parsimax.attention import decoding, flash, flash_decoding, functional
from parsimax.kernels.gpu.flash.decode import launch, plan, problem

# what IEEE does silently on a GPU, numpy announces
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ON_GPU = DEVICE.type == "cuda"
# Blocks of 16 keys and few programs: several of both where the interpreter takes long for each
SMALL = problem.Tiles(
    columns=16,
    rows=16,
    programs=6,
    soft_programs=6,
    value_programs=6,
    value_parts=1,
    hold=2,
    few=1,
    many=2,
    value_many=4,
    add=32,
)
BLOCK = 64 if ON_GPU else 16
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
LENGTHS = (61, 0, 23)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Small tiles in the interpreter, and fresh memory that is not a number; no plan is known."""
    monkeypatch.setattr(launch, "_PLANS", {})
    if not ON_GPU:
        monkeypatch.setattr(problem, "tiles_for", lambda *_: SMALL)
    plain = torch.Tensor.new_empty

    def poisoned(self, *shape, **options):
        fresh = plain(self, *shape, **options)
        return fresh.fill_(float("nan") if fresh.is_floating_point() else 2**14)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def draw(dtype, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def inputs(dtype=torch.float32, *, heads=1, group=1, queries=1, keys=61, size=8, ev=8):
    """Caches of three items; what they do not hold is not a number."""
    q = 2 * draw(dtype, 3, heads * group, queries, size)
    k, v = draw(dtype, 3, heads, keys, size, seed=1), draw(dtype, 3, heads, keys, ev, seed=2)
    for cache in (k, v):
        for item, length in enumerate(LENGTHS):
            cache[item, :, length:] = torch.nan
    return q, k, v


def paged(cache, page):
    """The same numbers in pages that lie in any order, and the table; unused places are wrong."""
    items, heads, keys, size = cache.shape
    columns = -(-keys // page)
    order = 1 + torch.randperm(items * columns + 2, generator=torch.Generator().manual_seed(3))
    table = order[: items * columns].reshape(items, columns).to(DEVICE)
    pages = cache.new_full((len(order) + 1, heads, page, size), torch.nan)
    pages[0] = 1.0  # where a page that is none is looked for
    for item, length in enumerate(LENGTHS):
        for at in range(columns):
            part = cache[item, :, at * page : (at + 1) * page]
            pages[table[item, at], :, : part.shape[1]] = part
            if at * page >= length:
                table[item, at] = 10**6
    return pages, table


def expected(q, k, v, alpha, lengths, *, scale=0.5, seen=None, reach=(None, None)):
    """Item by item and head by head, in float64."""
    items, heads, queries, _ = q.shape
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64, device=DEVICE)
    for item in range(items):
        length = int(lengths[item])
        place = torch.arange(queries, device=DEVICE)[:, None] + length - queries
        ahead = torch.arange(length, device=DEVICE) - place
        visible = torch.ones_like(ahead, dtype=torch.bool)
        if reach[0] is not None:
            visible &= ahead >= -reach[0]
        if reach[1] is not None:
            visible &= ahead <= reach[1]
        for head in range(heads):
            shared = head * k.shape[1] // heads
            scores = scale * q[item, head].double() @ k[item, shared, :length].double().mT
            see = visible
            if seen is not None:
                mine = seen.expand(*q.shape[:3], k.shape[2])[item, head, :, :length]
                see = visible & mine if seen.dtype == torch.bool else visible
                scores = scores if seen.dtype == torch.bool else scores + mine.double()
            a = alpha[head].double() if isinstance(alpha, torch.Tensor) else alpha
            if length:
                p = px.entmax(scores, a, mask=see)
                out[item, head] = p @ v[item, shared, :length].double()
    return out


def apart(k):
    """Keys whose blocks have little to do with each other, so that some are not read."""
    centres = draw(torch.float32, *k.shape[:2], -(-k.shape[2] // BLOCK), k.shape[3], seed=7)
    return (0.1 * k + 3 * centres.repeat_interleave(BLOCK, 2)[:, :, : k.shape[2]]).to(k.dtype)


def check(q, k, v, alpha=1.5, *, page=None, scale=0.5, seen=None, reach=(None, None), **options):
    """The result, and that with bounds of keys; ``bounded`` says that only one is asked for."""
    lengths = options.pop("lengths", torch.tensor(LENGTHS, device=DEVICE))
    right = expected(q, k, v, alpha, lengths, scale=scale, seen=seen, reach=reach)
    table = None
    if page is not None:
        (k, table), (v, _) = paged(k, page), paged(v, page)
        table = options.pop("table", table)
    both = (False, True) if page is None or page % 8 == 0 else (False,)
    bounded = options.pop("bounded", None)
    results = []
    for known in both if bounded is None else (bounded,):
        bounds = None
        if known:
            if table is None:
                k = apart(k)
                right = expected(q, k, v, alpha, lengths, scale=scale, seen=seen, reach=reach)
            block = BLOCK if k.shape[3] * k.element_size() <= 512 else BLOCK // 2
            bounds = px.attention.KeyBounds.of(k, lengths, table, block=8 if page else block)
        found = flash_decoding.flash_decode(
            q, k, v, lengths, table, seen, reach, alpha, scale, bounds
        )  # fmt: skip
        assert found.dtype == q.dtype
        off = (found.double() - right).norm() / right.norm()
        assert off <= TOLERANCE[q.dtype], off
        assert not found[1].any()  # the item without keys
        results.append(found)
    return results[0]


@pytest.mark.parametrize("alpha", [1.0, 1.02, 1.3, 1.5, 2.0])
def test_alphas(alpha):
    check(*inputs(), alpha)


def test_above_two_by_halving():
    check(*inputs(), 2.6)


def test_the_steepest_alpha_has_the_digits_that_are_promised():
    """A second key whose weight is so small that float32 may lose it; 5e-3 is in the readme."""
    weight = torch.logspace(-1, -4, 12, dtype=torch.float64, device=DEVICE)
    scores = torch.stack((0 * weight, (weight**3 - (1 - weight) ** 3) / 3), -1)
    q = torch.nn.functional.pad(scores, (0, 6)).float()[None, None]
    k = torch.eye(2, 8, device=DEVICE)[None, None]
    out = flash_decoding.flash_decode(q, k, k, None, None, None, (None, None), 4.0, 1.0)
    assert (out[0, 0, :, 1].double() - weight).abs().max() <= 5e-3
    assert (out[0, 0, :, 0].double() - 1 + weight).abs().max() <= 5e-3


def test_steeper_numbers_go_elsewhere(monkeypatch):
    q, k, v = inputs()
    for alpha, taken in ((4.0, 4.0), (4.1, None)):
        monkeypatch.setattr(flash_decoding, "kernel_alpha", lambda *_, **__: alpha)  # noqa: B023
        assert flash_decoding.decoding_alpha(q, k, v, None, False, alpha, None) == taken


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_an_alpha_for_each_head_of_a_group(dtype):
    alpha = torch.tensor((1.0, 1.3, 2.0, 1.02, 1.5, 2.5), device=DEVICE)
    check(*inputs(dtype, heads=2, group=3), alpha)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_sizes_of_heads(dtype):
    check(*inputs(dtype, size=20, ev=12))


@pytest.mark.parametrize(
    ("queries", "reach"), [(3, (None, 0)), (3, (5, 2)), (1, (7, 0)), (2, (None, None))]
)
def test_few_queries_and_windows(queries, reach):
    check(*inputs(queries=queries), reach=reach)


@pytest.mark.parametrize("page", [1, 5, 8, 32])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_pages(page, alpha):
    check(*inputs(heads=2, group=page % 2 + 1), alpha, page=page)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("page", [3, 4, 16])
def test_pages_that_a_window_hides_may_have_been_given_back(page, alpha):
    """Those of a block of which the queries see the end, too."""
    q, k, v = inputs(queries=2)
    table = paged(k, page)[1]
    for item, length in enumerate(LENGTHS):
        seen = max(0, length - 2 - 5)
        k[item, :, : seen // page * page] = torch.nan
        v[item, :, : seen // page * page] = torch.nan
        table[item, : seen // page] = -1
    (pages, _), (values, _) = paged(k, page), paged(v, page)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    found = flash_decoding.flash_decode(
        q, pages, values, lengths, table, None, (5, 0), alpha, 0.5
    )  # fmt: skip
    right = expected(
        q, k.nan_to_num(), v.nan_to_num(), alpha, lengths, reach=(5, 0)
    )  # fmt: skip
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_grids_have_one_dimension(alpha):
    """The others end at 65,535, and there may be more heads of items than that."""
    q, k, v = inputs()
    made = plan.Plan(problem.Problem(q, k, v, None, None, None, alpha, 0.5, None))
    assert all(len(launched.grid) == 1 for launched in made.chain._launches)


def test_masks():
    q, k, v = inputs(queries=2, group=2)
    noise = draw(torch.float32, 3, 2, 1, 61)
    check(q, k, v, seen=noise > -0.3, reach=(None, 0))
    check(q, k, v, seen=noise[:1, :, 0, None].where(noise[:1, :, 0, None] > -1, -torch.inf))


def test_more_rows_than_a_tile_has():
    check(*inputs(group=9, queries=2), reach=(None, 0))


@pytest.mark.parametrize("most", [0, 1 << 20])
@pytest.mark.parametrize("alpha", [1.3, torch.tensor([1.0, 1.5, 2.0, 1.2])])
def test_who_adds_up_the_parts_of_several_tiles(monkeypatch, most, alpha):
    """All of a tile in another kernel, or its last program: several tiles of six parts each."""
    monkeypatch.setattr(plan, "_MOST_ADDED", most)
    if not ON_GPU:
        few = SMALL._replace(value_parts=6)
        monkeypatch.setattr(problem, "tiles_for", lambda *_: few)
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    data = inputs(heads=2, group=2, keys=90)
    lengths = torch.tensor((90, 0, 23), device=DEVICE)
    for cache in data[1:]:
        cache[0] = cache[0].where(~cache[0].isnan(), 0.5)
    first = check(*data, alpha, lengths=lengths)
    assert torch.equal(first, check(*data, alpha, lengths=lengths))


def test_caches_with_any_strides_are_not_copied(monkeypatch):
    q, k, v = inputs(group=2)
    right = expected(q, k, v, 1.5, LENGTHS)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)  # as a model's projections lie
    v = v.mT.contiguous().mT
    lengths = torch.tensor(LENGTHS, device=DEVICE, dtype=torch.int16).repeat_interleave(2)[::2]
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: pytest.fail(f"copied {x.shape}"))
    everything = (None, None)
    out = flash_decoding.flash_decode(q, k, v, lengths, None, None, everything, 1.5, 0.5)
    assert (out - right).norm() <= 1e-5 * right.norm()


def test_what_cannot_be_gives_not_a_number_in_its_item():
    q, k, v = inputs(heads=2)
    for wrong in (62, -1, 2**40):
        lengths = torch.tensor([61, 5, wrong], device=DEVICE)
        out = flash_decoding.flash_decode(
            q, k.nan_to_num(), v.nan_to_num(), lengths, None, None, (None, None), 1.5, 0.5
        )
        assert out[2].isnan().all()
        assert out[:2].isfinite().all()
    (pages, table), (values, _) = paged(k, 5), paged(v, 5)
    table[0, 3] = len(pages)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    out = flash_decoding.flash_decode(
        q, pages, values, lengths, table, None, (None, None), 1.5, 0.5
    )
    assert out[0].isnan().all()
    assert out[1:].isfinite().all()
    alpha = torch.tensor([0.5, 1.5], device=DEVICE)
    out = flash_decoding.flash_decode(q, k, v, lengths, None, None, (None, None), alpha, 0.5)
    assert out[:, 0].isnan().all()
    assert out[:, 1].isfinite().all()


def test_what_is_not_a_number_stays_with_its_query():
    q, k, v = inputs(group=2)
    q[0, 1, 0, 3] = torch.nan
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    out = flash_decoding.flash_decode(q, k, v, lengths, None, None, (None, None), 1.5, 0.5)
    assert out[0, 1].isnan().all()
    assert out.isnan().sum() == v.shape[3]


def test_values_of_blocks_without_weight_are_not_read():
    q, k, v = inputs()
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, :, 16:48, 0] = -9.0  # the second and third blocks of 16
    v[:, :, 16:48] = torch.nan
    if ON_GPU:  # blocks of 64 there
        pytest.skip("blocks are larger on a GPU")
    lengths = torch.tensor((61, 0, 48), device=DEVICE)
    k = k.nan_to_num()
    out = flash_decoding.flash_decode(
        q, k, v.where(torch.arange(61, device=DEVICE)[:, None] >= 16, v.nan_to_num()),
        lengths, None, None, (None, None), 1.5, 0.5,
    )  # fmt: skip
    assert out.isfinite().all()


@pytest.mark.skipif(ON_GPU, reason="blocks are larger on a GPU")
def test_scores_of_blocks_without_weight_are_not_written(monkeypatch):
    monkeypatch.setattr(problem, "tiles_for", lambda *_: SMALL)
    written = []
    plain = plan.Plan.cut
    monkeypatch.setattr(plan.Plan, "cut", lambda *x: written.append(plain(*x)) or written[-1])
    q, k, v = inputs(group=2)
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, :, 16:32, 0] = k[:, :, 48:, 0] = -9.0  # the second block of each of two programs
    k[1:, :, :, 1] = torch.nan  # of one item alone there is something to see
    out = check(q, k, v, lengths=torch.tensor((61, 0, 0), device=DEVICE))
    scores = written[0]["scores"].reshape(6, -1)[:2, :64].reshape(2, 4, 16)
    assert scores[:, ::2].isfinite().all()
    assert scores[:, 1::2].isnan().all()  # the memory as it was found
    assert out[0].isfinite().all()


@pytest.mark.parametrize("alpha", [1.03, 1.2, 1.5, 2.0, torch.tensor([1.0, 1.1])])
@pytest.mark.parametrize("rising", [True, False])
def test_scores_that_are_nowhere_a_sample_of_the_others(alpha, rising):
    q, k, v = inputs(keys=61, group=2)
    slope = torch.linspace(0.0, 3.0, 61, device=DEVICE)
    q[..., 0], k[..., 0] = 4.0, slope if rising else slope.flip(0)
    alpha = alpha.to(DEVICE) if isinstance(alpha, torch.Tensor) else alpha
    for cache in (k, v):
        for item, length in enumerate(LENGTHS):
            cache[item, :, length:] = torch.nan
    check(q, k, v, alpha)


def test_operator_for_compiled_code():
    q, k, v = inputs(queries=2)
    (pages, table), (values, _) = paged(k, 16), paged(v, 16)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    arguments = (q, pages, values, lengths, table, None, None, 1.5, 0.5, 1 << 30, 0)
    torch.library.opcheck(
        flash_decoding._operator, arguments, test_utils=("test_schema", "test_faketensor")
    )
    eager = flash_decoding.flash_decode(*arguments[:6], (None, 0), 1.5, 0.5)
    assert torch.equal(flash_decoding._operator(*arguments), eager)


@pytest.mark.parametrize("options", [{"window": 9}, {"is_causal": False, "window": (9, 1)}])
def test_the_front_door_says_the_same(monkeypatch, options):
    q, k, v = inputs(group=2, queries=3)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    (pages, table), (values, _) = paged(k, 5), paged(v, 5)
    taken = []

    def choose(*arguments):
        taken.append(arguments[4])
        return 1.3

    wanted = px.attention.decode(q.double(), k.double(), v.double(), lengths, enable_gqa=True,
                                 alpha=1.3, **options)  # fmt: skip
    monkeypatch.setattr(decoding, "decoding_alpha", choose)
    for caches in ((k, v, lengths), (pages, values, lengths, table)):
        found = px.attention.decode(q, *caches, enable_gqa=True, alpha=1.3, **options)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert taken == [True, True]


BOTTOM = {"causal_align": "bottom-right"}
STEPS = (
    {},
    {"key_lengths": LENGTHS},
    {"attn_mask": "keys", "scale": -0.3},
    {"attn_mask": "added"},
    {"is_causal": True, "window": (9, 0), **BOTTOM},
)
NO_STEPS = (
    {"is_causal": True},  # the first query stands at the first key
    {"is_causal": True, "key_lengths": LENGTHS, **BOTTOM},  # and the last not at the last length
    {"learned": True},
    {"queries": 17},
)


def _call(q, k, v, *, attn_mask=None, key_lengths=None, learned=False, queries=None, **options):
    if attn_mask is not None:
        attn_mask = draw(torch.float32, 3, 1, 1, k.shape[2], seed=5)
        attn_mask = attn_mask > -0.5 if options.get("scale") else attn_mask.to(q.dtype)
    if key_lengths is not None:
        options["key_lengths"] = torch.tensor(key_lengths, device=DEVICE)
    alpha = torch.tensor((1.3, 1.6), device=DEVICE, requires_grad=True) if learned else 1.3
    return px.attention(q, k, v, attn_mask, enable_gqa=True, alpha=alpha, **options)


@pytest.mark.parametrize("options", STEPS)
def test_few_queries_of_attention_are_a_step(monkeypatch, options):
    q, k, v = inputs(group=2, queries=3)
    k, v = k.nan_to_num(), v.nan_to_num()
    wanted = _call(q.double(), k.double(), v.double(), **options)
    monkeypatch.setattr(functional, "kernel_alpha", lambda *_: 1.3)
    monkeypatch.setattr(functional, "few_keys", lambda *_: False)
    monkeypatch.setattr(functional, "_MANY_KEYS", 1)
    monkeypatch.setattr(flash, "flash_attention", pytest.fail)
    found = _call(q, k, v, **options)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", NO_STEPS)
def test_what_is_no_step_stays_with_the_other_kernels(monkeypatch, options):
    q, k, v = inputs(group=2, queries=options.get("queries", 3))
    monkeypatch.setattr(functional, "kernel_alpha", lambda *arguments: arguments[3])
    monkeypatch.setattr(functional, "few_keys", lambda *_: False)
    monkeypatch.setattr(functional, "_MANY_KEYS", 1)
    monkeypatch.setattr(functional, "flash_decode", pytest.fail)
    monkeypatch.setattr(flash, "flash_attention", lambda *_: "others")
    assert _call(q, k, v, **options) == "others"


def test_few_rows_with_an_alpha_each_have_more_warps(monkeypatch):
    monkeypatch.undo()
    few, many = (torch.empty(items, 32, 1, 64, device="meta") for items in (1, 8))
    alphas = torch.empty(32, device="meta")
    assert problem.tiles_for(few, few, 1.5) == problem.tiles_for(many, many, alphas)
    assert problem.tiles_for(few, few, alphas).solve_warps > problem.Tiles().solve_warps


def test_scores_are_kept_only_if_they_take_little_memory():
    few = flash_decoding.few_scores

    def meta(*shape):
        return torch.empty(shape, device="meta")

    assert few(meta(2, 8, 16, 16), meta(2, 1, 4096, 16))
    cache = meta(64, 8, 1 << 17, 128)
    assert few(meta(64, 32, 1, 128), cache)
    assert not few(meta(64, 32, 16, 128), cache)


# --- on a GPU alone: what is too large for the interpreter, and what only the front door does ---

gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU")


@gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [16, 40, 64, 128, 256])
def test_lengths_that_are_no_power_of_two(monkeypatch, dtype, size):
    lengths = (5003, 0, 517)
    monkeypatch.setattr("tests.kernels.gpu.test_decode.LENGTHS", lengths)
    data = inputs(dtype, heads=2, group=8, keys=5003, size=size, ev=size)
    options = {"lengths": torch.tensor(lengths, device=DEVICE), "scale": size**-0.5}
    check(*data, 1.5, **options)
    check(*data, torch.linspace(1.0, 2.0, 16, device=DEVICE), page=16, **options)


@gpu
def test_the_same_bits_whoever_comes_last():
    """Parts of a tile are added up in their order, not in that in which programs end."""
    q, k, v = inputs(torch.bfloat16, heads=8, group=4, keys=20_011, size=128, ev=128)
    k, v = (draw(torch.bfloat16, 3, 8, 20_011, 128, seed=seed) for seed in (1, 2))
    lengths = torch.tensor((20_011, 0, 517), device=DEVICE)
    first = px.attention.decode(q, k, v, lengths, enable_gqa=True)
    right = expected(q, k, v, 1.5, lengths, scale=128**-0.5)
    assert (first.double() - right).norm() <= 1e-2 * right.norm()
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for turn in range(200):
        with torch.cuda.stream(streams[turn % 2]):
            found.append(px.attention.decode(q, k, v, lengths, enable_gqa=True))
    torch.cuda.synchronize()
    assert all(torch.equal(first, one) for one in found)


@gpu
def test_a_step_is_captured_and_lengths_change_afterwards():
    q, k, v = inputs(torch.bfloat16, group=4, size=64, ev=64)
    lengths = torch.tensor(LENGTHS, device=DEVICE)

    def step():
        return px.attention.decode(q, k, v, lengths, enable_gqa=True)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    lengths.copy_(torch.tensor((5, 0, 12)))
    for _ in range(20):  # kernels of a step start before those before them have ended
        out.zero_()
        graph.replay()
        assert torch.equal(out, step())


@gpu
def test_compiled_and_what_needs_gradients():
    torch._dynamo.reset()
    q, k, v = inputs(torch.bfloat16, group=4, size=64, ev=64)
    lengths = torch.tensor(LENGTHS, device=DEVICE)

    def step(q, lengths, **options):
        return px.attention.decode(q, k, v, lengths, enable_gqa=True, **options)

    for options in ({}, {"alpha": 1.3}):  # a default is a number of another class
        compiled = torch.compile(step, fullgraph=True)(q, lengths, **options)
        assert torch.equal(compiled, step(q, lengths, **options))
    leaf = q.detach().requires_grad_()
    arguments = (k, v, None, True, 1.5, None)
    assert flash_decoding.decoding_alpha(q, *arguments) == 1.5
    assert flash_decoding.decoding_alpha(leaf, *arguments) is None
    (gradient,) = torch.autograd.grad(step(leaf, lengths).sum(), leaf)
    assert gradient.isfinite().all()
