"""Memory that nobody has written to, made visible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Deterministic torch fills new tensors with NaN, and the largest integers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
