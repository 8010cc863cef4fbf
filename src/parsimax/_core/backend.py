"""Choose who computes: Triton on CUDA, numba on the CPU, plain torch anywhere else."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from functools import cache

import torch
from torch import Tensor

from .validation import check_choice, wraps_others

BACKENDS = ("auto", "torch", "numba", "triton")
_OWN = {"cpu": "numba", "cuda": "triton"}  # what ``auto`` asks first on each kind of device
_OLDEST_TRITON = (3, 6)
_log = logging.getLogger("parsimax")


def choose(backend: str, z: Tensor) -> str:
    """The backend for this tensor; one asked for by name that cannot run raises, saying why."""
    refuse_traces()
    if not isinstance(backend, str):
        check_choice(backend, "backend", BACKENDS)
    if backend != "torch":
        refuse_wrappers(z)
    chosen: str = _constant(backend, z.device.type, z.dtype)
    return chosen


def refuse_traces() -> None:
    """A trace of torch.jit records operations of torch alone; its results would be arbitrary."""
    tracing: object = torch._C._get_tracing_state()
    if tracing is not None and not torch.compiler.is_compiling():
        raise RuntimeError(
            "torch.jit.trace cannot record what parsimax computes by kernels of its own; use "
            "torch.export or torch.compile"
        )


def refuse_wrappers(*tensors: Tensor) -> None:
    """Kernels would read memory that such a tensor does not have."""
    for x in tensors:
        if wraps_others(x):
            name = type(x).__name__
            local = " (x.to_local(), or local_map)" if name == "DTensor" else ""
            raise TypeError(
                f"parsimax computes on plain tensors, got a {name}; give what it holds{local}"
            )


def _constant(backend: str, device: str, dtype: torch.dtype) -> str:
    return _choice(backend, device, dtype)


# The answer comes from modules and versions, which torch.compile cannot trace. This is what
# torch.compiler.assume_constant_result does, without loading all of torch.compile to do it.
_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache  # every call of a mapping asks, and nothing that counts here changes in a process
def _choice(backend: str, device: str, dtype: torch.dtype) -> str:
    check_choice(backend, "backend", BACKENDS)
    if backend == "auto":
        return _automatic(device, dtype)
    why_not = _refusal(backend, device, dtype)
    if why_not:
        raise ValueError(f"backend={backend!r} cannot run: {why_not}")
    return backend


def _automatic(device: str, dtype: torch.dtype) -> str:
    own = _OWN.get(device)
    if own is None:
        chosen, why = "torch", f"there are no kernels for {device}"
    else:
        why_not = _refusal(own, device, dtype)
        chosen, why = ("torch", why_not) if why_not else (own, "it is installed and runs there")
    _log.debug("backend auto: %s for %s on %s, because %s", chosen, dtype, device, why)
    return chosen


def _refusal(backend: str, device: str, dtype: torch.dtype) -> str:
    """Why a backend cannot run there, or nothing if it can."""
    if backend == "numba":
        return _numba_refusal(device, dtype)
    return _triton_refusal(device, dtype) if backend == "triton" else ""


def _numba_refusal(device: str, dtype: torch.dtype) -> str:
    if device != "cpu":
        return f"the scores are on {device}, and numba kernels run on the CPU"
    if dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return f"it has no kernel for {dtype}"
    if not _installed("numba"):
        return "numba is not installed"
    return ""


def _triton_refusal(device: str, dtype: torch.dtype) -> str:
    if not _installed("triton"):
        return "triton is not installed"
    if device != "cuda" and not (device == "cpu" and _interpreted()):
        return (
            f"the scores are on {device}, and Triton kernels run on CUDA; "
            "set TRITON_INTERPRET=1 before importing to interpret them on the CPU"
        )
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"its kernels compute in float32, and the scores are {dtype}"
    if torch.version.hip is not None:
        return "its kernels are written for NVIDIA's GPUs"
    version = _triton_version()
    if version < _OLDEST_TRITON:
        found, needed = (".".join(map(str, v)) for v in (version, _OLDEST_TRITON))
        return f"triton {found} is installed, and {needed} or newer is needed"
    return ""


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _triton_version() -> tuple[int, ...]:
    # asked of the module: packages of several names install it
    version: str = importlib.import_module("triton").__version__
    return tuple(int(part) for part in version.split(".")[:2])


def _interpreted() -> bool:
    """Whether Triton runs its kernels in Python; it reads the same variable when it is imported."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
