"""Kernels that are launched again without Triton, with Triton's part played by a stand-in."""

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from parsimax.kernels.gpu import quick  # noqa: E402


class _Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def run(self, *arguments: Any) -> None:
        self.calls.append(("run", *arguments))

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments: self.calls.append(("hooked", grid, *arguments))


class _Kernel:
    arg_names = ("x", "n", "scale", "BLOCK")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: Any) -> _Compiled:
            self.calls.append(("compiled", arguments, options))
            return _Compiled(self.calls)

        return launch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> _Kernel:
    monkeypatch.setattr(quick, "current_device", lambda: 0)
    monkeypatch.setattr(quick, "_current_stream", lambda device: "stream")
    return _Kernel()


def test_triton_is_asked_once(kernel: _Kernel) -> None:
    x, launch = torch.zeros(16), quick._Quick(kernel)
    launch[(3,)](x, 32, 0.5, BLOCK=8, num_warps=4)
    launch[(5,)](x, 48, 0.7, BLOCK=8, num_warps=4)
    first, second = kernel.calls
    assert first == ("compiled", (x, 32, 0.5), {"BLOCK": 8, "num_warps": 4})
    head = ("run", 5, 1, 1, "stream", "function", "metadata", None, None, None)
    assert second == (*head, x, 48, 0.7, 8)


class _OnGPU(torch.Tensor):
    is_cuda = True


def test_tensors_of_the_gpu_are_addresses_the_second_time(kernel: _Kernel) -> None:
    """But others are not, so that Triton refuses them."""
    x, launch = torch.zeros(16).as_subclass(_OnGPU), quick._Quick(kernel)
    for given in (x, x, torch.zeros(16)):
        launch[(3,)](given, 32, 0.5, BLOCK=8)
    assert kernel.calls[0][1][0] is x
    assert kernel.calls[1][-4] == x.data_ptr()
    assert isinstance(kernel.calls[2][-4], torch.Tensor)


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(16, dtype=torch.float64), 32, 0.5),
        (torch.zeros(17)[1:], 32, 0.5),
        (torch.zeros(16), 33, 0.5),
        (torch.zeros(16), 1, 0.5),
        (torch.zeros(16), 2**40, 0.5),
    ],
    ids=["dtype", "address", "size", "one", "wide"],
)
def test_another_sort_is_another_kernel(kernel: _Kernel, other: tuple[Any, ...]) -> None:
    launch = quick._Quick(kernel)
    launch[(1,)](torch.zeros(16), 32, 0.5, BLOCK=8)
    launch[(1,)](*other, BLOCK=8)
    assert [call[0] for call in kernel.calls] == ["compiled", "compiled"]


def test_other_constants_are_another_kernel(kernel: _Kernel) -> None:
    launch = quick._Quick(kernel)
    for block in (8, 16, 8):
        launch[(1,)](torch.zeros(16), 32, 0.5, BLOCK=block)
    assert [call[0] for call in kernel.calls] == ["compiled", "compiled", "run"]


def test_profilers_see_the_launch(kernel: _Kernel) -> None:
    launch, enter = quick._Quick(kernel), triton.knobs.runtime.launch_enter_hook
    launch[(2,)](torch.zeros(16), 32, 0.5, BLOCK=8)

    def hook(*arguments: Any) -> None:
        pass

    enter.add(hook)
    try:
        launch[(2,)](torch.zeros(16), 32, 0.5, BLOCK=8)
    finally:
        enter.remove(hook)
    assert kernel.calls[-1][:2] == ("hooked", (2, 1, 1))
