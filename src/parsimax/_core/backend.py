"""Choose who computes: numba on the CPU, plain torch anywhere else."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache

import torch
from torch import Tensor

from .validation import check_choice

BACKENDS = ("auto", "torch", "numba")
_log = logging.getLogger("parsimax")


@cache
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@cache
def _say(device: str, chosen: str, why: str) -> None:
    _log.debug("backend auto: %s on %s, because %s", chosen, device, why)


def choose(backend: str, z: Tensor) -> str:
    """The backend for this tensor; one asked for by name that cannot run raises, saying why."""
    check_choice(backend, "backend", BACKENDS)
    numba_refusal = _numba_refusal(z)
    if backend == "numba" and numba_refusal:
        raise ValueError(f"backend='numba' cannot run: {numba_refusal}")
    if backend != "auto":
        return backend
    if numba_refusal:
        _say(z.device.type, "torch", numba_refusal)
        return "torch"
    _say(z.device.type, "numba", "it is installed and the scores are on the CPU")
    return "numba"


def _numba_refusal(z: Tensor) -> str:
    if z.device.type != "cpu":
        return f"the scores are on {z.device.type}, and numba kernels run on the CPU"
    if z.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return f"it has no kernel for {z.dtype}"
    if not _installed("numba"):
        return "numba is not installed"
    return ""
