"""The CPU kernels as plain functions: every output written, no trace of memory or threads."""

from __future__ import annotations

import itertools
import os
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("numba")
import parsimax as px
from parsimax.kernels import cpu
from parsimax.kernels.cpu import pool

KERNELS = [
    *(("entmax", alpha) for alpha in (1.0, 1.3, 1.5, 2.0, 2.5)),
    ("sparsegen", 0.5),
    ("normmax", 1.5),
    ("normmax", 3.0),
    ("budget", 1.25),
]
every_kernel = pytest.mark.parametrize(("name", "value"), KERNELS)
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["single", "double"])


@pytest.fixture
def _poisoned():
    """Fresh memory of torch is full of NaN: an entry that is not written is seen."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = before
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_poisoned")
@every_kernel
def test_every_entry_is_written(name, value):
    for d in (2, 31, 32, 33, 64, 129, 1000):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            z = torch.randn(5, d).to(dtype)
            z[1, 1:] = -torch.inf
            z[1, : max(1, int(np.ceil(value))) if name == "budget" else 1] = 0.0
            z[2] = -torch.inf
            z[3] *= 30
            z[4] = 0
            p = cpu.forward(name, z, value)
            assert p.isfinite().all()
            gradient, by_parameter = cpu.backward(name, p, torch.randn(5, d).to(dtype), value, True)
            assert gradient.isfinite().all()
            assert by_parameter.isfinite().all()


def _placed(memory: np.ndarray, offset: int, row: np.ndarray) -> np.ndarray:
    view = memory[offset : offset + row.size].reshape(1, -1)
    view[:] = row
    return view


@every_dtype
@every_kernel
def test_results_do_not_depend_on_where_arrays_lie_in_memory(name, value, dtype):
    """Arrays side by side, in every order: a compiler may take another loop for close ones."""
    rng = np.random.default_rng(3)
    parameter, none = np.array([value]), np.zeros(0)
    for d in (2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 23, 31, 33, 63, 100):
        z, g = rng.normal(size=(2, d)).astype(dtype)
        p = np.full((1, d), np.nan, dtype)
        cpu._FORWARD[name](0, 1, z.reshape(1, -1).copy(), parameter, p)
        seen = set()
        for order, gap in itertools.product(itertools.permutations(range(3)), (0, 1, 8, 500)):
            memory = np.full(3 * (d + gap), np.nan, dtype)
            first, second, third = (k * (d + gap) for k in order)
            out = _placed(memory, second, np.full(d, np.nan))
            cpu._FORWARD[name](0, 1, _placed(memory, first, z), parameter, out)
            assert out.tobytes() == p.tobytes()
            slopes = _placed(memory, third, np.full(d, np.nan))
            cpu._BACKWARD[name](
                0, 1, _placed(memory, first, p), _placed(memory, second, g), parameter, slopes, none
            )
            seen.add((slopes + 0).tobytes())
        assert len(seen) == 1, f"{len(seen)} different gradients at d = {d}"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_pool_covers_every_row_once(count, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    for rows_, columns in ((1, 10), (3, 1 << 15), (7, 1 << 15), (1000, 400)):
        hits = np.zeros(rows_, int)
        threads = set()
        lock = threading.Lock()

        def kernel(start, stop, hits=hits, threads=threads, lock=lock):
            with lock:
                hits[start:stop] += 1
                threads.add(threading.get_ident())

        pool.for_rows(kernel, rows_, columns)
        assert (hits == 1).all()
        assert len(threads) <= count
        if rows_ * columns < 2 << 15:
            assert threads == {threading.get_ident()}, "small work stays with the caller"


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def kernel(start, stop):
        if start:
            raise ArithmeticError(f"rows {start} to {stop}")

    with pytest.raises(ArithmeticError, match="rows 4 to 8"):
        pool.for_rows(kernel, 8, 1 << 15)


def test_a_child_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    mine = pool._threads(2)
    assert pool._threads(2) is mine
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert pool._threads(2) is not mine


def test_nothing_is_started_by_importing():
    """No thread and no compilation before the first call."""
    import subprocess
    import sys

    code = (
        "import threading, parsimax.kernels.cpu as cpu\n"
        "from parsimax.kernels.cpu import pool\n"
        "assert threading.active_count() == 1 and pool._executor is None\n"
        "assert all(not kernel.signatures for kernel in cpu._FORWARD.values())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("dim", [0, 1])
def test_large_tensors_whose_rows_do_not_lie_together(dim):
    """They are copied slab by slab; every row must come out as it does alone, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(500, 3, 600, generator=generator)
    shape = [1 if i == dim else size for i, size in enumerate(z.shape)]
    alpha = 1 + torch.rand(shape, generator=generator)
    results = []
    for scores, order, along in (
        (z, alpha, dim),
        (z.movedim(dim, -1).contiguous(), alpha.movedim(dim, -1).contiguous(), -1),
    ):
        scores, order = scores.clone().requires_grad_(), order.clone().requires_grad_()
        p = px.entmax(scores, order, dim=along)
        g = torch.linspace(-1, 1, p.shape[along]).reshape(
            [-1 if n == p.shape[along] else 1 for n in p.shape]
        )
        gz, ga = torch.autograd.grad(p, (scores, order), g.expand_as(p))
        results.append([x if along == -1 else x.movedim(dim, -1) for x in (p, gz, ga)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
