"""Steps of decoding that are launched again: by addresses alone, and each by its own plan."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.contracts.gpu.device import DEVICE
from tests.kernels.gpu.addresses import Interpreted, launch_by_addresses
from tests.kernels.gpu.test_decode import (
    LENGTHS,
    ON_GPU,
    SMALL,
    _poisoned,  # noqa: F401 - a fixture, for every test here too
    check,
    draw,
    inputs,
    paged,
)

from parsimax.attention import flash_decoding
from parsimax.kernels.gpu import chain
from parsimax.kernels.gpu.flash.decode import launch, problem

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _launched_by_addresses(monkeypatch):
    if ON_GPU:
        return
    few = SMALL._replace(value_parts=3)
    monkeypatch.setattr(problem, "tiles_for", lambda *_: few)
    launch_by_addresses(monkeypatch)


def twice(*arguments, launches, bounded=False, **options):
    """The same result by tensors and by addresses, and how many kernels the second took."""
    plans, options = len(launch._PLANS), options | {"bounded": bounded}
    first = check(*arguments, **options)
    assert len(launch._PLANS) == plans + 1
    before = Interpreted.again
    assert torch.equal(first, check(*arguments, **options))
    assert len(launch._PLANS) == plans + 1
    assert ON_GPU or Interpreted.again == before + launches


def test_each_kind_of_step_by_addresses():
    noise = draw(torch.float32, 3, 2, 1, 61)
    data = inputs(group=2)
    twice(*data, 1.5, launches=3)
    twice(*data, 1.0, launches=2)
    twice(*data, torch.tensor((1.0, 1.3), device=DEVICE), launches=3)
    twice(*data, 1.5, page=5, launches=3)
    twice(*data, 1.5, launches=4, bounded=True)
    twice(*data, 1.5, page=16, launches=4, bounded=True)
    twice(*data, 1.5, seen=noise, launches=3, bounded=True)  # of which they say nothing
    twice(*data, 1.5, seen=noise > -0.3, launches=3)
    twice(*data, 1.0, seen=noise, launches=2)
    twice(*inputs(queries=2, group=9), 1.5, reach=(9, 0), launches=3)


def test_plans_do_not_mix():
    """What differs in one thing alone, in turn; each result is compared with its own."""
    data = inputs(group=2)
    half = inputs(torch.float16, group=2)
    two, keys, values = inputs(heads=2)
    noise = draw(torch.float32, 3, 2, 1, 61)
    q, k, v = data
    shapes = [
        (data, {}),
        (half, {}),
        (inputs(group=2, ev=12), {}),
        ((two, keys, values), {}),
        ((two, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (keys, values))), {}),
        ((q, k, v.mT.contiguous().mT), {}),
        (data, {"alpha": 1.3}),
        (data, {"alpha": torch.tensor((1.3, 1.6), device=DEVICE)}),
        (data, {"alpha": torch.tensor((1.3, 1.6), device=DEVICE, dtype=torch.float64)}),
        (data, {"seen": noise > -0.3}),
        (data, {"seen": noise}),
        (data, {"seen": noise.double()}),
        (data, {"seen": noise[:, :1]}),
        (data, {"scale": 0.25}),
        (data, {"reach": (7, 0)}),
        (data, {"bounded": True}),
        (data, {"lengths": torch.tensor(LENGTHS, device=DEVICE, dtype=torch.int32)}),
        (data, {"lengths": torch.tensor(LENGTHS, device=DEVICE).repeat_interleave(2)[::2]}),
    ]
    for arguments, options in shapes:
        check(*arguments, **{"bounded": False} | options)
    assert len(launch._PLANS) == len(shapes)
    for arguments, options in shapes[::3]:
        check(*arguments, **{"bounded": False} | options)
    assert len(launch._PLANS) == len(shapes)


def test_memory_that_is_not_aligned_has_a_plan_of_its_own():
    def shifted(x):
        room = x.new_zeros(x.numel() + 1)
        room[1:] = x.flatten()
        return room[1:].view_as(x)

    data = inputs(torch.bfloat16, group=2)
    assert all(x.data_ptr() % 16 == 0 for x in data)
    for which in ((), (1,), (2,), (0, 1, 2)):
        arguments = [shifted(x) if i in which else x for i, x in enumerate(data)]
        assert [x.data_ptr() % 16 != 0 for x in arguments] == [i in which for i in range(3)]
        twice(*arguments, launches=3)


def test_plans_are_bounded_and_keep_nothing_alive(monkeypatch):
    monkeypatch.setattr(chain, "MOST_PLANS", 2)
    q, k, v = inputs(keys=20)
    for keys in range(1, 6):
        cut = k[:, :, :keys].nan_to_num(), v[:, :, :keys].nan_to_num()
        flash_decoding.flash_decode(q, *cut, None, None, None, (None, None), 1.5, 0.5)
        assert len(launch._PLANS) <= 2
    watched = [weakref.ref(x) for x in (q, k, v)]
    del q, k, v, cut
    gc.collect()
    assert [x() for x in watched] == [None, None, None]


def test_pages_and_tables_of_other_shapes():
    q, k, v = inputs()
    for page in (5, 8, 5):
        check(q, k, v, page=page)
    (pages, table), (values, _) = paged(k, 5), paged(v, 5)
    wide = torch.nn.functional.pad(table, (0, 3), value=-1)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    found = [
        flash_decoding.flash_decode(q, pages, values, lengths, t, None, (None, None), 1.5, 0.5)
        for t in (table, wide, wide[:, :-3], table)
    ]
    assert all(torch.equal(found[0], other) for other in found)
