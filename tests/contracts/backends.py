"""The backends that can run the whole contract here, found by asking them.

Triton is not among them: it has no float64, and its interpreter takes a hundred milliseconds for
what numba does in one. Its part of the contract is in tests/contracts/gpu.
"""

from __future__ import annotations

import torch

from parsimax._core.backend import BACKENDS, choose


def _runs(backend: str) -> bool:
    try:
        choose(backend, torch.zeros(1, dtype=torch.float64))
    except ValueError:
        return False
    return True


# "auto" only chooses among the others; one test shows that it adds nothing of its own.
AVAILABLE = [backend for backend in BACKENDS if backend != "auto" and _runs(backend)]
