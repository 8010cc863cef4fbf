"""Kernels that are launched by addresses alone, with Triton's part played by a stand-in."""

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from parsimax.kernels.gpu import quick  # noqa: E402
from parsimax.kernels.gpu.chain import Chain, Launch  # noqa: E402


class _Compiled:
    packed_metadata = "metadata"

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.function, self.calls = name, calls

    def run(self, *arguments: Any) -> None:
        self.calls.append(arguments)

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments: self.calls.append(("hooked", grid, *arguments))


class _Kernel:
    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name, self.calls = name, calls
        self.arg_names = ("x", "y", "n", "BLOCK")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> _Compiled:
            self.calls.append((self.name, grid, arguments, options))
            return _Compiled(self.name, self.calls)

        return launch


def _launches(wrap: Any, calls: list[Any]) -> list[Launch]:
    return [
        Launch(wrap(_Kernel("one", calls)), (3,), (0, 2), (5,), {"BLOCK": 8, "num_warps": 4}),
        Launch(wrap(_Kernel("two", calls)), (4, 2), (2, 1), (16,), {"BLOCK": 16}),
    ]


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "current_device", lambda: 0)
    monkeypatch.setattr(quick, "_current_stream", lambda device: f"stream of {device}")


@pytest.mark.usefixtures("_device")
def test_later_calls_need_addresses_alone() -> None:
    calls: list[Any] = []
    chain = Chain(_launches(quick._Quick, calls))
    assert not chain.ready
    a, b, c = (torch.zeros(16) for _ in range(3))
    chain.first([a, b, c])
    assert calls == [
        ("one", (3, 1, 1), (a, c, 5), {"BLOCK": 8, "num_warps": 4}),
        ("two", (4, 2, 1), (c, b, 16), {"BLOCK": 16}),
    ]
    assert chain.ready
    calls.clear()
    chain.again([100, 200, 300])
    rest = ("metadata", None, None, None)
    assert calls == [
        (3, 1, 1, "stream of 0", "one", *rest, 100, 300, 5, 8),
        (4, 2, 1, "stream of 0", "two", *rest, 300, 200, 16, 16),
    ]


@pytest.mark.usefixtures("_device")
def test_two_threads_that_are_first() -> None:
    """The second has seen that nothing was ready, and then waits until the other is done."""
    calls: list[Any] = []
    chain = Chain(_launches(quick._Quick, calls))
    tensors = [torch.zeros(16) for _ in range(3)]
    chain.first(tensors)
    calls.clear()
    chain.first(tensors)
    assert [(call[4], call[9:11]) for call in calls] == [
        ("one", (tensors[0].data_ptr(), tensors[2].data_ptr())),
        ("two", (tensors[2].data_ptr(), tensors[1].data_ptr())),
    ]
    assert chain.ready


@pytest.mark.usefixtures("_device")
def test_a_profiler_sees_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    chain = Chain(_launches(quick._Quick, calls))
    chain.first([torch.zeros(16) for _ in range(3)])
    calls.clear()
    monkeypatch.setattr(quick, "hooked", lambda: True)
    chain.again([100, 200, 300])
    assert calls == [("hooked", (3, 1, 1), 100, 300, 5, 8), ("hooked", (4, 2, 1), 300, 200, 16, 16)]


def test_interpreted_kernels_always_need_tensors() -> None:
    calls: list[Any] = []
    chain = Chain(_launches(lambda kernel: kernel, calls))
    chain.first([torch.zeros(16) for _ in range(3)])
    assert [call[:2] for call in calls] == [("one", (3,)), ("two", (4, 2))]
    assert not chain.ready
