"""Who computes: the choice, its reasons, and a backend asked for by name that cannot run."""

from __future__ import annotations

import logging

import pytest
import torch

import parsimax as px
from parsimax._core import backend as backends
from parsimax._core.backend import BACKENDS, choose


@pytest.fixture
def _without_numba(monkeypatch):
    monkeypatch.setattr(backends, "_installed", lambda package: package != "numba")


def test_auto_takes_numba_on_the_cpu():
    pytest.importorskip("numba")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert choose("auto", torch.zeros(2, dtype=dtype)) == "numba"


def test_auto_takes_torch_elsewhere():
    assert choose("auto", torch.empty(2, device="meta")) == "torch"
    assert choose("auto", torch.zeros(2).to(torch.float8_e5m2)) == "torch"


def test_a_named_backend_is_taken_or_refused_with_the_reason():
    assert choose("torch", torch.zeros(2)) == "torch"
    with pytest.raises(ValueError, match=r"^backend='numba' cannot run: the scores are on meta"):
        choose("numba", torch.empty(2, device="meta"))
    with pytest.raises(ValueError, match=r"^backend='numba' cannot run: .*float8_e5m2"):
        choose("numba", torch.zeros(2).to(torch.float8_e5m2))


@pytest.mark.usefixtures("_without_numba")
def test_without_numba_everything_runs_in_torch():
    z = torch.randn(3, 5, requires_grad=True)
    assert choose("auto", z) == "torch"
    p = px.entmax(z, 1.3)
    p.square().sum().backward()
    assert torch.equal(p, px.entmax(z, 1.3, backend="torch"))
    with pytest.raises(ValueError, match=r"^backend='numba' cannot run: numba is not installed"):
        px.entmax(z, backend="numba")


@pytest.mark.usefixtures("_without_numba")
def test_auto_says_once_why(caplog):
    backends._say.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="parsimax"):
        px.softmax(torch.zeros(2))
        px.softmax(torch.zeros(2))
    messages = [r.getMessage() for r in caplog.records if r.name == "parsimax"]
    assert messages == ["backend auto: torch on cpu, because numba is not installed"]


def test_every_backend_has_a_distinct_name():
    assert len(set(BACKENDS)) == len(BACKENDS)
    assert BACKENDS[0] == "auto"
