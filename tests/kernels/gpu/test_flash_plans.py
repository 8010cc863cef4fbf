"""Attention over many keys that is launched again by addresses alone, and each by its own plan."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from tests.kernels.gpu.addresses import Interpreted, launch_by_addresses
from tests.kernels.gpu.test_flash import CAUSAL, EVERYTHING, ON_GPU, SMALL, inputs
from torch._subclasses.fake_tensor import FakeTensorMode

from parsimax.attention import flash
from parsimax.attention.visibility import Band
from parsimax.kernels.gpu.flash import launch
from parsimax.kernels.gpu.flash import problem as problems

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SIZES = {"queries": 5, "keys": 20}


@pytest.fixture(autouse=True)
def by_addresses(monkeypatch):
    if not ON_GPU:
        launch_by_addresses(monkeypatch)
        monkeypatch.setattr(problems, "tiles_for", lambda q, v: SMALL)


def attend(
    inputs, times, alpha=1.5, seen=None, band=EVERYTHING, lengths=None, scale=0.5, frozen=False
):
    """Results and gradients of numbers that differ from time to time."""
    leaves = [(x.detach() * times).requires_grad_() for x in inputs]
    if isinstance(alpha, torch.Tensor) and not frozen:
        leaves.append(alpha := alpha.detach().clone().requires_grad_())
    if seen is not None and seen.dtype != torch.bool and not frozen:
        leaves.append(seen := seen.detach().clone().requires_grad_())
    arguments = (*leaves[:3], seen, band, lengths, alpha, scale)
    with torch.no_grad():
        alone = flash.flash_attention(*arguments)
    out = flash.flash_attention(*arguments)
    return [alone, out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


def test_each_is_found_again_and_none_takes_the_plan_of_another():
    """What differs in one thing alone, in turn."""
    q, k, v = data = inputs(**SIZES)
    noise = torch.randn(1, 2, 5, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    alphas = torch.tensor([1.3, 1.7], device=DEVICE)
    cases = [
        (data, {}),
        (inputs(**SIZES | {"keys": 21}), {}),
        (inputs(**SIZES, ev=6), {}),
        (inputs(**SIZES, groups=2), {}),
        (inputs(torch.float16, **SIZES), {}),
        ((q.contiguous(), k, v), {}),
        ((q, k, v.contiguous()), {}),
        (data, {"alpha": 1.3}),
        (data, {"alpha": alphas, "frozen": True}),
        (data, {"alpha": alphas}),
        (data, {"scale": 0.25}),
        (data, {"band": CAUSAL}),
        (data, {"band": Band(3, 1)}),
        (data, {"band": Band(right=0, offset=15)}),
        (data, {"lengths": torch.tensor([17], device=DEVICE)}),
        (data, {"seen": noise[:, :1, :1] > -0.3}),
        (data, {"seen": noise > -0.3}),
        (data, {"seen": noise, "frozen": True}),
        (data, {"seen": noise}),
    ]
    first = [attend(arguments, 1.0, **options) for arguments, options in cases]
    plans = len(launch._FORWARDS), len(launch._BACKWARDS)
    assert plans == (2 * (len(cases) - 2), len(cases))  # frozen or not, a forward is the same
    before = Interpreted.again
    again = [attend(arguments, 0.7, **options) for arguments, options in cases]
    assert plans == (len(launch._FORWARDS), len(launch._BACKWARDS))
    assert ON_GPU or Interpreted.again - before >= 9 * len(cases)
    launch._FORWARDS.clear()
    launch._BACKWARDS.clear()
    for found, other, (arguments, options) in zip(again, first, cases, strict=True):
        expected = attend(arguments, 0.7, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert not torch.equal(found[1], other[1])


def test_packed_sequences_that_begin_elsewhere():
    q, k, v = (x[0].transpose(0, 1) for x in inputs(queries=9, keys=30))

    def packed(places, longest=(6, 24), band=EVERYTHING, bottom_right=False):
        starts = [torch.tensor(x, device=DEVICE) for x in ((0, places, 9), (0, 3 * places, 30))]
        with torch.no_grad():
            return flash.packed_attention(q, k, v, starts, longest, band, bottom_right, 1.5, 0.5)

    # other limits, and another place of the last query, take plans of their own
    assert packed(3, (5, 24)).isnan().all()
    assert packed(3, (6, 20)).isnan().all()
    causal = [packed(3, band=CAUSAL, bottom_right=last) for last in (False, True)]
    assert not torch.equal(*causal)
    assert len(launch._FORWARDS) == 4
    launch._FORWARDS.clear()

    found = [packed(places) for places in (3, 5, 3)]
    assert len(launch._FORWARDS) == 1
    assert torch.equal(found[0], found[2])
    for out, places in zip(found, (3, 5), strict=False):
        for rows, keys in (
            (slice(places), slice(3 * places)),
            (slice(places, 9), slice(3 * places, 30)),
        ):
            one = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
            with torch.no_grad():
                expected = flash.flash_attention(*one, None, EVERYTHING, None, 1.5, 0.5)[0]
            assert (out[rows].transpose(0, 1) - expected).norm() <= 1e-5 * expected.norm()


def test_memory_that_is_not_aligned_has_a_plan_of_its_own():
    q, k, v = inputs(**SIZES)
    room = k.new_empty(k.numel() + 1)
    shifted = room[1:].view(k.transpose(1, 2).shape).transpose(1, 2).copy_(k)
    assert shifted.data_ptr() % 16 != 0
    assert shifted.stride() == k.stride()
    with torch.no_grad():
        found = [
            flash.flash_attention(q, x, v, None, EVERYTHING, None, 1.5, 0.5)
            for x in (k, shifted, k)
        ]
    assert all(torch.equal(found[0], x) for x in found)
    assert len(launch._FORWARDS) == 2


def test_plans_keep_nothing_alive():
    data = inputs(**SIZES)
    attend(data, 1.0)
    watched = [weakref.ref(x) for x in data]
    del data
    gc.collect()
    assert [x() for x in watched] == [None, None, None]


def test_compiled_without_gradients_nothing_is_found_for_them(monkeypatch):
    """And with them again, by the same function."""
    torch._dynamo.reset()
    own, asked = launch.forward, []

    def forward(p, train):
        asked.append(train)
        return own(p, train)

    monkeypatch.setattr(launch, "forward", forward)

    def attended(q, k, v):
        return flash.flash_attention(q, k, v, None, CAUSAL, None, 1.5, 0.5)

    compiled = torch.compile(attended, fullgraph=True, backend="aot_eager")
    data = inputs(**SIZES)
    found = compiled(*data)
    leaves = [x.detach().requires_grad_() for x in data]
    with torch.no_grad():
        assert torch.equal(compiled(*leaves), found)
    assert asked == [False, False]
    gradients = torch.autograd.grad(compiled(*leaves).sum(), leaves)
    assert asked[2:] == [True]
    for mine, theirs in zip(
        gradients, torch.autograd.grad(attended(*leaves).sum(), leaves), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learned", [False, True])
def test_compilers_are_told_of_tensors_as_they_will_be(dtype, learned, monkeypatch):
    """Of all that is saved, with keys that are kept, and of all gradients."""
    tiles = problems.tiles_for(*inputs()[::2])._replace(listed=1)
    monkeypatch.setattr(problems, "tiles_for", lambda q, v: tiles)
    tensors = [*inputs(dtype, **SIZES, ev=6), None]
    tensors += [torch.tensor([1.4, 1.6], device=DEVICE) if learned else None, None, None, None]
    numbers = (0.0 if learned else 1.5, 0.5, flash.UNLIMITED, flash.UNLIMITED, 0, 0, 0, False)
    real = flash._operator(*tensors, *numbers)
    back = flash._backward_operator(
        torch.ones_like(real[0]), list(real[1:]), *tensors, *numbers, learned, False
    )
    with FakeTensorMode() as mode:
        imagined = [None if x is None else mode.from_tensor(x) for x in tensors]
        fake = flash._operator(*imagined, *numbers)
        kept = [mode.from_tensor(x) for x in real[1:]]
        fake_back = flash._backward_operator(fake[0], kept, *imagined, *numbers, learned, False)
    for made, promised in zip((*real, *back), (*fake, *fake_back), strict=True):
        assert (made.shape, made.dtype) == (promised.shape, promised.dtype)
        assert made.stride() == promised.stride()
