"""Attention tile by tile: against loops, against the plain path, and how much memory it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.attention import loops
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import parsimax as px
from parsimax.attention import tiled, tiles
from parsimax.attention.visibility import Band

B, HQ, E, EV = 2, 4, 3, 2


@pytest.fixture(params=["weights are kept", "weights are computed again"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem is cut, into tiles of a few rows."""
    if request.param == "weights are computed again":
        monkeypatch.setitem(tiled._KEPT, "cpu", -1)
    monkeypatch.setitem(tiled._LARGE, "cpu", -1)
    monkeypatch.setitem(tiled._ROOM, "cpu", 30 // min(8, torch.get_num_threads()))
    monkeypatch.setattr(tiles, "_LEAST_ROWS", 2)
    monkeypatch.setattr(tiles, "_MOST_ROWS", 3)


def plainly(monkeypatch: pytest.MonkeyPatch, function: Any) -> Any:
    with monkeypatch.context() as inside:
        inside.setitem(tiled._LARGE, "cpu", 1 << 60)
        return function()


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def qkv(seed: int, kv_heads: int = HQ, lq: int = 7, lk: int = 9) -> tuple[Tensor, ...]:
    q = 3 * rand(seed, B, HQ, lq, E)  # far enough apart for zeros
    return q, rand(seed + 1, B, kv_heads, lk, E), rand(seed + 2, B, kv_heads, lk, EV)


def gradients(inputs: list[Tensor], **kwargs: Any) -> tuple[Tensor, ...]:
    """Output, and gradients of everything in ``inputs`` or in the arguments that has one."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    named = {
        name: x.detach().clone().requires_grad_()
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for name, x in kwargs.items()
    }
    output = px.attention(*leaves, **named)
    wanted = leaves + [x for x in named.values() if isinstance(x, Tensor) and x.requires_grad]
    return output, *torch.autograd.grad((output * rand(77, *output.shape)).sum(), wanted)


sides = st.sampled_from([None, -1, 0, 1, 4])
windows = st.one_of(st.none(), st.sampled_from([0, 2, 5]), st.tuples(sides, sides))


@pytest.mark.usefixtures("small_tiles")
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    alpha=st.sampled_from([1.0, 1.5, 1.7, "head", "query", "all"]),
    mask=st.sampled_from(["none", "bool", "added", "added to all"]),
    causal=st.booleans(),
    kv_heads=st.sampled_from([1, 2, 4]),
    lq=st.integers(1, 11),
    lk=st.integers(1, 11),
    align=st.sampled_from(["top-left", "bottom-right"]),
    window=windows,
    lengths=st.one_of(st.none(), st.tuples(st.integers(0, 11), st.integers(0, 11))),
    seed=st.integers(0, 1000),
)
def test_equals_loops_and_the_plain_path_with_every_argument(
    monkeypatch: pytest.MonkeyPatch,
    alpha: Any,
    mask: str,
    causal: bool,
    kv_heads: int,
    lq: int,
    lk: int,
    align: str,
    window: Any,
    lengths: tuple[int, int] | None,
    seed: int,
) -> None:
    q, k, v = qkv(seed, kv_heads, lq, lk)
    value = alpha
    if isinstance(alpha, str):
        shape = {"head": (HQ,), "query": (lq, 1), "all": (B, HQ, lq, 1)}[alpha]
        value = 1 + 1.5 * rand(seed + 5, *shape).sigmoid()
    numbers = torch.as_tensor(value, dtype=torch.float64)
    full = (numbers.view(-1, 1, 1) if alpha == "head" else numbers).expand(B, HQ, lq, 1)
    noise = rand(seed + 3, *((B, HQ) if mask == "added to all" else (B, 1)), lq, lk)
    attn_mask = {"none": None, "bool": noise > -0.5}.get(mask, noise)
    if lengths is not None:
        lengths = min(lengths[0], lk), min(lengths[1], lk)
    arguments: dict[str, Any] = {
        "attn_mask": attn_mask,
        "is_causal": causal,
        "enable_gqa": True,
        "alpha": value,
        "causal_align": align,
        "window": window,
        "key_lengths": None if lengths is None else torch.tensor(lengths),
    }
    found = gradients([q, k, v], **arguments)
    expected, _ = loops.attention(
        q,
        k,
        v,
        lambda b, h, i: float(full[b, h, i, 0]),
        mask=attn_mask,
        causal=causal,
        align=align,
        window=window,
        lengths=lengths,
    )
    # bisection in the loops ends at about 1e-13, and a power may have any slope above alpha = 2
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    plain = plainly(monkeypatch, lambda: gradients([q, k, v], **arguments))
    for mine, theirs in zip(found, plain, strict=True):
        # the same operations; sums over queries are taken in another order
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


PARAMETERS: dict[str, dict[str, Any]] = {
    "entmax": {"alpha": lambda: 1 + rand(4, HQ, 1, 1).sigmoid()},
    "sparsegen": {"lam": lambda: -rand(4, 7, 1).exp()},
    "normmax": {"alpha": lambda: 1.5 + rand(4, B, 1, 1, 1).exp()},
    "budget": {"k": lambda: 1 + rand(4, HQ, 7, 1).sigmoid()},
    "fusedmax": {"lam": lambda: 0.1 * rand(4).exp()},
    "oscarmax": {"lam": lambda: 0.1 * rand(4, HQ, 1, 1).exp()},
    "constrained_softmax": {"upper": lambda: 0.5 + 0.1 * rand(4, HQ, 7, 9).sigmoid()},
    "constrained_sparsemax": {
        "upper": lambda: 0.5 + 0.1 * rand(4, 9).sigmoid(),
        "lower": lambda: 0.01 * rand(5, HQ, 1, 1).sigmoid(),
    },
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("name", "learned"),
    [(name, False) for name in sorted(px.mappings.registry())]
    + [(name, True) for name in PARAMETERS],
)
def test_every_mapping_with_the_gradient_of_its_parameter(
    monkeypatch: pytest.MonkeyPatch, name: str, learned: bool
) -> None:
    cls = px.mappings.registry()[name]
    mask = torch.ones(7, 9, dtype=torch.bool)
    mask[:, 3] = False
    weights = rand(9, B, HQ, 7, EV)

    def step() -> list[Tensor]:
        parameters = {
            key: make().requires_grad_() for key, make in PARAMETERS.get(name, {}).items()
        }
        mapping = cls(**parameters) if learned else cls()
        inputs = [x.requires_grad_() for x in qkv(3, kv_heads=2)]
        output = px.attention(
            *inputs, mask, enable_gqa=True, mapping=mapping, window=(6, 4), causal_align="top-left"
        )
        wanted = [*inputs, *(parameters.values() if learned else ())]
        return [output, *torch.autograd.grad((output * weights).sum(), wanted)]

    seen: list[int] = []
    forward = tiled._Tiled.forward

    def counted(*args: Any) -> Any:
        seen.append(1)
        return forward(*args)

    monkeypatch.setattr(tiled._Tiled, "forward", staticmethod(counted))
    found = step()
    assert seen  # it did go by tiles
    for mine, plain in zip(found, plainly(monkeypatch, step), strict=True):
        assert mine.any()
        torch.testing.assert_close(mine, plain, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
def test_values_are_checked_as_elsewhere() -> None:
    q, k, v = qkv(0)
    with pytest.raises(ValueError, match="got k = 2 for a row with 1 allowed"):
        px.attention(q, k, v, is_causal=True, mapping="budget(k=2)")
    with pytest.raises(ValueError, match="upper must sum to at least 1"):
        px.attention(q, k, v, is_causal=True, mapping="constrained_softmax(upper=0.5)")
    with pytest.raises(ValueError, match="every value of alpha must be at least 1"):
        px.attention(q, k, v, alpha=torch.tensor([1.0, 0.5, 1.0, 1.0]))
    with pytest.raises(ValueError, match="alpha must be at least 1"):
        px.attention(q, k, v, alpha=0.9)
    whole = px.attention(q, k, v, mapping=px.mappings.Budget(torch.tensor(2)))
    torch.testing.assert_close(whole, px.attention(q, k, v, mapping="budget(k=2)"))


@pytest.mark.usefixtures("small_tiles")
def test_gradcheck_of_first_and_second_derivatives() -> None:
    q, k, v = (x[:1, :2].clone().requires_grad_() for x in qkv(1, lq=5, lk=6))
    alpha = torch.tensor([1.3, 2.2], dtype=torch.float64, requires_grad=True)
    mask = rand(7, 5, 6)
    mask[1] = -torch.inf
    mask.requires_grad_()

    def function(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, mask: Tensor) -> Tensor:
        return px.attention(q, k, v, mask, alpha=alpha, window=(3, 2))

    hidden = mask.detach().isinf()
    seen = torch.where(hidden, -torch.inf, mask)  # finite differences of -inf say nothing
    inputs = (q, k, v, alpha)
    assert torch.autograd.gradcheck(lambda *x: function(*x, seen.detach()), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: function(*x, seen.detach()), inputs)
    finite = rand(8, 5, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: function(q.detach(), k, v, alpha, m), (finite,))


@pytest.mark.usefixtures("small_tiles")
def test_heads_that_broadcast_and_groups_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[list[Tensor], bool]] = [
        ([rand(0, 5, E), rand(1, 3, 2, 6, E), rand(2, 2, 6, EV)], False),
        ([rand(0, 3, 1, 5, E), rand(1, 1, 2, 6, E), rand(2, 6, EV)], False),
        ([rand(0, 2, 1, 4, 5, E), rand(1, 3, 2, 6, E), rand(2, 3, 4, 6, EV)], True),
        ([rand(0, 5, E), rand(1, 6, E), rand(2, 6, EV)], False),
    ]
    for inputs, grouped in cases:
        found = gradients(inputs, enable_gqa=grouped)
        plain = plainly(monkeypatch, lambda i=inputs, g=grouped: gradients(i, enable_gqa=g))
        for mine, theirs in zip(found, plain, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
def test_nan_stays_in_its_row_and_away_from_keys_that_it_does_not_see() -> None:
    q, k, v = qkv(0)
    q[0, 0, 2] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = px.attention(*leaves, is_causal=True)
    bad = output.isnan().any(-1)
    assert bad.nonzero().tolist() == [[0, 0, 2]]
    gk = torch.autograd.grad(output.sum(), leaves[1])[0]
    assert gk[0, 0, :3].isnan().all()
    assert gk[0, 0, 3:].isfinite().all()
    assert gk[0, 1:].isfinite().all()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_float32(
    monkeypatch: pytest.MonkeyPatch, autocast: bool
) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    inputs = [x.to(dtype) for x in qkv(0)]
    alpha = torch.tensor([1.0, 1.3, 1.5, 2.0])

    def step() -> tuple[Tensor, ...]:
        leaves = [x.clone().requires_grad_() for x in (*inputs, alpha)]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = px.attention(*leaves[:3], alpha=leaves[3])
        return output, *torch.autograd.grad(output.float().square().sum(), leaves)

    plain = plainly(monkeypatch, step)
    for mine, theirs in zip(step(), plain, strict=True):
        assert mine.dtype == theirs.dtype
        # one rounding of bfloat16 apart: the plain path rounds gradients of keys in each item
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2**-7, atol=1e-5)


@pytest.mark.usefixtures("small_tiles")
def test_transforms_take_the_plain_path_and_agree() -> None:
    q, k, v = (x[0] for x in qkv(2))
    mapped = torch.vmap(lambda x: px.attention(x, k, v))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(mapped[1], px.attention(2 * q, k, v))
    forward = torch.func.jacfwd(lambda x: px.attention(x, k, v))(q)
    backward = torch.autograd.functional.jacobian(
        lambda x: px.attention(x, k, v), q, vectorize=True
    )
    torch.testing.assert_close(forward, backward)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("p", [0.4, 1.0])
def test_dropout_drops_the_same_weights_in_every_derivative(p: float) -> None:
    q, k, _ = qkv(0)
    v = torch.eye(9, dtype=torch.float64)  # the output is the weights
    plain = px.attention(q, k, v, alpha=1.2, is_causal=True)
    torch.manual_seed(1)
    first = px.attention(q, k, v, dropout_p=p, alpha=1.2, is_causal=True)
    second = px.attention(q, k, v, dropout_p=p, alpha=1.2, is_causal=True)
    torch.manual_seed(1)
    again = px.attention(q, k, v, dropout_p=p, alpha=1.2, is_causal=True)
    assert torch.equal(first, again)
    some = plain > 0
    if p == 1:
        assert not first.any()
        return
    assert not torch.equal(first, second)
    kept = (first[some] != 0).double()
    # 234 weights or more: five standard deviations of their share are 0.16
    assert abs(kept.mean() - (1 - p)) < 0.16
    torch.testing.assert_close(first[some], plain[some] * kept / (1 - p))

    def seeded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return px.attention(q, k, v, dropout_p=p, alpha=1.2, is_causal=True)

    leaves = [x[:1, :2, :5].clone().requires_grad_() for x in qkv(0)]
    assert torch.autograd.gradcheck(seeded, leaves)
    assert torch.autograd.gradgradcheck(seeded, leaves)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(None, None), (5, None), (None, 3), (2, 4)])
@pytest.mark.parametrize("offset", [-20, 0, 11])
@pytest.mark.parametrize("room", [1, 200, 1 << 20])
def test_tiles_cover_each_visible_score_once(
    causal: bool, window: Any, offset: int, room: int
) -> None:
    shape = torch.Size((3, 6, 50, 61))
    band = Band(window[0], 0 if causal else window[1], offset)
    longest = (61, 0, 30)
    count = torch.zeros(shape)
    for tile in tiles.tiles(shape, band, room, heads=2, longest=longest):
        assert tile.lead[1].start % 2 == 0
        assert (tile.lead[1].stop - tile.lead[1].start) % 2 == 0
        part = torch.ones(tile.cut(count).shape)
        tiles.fill_hidden(part, tile, band, [], 0.0)
        tile.cut(count).add_(part)
    for i in range(50):
        for j in range(61):
            left, right = band.left, band.right
            ahead = j - i - offset
            # several items in one tile are cut at the longest of them
            seen = (left is None or ahead >= -left) and (right is None or ahead <= right)
            assert (count[0, :, i, j] == seen).all()
            assert (count[2, :, i, j] == (seen and j < 30)).all() or room == 1 << 20


LINEAR = """
import resource, sys, torch
import parsimax as px
torch.set_num_threads(1)
length = int(sys.argv[1])
q, k, v = (torch.randn(1, 1, length, 16, requires_grad=True) for _ in range(3))
small = (x[:, :, :2100] for x in (q, k, v))
px.attention(*small, is_causal=True).sum().backward()  # all that is loaded on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
px.attention(q, k, v, window=(1000, 0)).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_is_linear_in_the_length() -> None:
    length = 32768
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LINEAR, str(length)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    whole = 4 * length**2  # one matrix of weights, of which the plain path holds several
    assert int(done.stdout) < whole / 20


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_a_gradient_of_the_gradient_where_inputs_are_one_tensor_or_made_of_each_other(
    monkeypatch: pytest.MonkeyPatch, dropout_p: float
) -> None:
    x = rand(0, 1, 2, 9, 4).requires_grad_()

    def run(*, again: bool) -> list[Tensor]:
        monkeypatch.setitem(tiled._LARGE, "cpu", 1)
        torch.manual_seed(0)
        alpha = 1.3 + 0.1 * x.mean((0, 2, 3))
        bias = x[..., :1].mT
        out = px.attention(x, x, x, None, dropout_p, True, 3.0)
        out = out + px.attention(2 * x, x, x.roll(1, -1), bias, dropout_p, alpha=alpha)
        (g,) = torch.autograd.grad(out.square().sum(), x, create_graph=again)
        return [g.detach(), *torch.autograd.grad(g.square().sum(), x)] if again else [g]

    right = run(again=False)[0]
    found = run(again=True)
    torch.testing.assert_close(found[0], right)
    if not dropout_p:
        plain = torch.autograd.functional.hvp(
            lambda x: _plain_sum(monkeypatch, x), x.detach(), 2 * right
        )[1]
        torch.testing.assert_close(found[1], plain)


def _plain_sum(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> Tensor:
    monkeypatch.setitem(tiled._LARGE, "cpu", 1 << 40)
    alpha = 1.3 + 0.1 * x.mean((0, 2, 3))
    out = px.attention(x, x, x, None, 0.0, True, 3.0)
    out = out + px.attention(2 * x, x, x.roll(1, -1), x[..., :1].mT, alpha=alpha)
    return out.square().sum()


def test_a_checkpoint_gives_what_was_saved_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiled._LARGE, "cpu", 1)
    leaves = [rand(i, 2, 2, 9, 4).requires_grad_() for i in range(3)]

    def run(function: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        return torch.autograd.grad(function(*leaves).square().sum(), leaves)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return px.attention(q, k, v, dropout_p=0.3)

    kept = run(lambda *x: checkpoint(attend, *x, use_reentrant=False))
    for found, right in zip(kept, run(attend), strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("shape", [(3, 2, 7, 4), (5, 3, 2, 7, 4), (3, 1, 7, 4)])
def test_values_may_have_more_leading_dimensions_than_the_scores(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    q, k, v = rand(0, 1, 2, 5, 4), rand(1, 1, 2, 7, 4), rand(2, *shape)
    lengths = torch.tensor([6])

    def results(large: int) -> list[Tensor]:
        monkeypatch.setitem(tiled._LARGE, "cpu", large)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = px.attention(*leaves, is_causal=True, key_lengths=lengths)
        weights = rand(3, *out.shape)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]

    for found, right in zip(results(1), results(1 << 40), strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_the_backward_may_have_another_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dropout_p: float
) -> None:
    monkeypatch.setitem(tiled._LARGE, "cpu", 1)
    monkeypatch.setitem(tiled._ROOM, "cpu", 1 << 13)
    leaves = [rand(i, 1, 1, 300, 4).requires_grad_() for i in range(3)]

    def run(threads: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
        torch.manual_seed(0)
        out = px.attention(*leaves, dropout_p=dropout_p)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return torch.autograd.grad(out.square().sum(), leaves)

    for found, right in zip(run(1), run(8), strict=True):
        assert torch.equal(found, right)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("made", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_kept_for_them(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although parameters may be among the inputs."""
    q, k, v = qkv(0)
    alpha = torch.full((HQ,), 1.4, dtype=torch.float64, requires_grad=True)
    expected = px.attention(q, k, v, alpha=alpha)
    monkeypatch.setattr(tiled._Tiled, "apply", None)
    with made():
        assert torch.equal(px.attention(q, k, v, alpha=alpha), expected)
