"""Without a GPU, every test here finds NaN in memory that nobody has written to."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from tests.contracts.gpu.device import DEVICE
from tests.contracts.gpu.poison import poisoned


@pytest.fixture(autouse=True)
def _poisoned():
    # on a GPU torch would warn of products that the references are made of
    with poisoned() if DEVICE.type == "cpu" else nullcontext():
        yield
