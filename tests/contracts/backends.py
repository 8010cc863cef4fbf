"""The backends that can run here, found by asking them."""

from __future__ import annotations

import torch

from parsimax._core.backend import BACKENDS, choose


def _runs(backend: str) -> bool:
    try:
        choose(backend, torch.zeros(1))
    except ValueError:
        return False
    return True


# "auto" only chooses among the others; one test shows that it adds nothing of its own.
AVAILABLE = [backend for backend in BACKENDS if backend != "auto" and _runs(backend)]
