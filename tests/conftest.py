"""What is random here is the same in every run."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings
from tests.quick_interpreter import hasten

if not torch.cuda.is_available():
    # Triton decides when it is imported whether it interprets its kernels: no test has done so yet
    os.environ.setdefault("TRITON_INTERPRET", "1")
    hasten()

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
