"""Every test here begins without plans and, where there is no GPU, with NaN in fresh memory."""

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


@pytest.fixture(autouse=True)
def _nothing_planned(monkeypatch):
    """Tests change constants that plans are made of."""
    launch = pytest.importorskip("parsimax.kernels.gpu.flash.launch")
    for plans in ("_FORWARDS", "_BACKWARDS"):
        monkeypatch.setattr(launch, plans, {})
