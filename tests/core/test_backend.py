"""Who computes: the choice, its reasons, and a backend asked for by name that cannot run."""

from __future__ import annotations

import logging

import pytest
import torch

import parsimax as px
from parsimax._core import backend as backends
from parsimax._core.backend import BACKENDS, choose


@pytest.fixture
def ask_again():
    """Choices are remembered: forget them, before what they rest on is changed and after."""
    backends._choice.cache_clear()
    yield
    backends._choice.cache_clear()


@pytest.fixture
def _without_numba(monkeypatch, ask_again):
    monkeypatch.setattr(backends, "_installed", lambda package: package != "numba")


@pytest.fixture
def _interpreted(monkeypatch, ask_again):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def _not_interpreted(monkeypatch, ask_again):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_auto_takes_numba_on_the_cpu():
    pytest.importorskip("numba")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert choose("auto", torch.zeros(2, dtype=dtype)) == "numba"


def test_auto_takes_torch_elsewhere():
    assert choose("auto", torch.empty(2, device="meta")) == "torch"
    assert choose("auto", torch.zeros(2).to(torch.float8_e5m2)) == "torch"


def test_auto_takes_triton_on_cuda():
    """Asked without a GPU: the choice needs only the kind of device."""
    pytest.importorskip("triton")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert backends._choice("auto", "cuda", dtype) == "triton"
    assert backends._choice("auto", "cuda", torch.float64) == "torch"


@pytest.mark.usefixtures("_interpreted")
def test_interpreted_triton_runs_on_the_cpu_when_it_is_asked_for():
    pytest.importorskip("triton")
    assert choose("triton", torch.zeros(2)) == "triton"
    assert choose("auto", torch.zeros(2)) == choose("auto", torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^backend='triton' cannot run: .*torch\.float64"):
        choose("triton", torch.zeros(2, dtype=torch.float64))


@pytest.mark.usefixtures("_not_interpreted")
def test_triton_refuses_the_cpu_unless_it_is_interpreted():
    pytest.importorskip("triton")
    message = r"^backend='triton' cannot run: the scores are on cpu, .*TRITON_INTERPRET=1"
    with pytest.raises(ValueError, match=message):
        px.entmax(torch.zeros(2), backend="triton")


def test_triton_that_is_missing_or_old(monkeypatch, ask_again):
    monkeypatch.setattr(backends, "_installed", lambda package: True)
    monkeypatch.setattr(backends, "_triton_version", lambda: (3, 5))
    with pytest.raises(ValueError, match=r"triton 3\.5 is installed, and 3\.6 or newer is needed"):
        backends._choice("triton", "cuda", torch.float32)
    assert backends._choice("auto", "cuda", torch.float32) == "torch"
    backends._choice.cache_clear()
    monkeypatch.setattr(backends, "_installed", lambda package: False)
    with pytest.raises(ValueError, match=r"^backend='triton' cannot run: triton is not installed"):
        backends._choice("triton", "cuda", torch.float32)
    assert backends._choice("auto", "cuda", torch.float32) == "torch"


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
    with caplog.at_level(logging.DEBUG, logger="parsimax"):
        px.softmax(torch.zeros(2))
        px.softmax(torch.zeros(2))
    messages = [r.getMessage() for r in caplog.records if r.name == "parsimax"]
    assert messages == [
        "backend auto: torch for torch.float32 on cpu, because numba is not installed"
    ]


def test_every_backend_has_a_distinct_name():
    assert len(set(BACKENDS)) == len(BACKENDS)
    assert BACKENDS[0] == "auto"


def test_a_backend_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match=r"^backend must be one of auto, torch, .*, got"):
        px.entmax(torch.zeros(2), backend=["torch"])
