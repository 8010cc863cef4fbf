"""A GPU played by Triton's interpreter, for a process that has not imported Triton yet.

Kernels are compiled and launched by Triton as if for an H200. Below its launcher is a driver of
ours, which takes each argument from where the launcher has put it for the kernel, and has the
kernel interpreted with it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_NUMBERS = {
    "i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip
_POINTED = {
    "*fp16": torch.float16, "*bf16": torch.bfloat16, "*fp32": torch.float32,
    "*fp64": torch.float64, "*i1": torch.bool, "*u1": torch.bool, "*i8": torch.int8,
    "*u8": torch.uint8, "*i16": torch.int16, "*i32": torch.int32, "*i64": torch.int64,
}  # fmt: skip
_LAUNCHED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint), ctypes.c_uint,
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


class Played:
    """The GPU, which counts what has been launched on it, and how often Triton was asked how.

    Args:
        library: The driver, compiled; the name that Triton looks for, libcuda.so.1.
    """

    def __init__(self, library: Path) -> None:
        self.launches: dict[str, int] = {}
        self.asked = 0
        self._compiled: dict[int, Any] = {}
        os.environ["TRITON_LIBCUDA_PATH"] = str(library.parent)
        driver = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._callback = _LAUNCHED(self._launched)  # for as long as there are launches
        driver.play(self._callback)
        self._interpreted = _interpreted()
        self._look_like_a_gpu()

    def interpreted(self, module: ModuleType) -> ModuleType:
        """The same module as the interpreter has it."""
        return self._interpreted[module.__name__]

    def _look_like_a_gpu(self) -> None:
        os.environ["TRITON_INTERPRET"] = "0"
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.jit import JITFunction

        class Driver(CudaDriver):
            def __init__(self) -> None:
                self.utils, self.launcher_cls = CudaUtils(), CudaLauncher
                self.get_current_device = lambda: 0
                self.get_current_stream = lambda device: 0

            def get_current_target(self) -> GPUTarget:
                return GPUTarget("cuda", 90, 32)

        triton.runtime.driver.set_active(Driver())
        make, run = CompiledKernel._init_handles, JITFunction.run

        def made(kernel: Any) -> None:
            make(kernel)
            self._compiled[kernel.function] = kernel

        def asked(kernel: Any, *arguments: Any, **options: Any) -> Any:
            self.asked += 1
            return run(kernel, *arguments, **options)

        CompiledKernel._init_handles, JITFunction.run = made, asked
        from parsimax.kernels.gpu import quick

        quick.current_device = lambda: 0
        quick._current_stream = lambda device: 0
        torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]

    def _launched(self, grid: Any, block: Any, shared: int, function: int, parameters: Any) -> int:
        try:
            compiled = self._compiled[function]
            assert block[0] == 32 * compiled.metadata.num_warps
            assert shared == compiled.metadata.shared
            kernel = compiled.src.fn
            arguments = _arguments(compiled.src, parameters)
            name = f"{kernel.fn.__module__}.{kernel.fn.__name__}".removeprefix(
                "parsimax.kernels.gpu."
            )
            self.launches[name] = self.launches.get(name, 0) + 1
            own = self._interpreted[kernel.fn.__module__]
            interpreted = getattr(own, kernel.fn.__name__)
            interpreted[tuple(grid[:3])](*arguments)
            return 0
        except BaseException:  # noqa: BLE001 - C would go on
            traceback.print_exc()
            return 1


def _arguments(source: Any, parameters: Any) -> list[Any]:
    """What the kernel was compiled with, and what it is launched with, in order.

    The compiler relies on what it was told of them.
    """
    constants = {place[0]: value for place, value in source.constants.items()}
    arguments, at = [], 0
    for i, kind in enumerate(source.signature.values()):
        if kind == "constexpr":
            arguments.append(constants[i])
            continue
        told = [name for name, _ in source.attrs.get((i,), [])]
        where = parameters[at]
        at += 1
        kept = ctypes.c_uint64 if kind.startswith("*") else _NUMBERS[kind]
        value = ctypes.cast(where, ctypes.POINTER(kept))[0]
        name = source.fn.arg_names[i]
        assert "tt.divisibility" not in told or value % 16 == 0, f"{name} is not aligned: {value}"
        arguments.append(_memory(value, _POINTED[kind]) if kind.startswith("*") else value)
    return arguments


def _memory(address: int, dtype: torch.dtype) -> torch.Tensor:
    """One number there: the interpreter finds the others by their addresses."""
    if address == 0:  # of a tensor that has none
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_byte * dtype.itemsize).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


def _interpreted() -> dict[str, ModuleType]:
    """All kernels as the interpreter has them; the next import of Triton is another one's."""
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.quick_interpreter import hasten

    hasten()
    gpu = importlib.import_module("parsimax.kernels.gpu")
    for module in pkgutil.walk_packages(gpu.__path__, gpu.__name__ + "."):
        importlib.import_module(module.name)
    names = [
        name
        for name in sys.modules
        if name.split(".")[0] in ("parsimax", "triton") and not name.startswith("triton._C")
    ]
    return {name: sys.modules.pop(name) for name in names}


if __name__ == "__main__":
    played = Played(Path(sys.argv[1]))
    from tests.kernels.gpu.launcher import problems  # which import parsimax

    problems.solve_all(played)
