"""The benchmark refuses to time a wrong result, and says what it measured and where."""

import json

import pytest
import torch

import parsimax as px
from parsimax.bench import gate, rows, timing


def _solved(alpha, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(5, 40, generator=generator).to(dtype).requires_grad_()
    g = torch.randn(5, 40, generator=generator).to(dtype)
    p = px.entmax(z, alpha)
    (gz,) = torch.autograd.grad(p, z, g)
    return z.detach(), g, p.detach(), gz


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_result_passes(alpha, dtype):
    assert gate.refuse(*_solved(alpha, dtype), alpha) is None


def test_wrong_values_sums_and_gradients_are_refused():
    z, g, p, gz = _solved(1.5)
    shifted = p.clone()
    shifted[3, 7] += 1e-5
    assert gate.refuse(z, g, shifted, gz, 1.5).startswith("off by 1e-05")
    assert gate.refuse(z, g, p * (1 + 1.5e-6), gz, 1.5).startswith("sums off by")
    assert gate.refuse(z, g, p, gz + 1e-3, 1.5).startswith("gradient off by 1e-03")
    assert gate.refuse(z, g, torch.full_like(p, torch.nan), gz, 1.5) == "off by inf"


def test_rows_are_checked_up_to_the_last():
    z = torch.randn(1000, 8)
    p = px.entmax(z, 1.5)
    wrong = p.clone()
    wrong[-1, 0] += 1e-3
    g = torch.zeros_like(z)
    assert gate.refuse(z, g, p, g, 1.5) is None
    assert gate.refuse(z, g, wrong, g, 1.5) == "off by 1e-03"


def test_a_wrong_contender_gets_no_ratio(monkeypatch):
    def contenders(alpha):
        yield "parsimax", lambda z: px.entmax(z, alpha)
        yield "wrong", lambda z: torch.softmax(z, -1)

    monkeypatch.setattr(rows, "contenders", contenders)
    ours, wrong = rows.measure((8, 50), 1.0, 1.5, "float32", 1)
    assert ours.refused is None
    assert ours.forward_ratio > 0
    assert ours.backward_ratio > 0
    assert wrong.refused is not None
    assert wrong.forward_ratio is None


def test_a_wrong_result_of_ours_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(
        rows, "contenders", lambda alpha: [("parsimax", lambda z: torch.softmax(z, -1))]
    )
    status = rows.main(
        dtype="float32", shapes=[(4, 20)], alphas=[2.0], std=[1.0], repeats=1, out=None
    )
    assert status == 1
    assert "not timed" in capsys.readouterr().out


def test_results_are_stored_with_machine_date_and_versions(tmp_path, capsys):
    out = tmp_path / "new" / "rows.json"
    threads = torch.get_num_threads()
    status = rows.main(
        dtype="float32", shapes=[(4, 20)], alphas=[2.0], std=[1.0, 4.0], repeats=1, out=out
    )
    assert status == 0
    assert torch.get_num_threads() == threads
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert {"date", "processor", "torch", "entmax", "parsimax"} <= stored.keys()
    assert [row["std"] for row in stored["rows"]] == [1.0, 1.0, 4.0, 4.0]
    assert {row["contender"] for row in stored["rows"]} == {"parsimax", "entmax.sparsemax"}


def test_contenders_take_turns_and_slow_ones_are_measured_less(monkeypatch):
    calls = []
    clock = iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))  # every call: a second
    result = timing.medians(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=9
    )
    assert calls == ["a", "b"] * 4  # one unmeasured turn and three measured ones
    assert result == {"a": 1, "b": 1}
