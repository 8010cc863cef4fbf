"""What is random here is the same in every run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
