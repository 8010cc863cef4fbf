"""Every test here finds NaN in memory that nobody has written to."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _poisoned():
    """Deterministic torch fills new tensors with NaN, and the largest integers."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
