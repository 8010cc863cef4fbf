"""The benchmark refuses to time a wrong result, and says what it measured and where."""

import json

import pytest
import torch

import parsimax as px
from parsimax.bench import contenders, results, rows, session, timing
from parsimax.bench.contenders import Contender


def _small(**changes):
    usual = {"shapes": [(4, 20)], "alphas": [2.0], "std": [1.0], "repeats": 1}
    return rows.plan(**{"device": "cpu", **usual, **changes})


def _ours(alpha):
    return Contender("parsimax", alpha, lambda z, _: px.entmax(z, alpha))


def test_a_wrong_contender_gets_no_ratio(monkeypatch):
    def take_part(alpha, dtype, device):
        yield _ours(alpha)
        yield Contender("wrong", alpha, lambda z, _: torch.softmax(z, -1))

    monkeypatch.setattr(contenders, "take_part", take_part)
    base, ours, wrong = rows.measure("float32", (8, 50), 1.0, _small(alphas=[1.5]))
    assert base.contender == "torch.softmax"
    assert (base.forward.ratio, base.backward.ratio) == (1, 1)
    assert ours.refused is None
    assert ours.forward.ratio > 0
    assert ours.backward.ratio > 0
    assert wrong.refused is not None
    assert wrong.forward is None
    assert wrong.backward is None


def test_what_a_contender_raises_is_its_result(monkeypatch):
    class OnlyForward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return px.entmax(z, 1.5)

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("no backward in this dtype")

    def broken(z, _):
        raise MemoryError

    def take_part(alpha, dtype, device):
        yield _ours(alpha)
        yield Contender("forward only", alpha, lambda z, _: OnlyForward.apply(z))
        yield Contender("broken", alpha, broken)

    monkeypatch.setattr(contenders, "take_part", take_part)
    _, ours, half, none = rows.measure("float32", (8, 50), 1.0, _small(alphas=[1.5]))
    assert ours.backward is not None
    assert half.forward is not None
    assert half.backward is None
    assert half.backward_refused == "RuntimeError: no backward in this dtype"
    assert none.refused == none.backward_refused == "MemoryError"


def test_a_wrong_result_of_ours_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(
        contenders,
        "take_part",
        lambda alpha, *_: [Contender("parsimax", alpha, lambda z, _: torch.softmax(z, -1))],
    )
    assert rows.main(_small()) == 1
    out = capsys.readouterr().out
    assert "not timed" in out
    assert "ours is wrong: float32 4x20 std 1 alpha 2.0: off by" in out


def test_results_are_stored_with_machine_date_and_versions(tmp_path, capsys):
    out = tmp_path / "new" / "rows.json"
    threads = torch.get_num_threads()
    assert rows.main(_small(std=[1.0, 4.0], dtypes=["float32", "bfloat16"]), out) == 0
    assert torch.get_num_threads() == threads
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert {"date", "processor", "torch", "entmax", "parsimax", "device"} <= stored.keys()
    single = [row for row in stored["rows"] if row["dtype"] == "float32"]
    assert [row["std"] for row in single] == [1.0] * 3 + [4.0] * 3
    names = ["torch.softmax", "parsimax", "entmax.sparsemax"]
    assert [row["contender"] for row in single[:3]] == names
    assert single[1]["shape"] == [4, 20]
    assert single[1]["forward"]["ms"] > 0
    half = {row["contender"] for row in stored["rows"] if row["dtype"] == "bfloat16"}
    assert half == {*names, "entmax.sparsemax, float32 inside"}
    assert str(out) in capsys.readouterr().out


def test_a_tensor_of_alpha_is_one_of_the_alphas():
    measured = rows.measure("float32", (16, 20), 1.0, _small(alphas=["tensor"]))
    names = [(row.contender, row.alpha, row.refused) for row in measured[1:]]
    assert names == [("parsimax", "tensor", None), ("entmax.entmax_bisect", "tensor", None)]


def test_only_some_take_part():
    measured = rows.measure("float32", (4, 20), 1.0, _small(only=["parsi"]))
    assert [row.contender for row in measured] == ["torch.softmax", "parsimax"]


def test_peers_are_left_out_when_the_time_is_up():
    measured = rows.measure("float32", (4, 20), 1.0, _small(minutes=-1.0))
    assert [row.refused for row in measured] == [None, None, contenders.LATE]


def test_peers_that_are_not_installed_are_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(contenders, "present", lambda package: False)
    monkeypatch.setattr(results, "installed", lambda package: results.ABSENT)
    out = tmp_path / "rows.json"
    assert rows.main(_small(), out) == 0
    assert "entmax is not installed" in capsys.readouterr().out
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert stored["entmax"] == "absent"
    assert [row["contender"] for row in stored["rows"]] == ["torch.softmax", "parsimax"]


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert session.choose("auto") == "cpu"
    with pytest.raises(ValueError, match="device: cuda was asked for"):
        session.choose("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert session.choose("auto") == "cuda"


def test_a_run_that_is_cut_short_leaves_what_it_has(monkeypatch, tmp_path):
    def measure(dtype, shape, std, todo, note):
        if std == 4.0:
            raise KeyboardInterrupt
        return [rows.Row(dtype, shape, std, 1.5, "parsimax")]

    monkeypatch.setattr(rows, "measure", measure)
    out = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        rows.main(_small(std=[1.0, 4.0]), out)
    assert len(json.loads(out.read_text(encoding="utf-8"))["rows"]) == 1


def test_the_table_has_a_column_for_the_floor_on_a_gpu():
    fast = rows.Measured(0.07, 0.4, 0.09, True, 0.063, 0.9)
    eager = rows.Measured(0.7, 4.0, 0.7, False, 0.063, 0.09)

    def row(std, name, *rest):
        return rows.Row("bfloat16", (8, 4), std, 1.5, name, 7, *rest)

    found = [
        row(1.0, "parsimax", None, None, fast, eager),
        row(1.0, "peer", "off by 1", "off by 1"),
        row(8.0, "parsimax", None, "off by 2", fast, None),
        row(8.0, "peer", "off by 3", "off by 3"),
    ]
    table = rows.table(found, rows.Plan(device="cuda", std=(1.0, 8.0)))
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == [
        *("bfloat16", "8x4", "1.5", "parsimax"),
        *("0.40 / 0.40", "90 / 90", "4.00 / - *", "9 / -"),
    ]
    assert cells[4][1] == "not timed: off by 1"
    assert len(rows.table(found, rows.Plan()).columns) == 6


def test_contenders_take_turns_and_slow_ones_are_measured_less(monkeypatch):
    calls = []
    clock = iter(range(1000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))  # every call: a second
    result = timing.medians(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=9
    )
    assert calls == ["a", "b"] * 4  # one unmeasured turn and three measured ones
    assert result == {"a": 1, "b": 1}


def test_names_that_nobody_has_are_refused():
    with pytest.raises(ValueError, match=r"only: nobody has nosuch in the name; there are torch\."):
        rows.plan(device="cpu", only=["nosuch"])
    assert rows.plan(device="cpu", only=["nosuch", "parsimax"]).only == ["nosuch", "parsimax"]
