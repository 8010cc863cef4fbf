"""Line 5 of the contract: a row's result is its own, bit for bit, whoever computes beside it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import TYPICAL, WITH_PARAMETER

import parsimax as px

every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_backend = pytest.mark.parametrize("backend", AVAILABLE)


@pytest.fixture
def threads():
    """A function that sets torch's number of threads, which is put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _forward_backward(member, z, backend, weights, **parameter):
    z = z.detach().clone().requires_grad_()
    p = member.function(z, backend=backend, **parameter)
    (gradient,) = torch.autograd.grad(p, z, weights)
    return p.detach(), gradient


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_member
def test_alone_in_a_batch_and_with_other_neighbours(member, dtype, backend):
    for d in (3, 7, 33, 1000):
        scale = torch.tensor([1e-3, 0.3, 1.0, 4.0, 50.0, 1e4], dtype=dtype).unsqueeze(1)
        z = torch.randn(6, d, dtype=dtype) * scale
        z[1, 2:] = -torch.inf
        weights = torch.randn(6, d, dtype=dtype)
        p, gradient = _forward_backward(member, z, backend, weights)
        for row in range(6):
            one, one_gradient = _forward_backward(
                member, z[row : row + 1], backend, weights[row : row + 1]
            )
            assert torch.equal(one[0], p[row])
            assert torch.equal(one_gradient[0], gradient[row])
        others = torch.randn(6, d, dtype=dtype) * 1e3
        others[3] = z[3]
        other_weights = torch.randn(6, d, dtype=dtype)
        other_weights[3] = weights[3]
        q, other_gradient = _forward_backward(member, others, backend, other_weights)
        assert torch.equal(q[3], p[3])
        assert torch.equal(other_gradient[3], gradient[3])


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_tensor_parameters_of_other_rows_do_not_matter(member, dtype, backend):
    """Rows at very different parameters stop after different numbers of steps."""
    family, name = member.family, member.family.parameter
    values = [float(arguments[name]) for arguments in family.examples]
    d = max(40, int(max(values)) + 1)
    z = torch.randn(len(values), d, dtype=dtype)
    parameter = torch.tensor(values, dtype=torch.float64).unsqueeze(1)
    weights = torch.randn(len(values), d, dtype=dtype)
    p, gradient = _forward_backward(member, z, backend, weights, **{name: parameter})
    for row in range(len(values)):
        pick = slice(row, row + 1)
        one, one_gradient = _forward_backward(
            member, z[pick], backend, weights[pick], **{name: parameter[pick]}
        )
        assert torch.equal(one[0], p[row])
        # normmax of order 100 has slopes beyond float32, which come out as infinite or NaN
        torch.testing.assert_close(one_gradient[0], gradient[row], atol=0, rtol=0, equal_nan=True)


@every_backend
@every_member
def test_split_over_threads(member, backend, threads):
    """Large enough that the rows are divided: 129 x 1024 elements over one and three threads."""
    z = torch.randn(129, 1024) * 3
    weights = torch.randn(129, 1024)
    found = []
    for count in (1, 3):
        threads(count)
        found.append(_forward_backward(member, z, backend, weights))
    assert torch.equal(found[1][0], found[0][0])
    assert torch.equal(found[1][1], found[0][1])


def test_tensor_parameters_split_over_threads(threads):
    z = torch.randn(129, 1024)
    alpha = torch.linspace(1, 2.5, 129).unsqueeze(1).requires_grad_()
    found = []
    for count in (1, 3):
        threads(count)
        p = px.entmax(z, alpha)
        (gradient,) = torch.autograd.grad(p.square().sum(), alpha)
        found.append((p.detach(), gradient))
    assert torch.equal(found[1][0], found[0][0])
    assert torch.equal(found[1][1], found[0][1])


@every_backend
def test_many_python_threads_at_once(backend, threads):
    """More callers than cores, each large enough for the pool, each with its own right answer."""
    threads(2)
    work = [(member, torch.randn(40, 2000) * (1 + i)) for i, member in enumerate(TYPICAL)] * 2
    expected = [member.mapping(z, backend=backend) for member, z in work]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: item[0].mapping(item[1], backend=backend), work))
    for p, q in zip(found, expected, strict=True):
        assert torch.equal(p, q)


class _Mapped(torch.utils.data.Dataset):
    """Every item calls every mapping in the worker that loads it, and entmax with two threads."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        z = torch.linspace(-3, 3, 40 * 2000).reshape(40, 2000) * (index + 1)
        found = {str(member): member.mapping(z) for member in TYPICAL}
        # torch's own OpenMP threads do not survive a fork, so a worker has one thread by default;
        # this call has no torch operation that would ask for them, and uses our threads only
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        found["entmax in threads"] = px.entmax(z, 1.5)
        torch.set_num_threads(before)
        return {**found, "worker": torch.tensor(os.getpid())}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_data_workers(threads):
    """The parent's threads do not exist in a forked child; the child must start its own."""
    threads(2)
    data = _Mapped()
    expected = [data[i] for i in range(len(data))]  # starts the parent's threads
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    workers = set()
    for found, wanted in zip(loader, expected, strict=True):
        workers.add(int(found.pop("worker")))
        for name, p in found.items():
            assert torch.equal(p, wanted[name]), name
    assert len(workers) == 2
    assert os.getpid() not in workers


@every_backend
@every_member
def test_no_row_takes_long(member, backend):
    """Solvers stop by tolerance: a bad row costs no more than a small multiple of a mild one."""
    d = 4096
    rows = {
        "mild": torch.randn(d),
        "equal": torch.zeros(d),
        "nearly equal": torch.randn(d) * 1e-7,
        "spike": torch.eye(1, d)[0] * 0.999,
        "ramp": torch.linspace(-1, 0, d),
        "geometric": -torch.logspace(-8, 4, d),
        "far": torch.randn(d) * 1e4,
        "masked": torch.where(torch.arange(d) % 7 == 0, torch.randn(d), -torch.inf),
    }
    seconds = {}
    for name, z in rows.items():
        batch = z.expand(4, d).contiguous()
        member.mapping(batch, backend=backend)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            member.mapping(batch, backend=backend)
            times.append(time.perf_counter() - start)
        seconds[name] = min(times)
    # 25 ms for four rows is a thousand sweeps; a loop that only its limit ends takes longer
    slowest = max(seconds, key=seconds.get)
    assert seconds[slowest] < 60 * seconds["mild"] + 0.025, (slowest, seconds)
