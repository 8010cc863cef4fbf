"""Kernels: plain functions on tensors, without autograd. One package a backend, with one API."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

_PACKAGES = {"numba": "parsimax.kernels.cpu", "triton": "parsimax.kernels.gpu"}


@cache
def kernels_of(backend: str) -> ModuleType | None:
    """The kernels of a backend, imported only now; None for plain torch, which has none."""
    return importlib.import_module(_PACKAGES[backend]) if backend in _PACKAGES else None
