"""Launch a kernel again without asking Triton which one it is.

Triton looks at every argument of every call to find the kernel that it has compiled for it, which
takes longer than many of our kernels run. What it looks at is known here: types, whether pointers
and sizes are multiples of 16, and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from .approx import INTERPRETED

# Without the checks of torch.cuda whether CUDA has been started: there are tensors on it. A torch
# built for the CPU has neither, and needs none.
current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def hooked() -> bool:
    """Whether someone, such as a profiler, wants to see launches."""
    hooks = triton.knobs.runtime
    enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def current_stream(device: int) -> int:
    """The stream to launch on, as a number."""
    stream: int = _current_stream(device)
    return stream


class Prepared:
    """A kernel with its constants, for arguments of one sort; called with a grid of three sizes.

    From the second time on, tensors are handed over as addresses: of a tensor Triton asks for its
    address, and then the driver for what lies there. One that lies elsewhere is left to Triton,
    which says so.
    """

    def __init__(self, kernel: Any, options: dict[str, Any]) -> None:
        self._kernel, self._options = kernel, options
        self._known: dict[int, tuple[Any, ...]] = {}  # by device

    def __call__(self, grid: tuple[int, ...], *arguments: Any) -> None:
        """Launch it; nobody checks that the arguments are of the sort."""
        device = current_device()
        known = self._known.get(device)
        if known is None:
            compiled = self._kernel[grid](*arguments, **self._options)
            names = self._kernel.arg_names[len(arguments) :]
            constants = tuple(self._options[name] for name in names)
            run, function = compiled.run, compiled.function
            self._known[device] = compiled, run, function, compiled.packed_metadata, constants
            return
        compiled, run, function, metadata, constants = known
        addresses = [x.data_ptr() if isinstance(x, Tensor) and x.is_cuda else x for x in arguments]
        if hooked():
            compiled[grid](*addresses, *constants)
            return
        stream = _current_stream(device)
        run(*grid, stream, function, metadata, None, None, None, *addresses, *constants)

    def known_here(self) -> tuple[Any, ...]:
        """What a launch on the current device takes, after the first one."""
        return self._known[current_device()]


_SORTS: dict[int, tuple[bool, bool, bool]] = {}  # of integers that have been arguments
_MOST_SORTS = 1 << 16


def _sort(x: int) -> tuple[bool, bool, bool]:
    """What Triton looks at in an integer."""
    if len(_SORTS) >= _MOST_SORTS:
        _SORTS.clear()
    found = _SORTS[x] = (x == 1, x % 16 == 0, -(2**31) <= x < 2**31)
    return found


class _Quick:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.known: dict[Hashable, Prepared] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.prepared_for(arguments, options)((*grid, 1, 1)[:3], *arguments)

    def prepared_for(self, arguments: Sequence[Any], options: dict[str, Any]) -> Prepared:
        """The kernel for these constants, and for all arguments that Triton sees as these."""
        sort = tuple(
            [  # in place, since a kernel may have twenty arguments
                (x.dtype, x.data_ptr() % 16 == 0)
                if isinstance(x, Tensor)
                else _SORTS.get(x) or _sort(x)
                if isinstance(x, int)
                else type(x)
                for x in arguments
            ]
        )
        return self.prepared(sort, options)

    def prepared(self, sort: Hashable, options: dict[str, Any]) -> Prepared:
        """The kernel for these constants, and for arguments of which ``sort`` tells all."""
        key = sort, tuple(options.items())
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = Prepared(self.kernel, options)
        return known


def quick(kernel: Any) -> Any:
    """The same kernel, launched as before: ``kernel[grid](...)``, with constants by name."""
    return kernel if INTERPRETED.value else _Quick(kernel)


def prepare(kernel: Any, sort: Hashable, options: dict[str, Any]) -> Prepared | None:
    """A quick kernel for arguments of one sort, for those who know it; None if interpreted."""
    return kernel.prepared(sort, options) if isinstance(kernel, _Quick) else None


def prepare_for(kernel: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Prepared | None:
    """A quick kernel for arguments of the sort of these; None if interpreted."""
    return kernel.prepared_for(arguments, options) if isinstance(kernel, _Quick) else None
