"""Timing on a GPU: what can be told without one, and with one that it captures and waits right."""

import pytest
import torch

from parsimax.bench import contenders, gpu_timing, loss, rows

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_eager_and_graph_stand_side_by_side(monkeypatch):
    class Graph:
        def __init__(self, run):
            self.replay = run

    durations = {"eager": 4e-3, "replay": 1e-3}
    kind = ["eager"]

    def capture(run, stream, pool):
        kind[0] = "replay"
        return None if run() == "waits" else Graph(run)

    def clock(run):
        run()
        return durations[kind[0]]

    monkeypatch.setattr(gpu_timing, "capture", capture)
    monkeypatch.setattr(gpu_timing, "_clock", clock)
    monkeypatch.setattr(gpu_timing, "_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    runs = {"captured": lambda: "free", "eager only": lambda: "waits"}
    found = gpu_timing.times(runs, calls=2, repeats=3)
    assert found["captured"].eager_ms == pytest.approx(2.0)
    assert found["captured"].ms == pytest.approx(0.25)  # two replays a batch, two calls a replay
    assert found["captured"].graph is True
    assert found["eager only"].ms == found["eager only"].eager_ms == pytest.approx(2.0)
    assert found["eager only"].graph is False


def test_what_takes_long_is_measured_three_times_and_never_captured(monkeypatch):
    ticks = iter((0.2, 0.9, 0.3, 0.4))
    monkeypatch.setattr(gpu_timing, "_clock", lambda run: next(ticks))
    monkeypatch.setattr(gpu_timing, "capture", pytest.fail)
    monkeypatch.setattr(gpu_timing, "_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    found = gpu_timing.times({"long": lambda: None, "longer": lambda: None}, calls=1, repeats=5)
    assert found["long"].ms == found["long"].eager_ms == pytest.approx(300.0)
    assert found["longer"].ms == pytest.approx(900.0)
    assert found["long"].graph is None
    assert next(ticks, None) is None


class TestOnGpu:
    pytestmark = gpu

    def test_work_is_captured_and_waiting_is_noticed(self):
        x = torch.randn(1 << 20, device="cuda")
        found = gpu_timing.times({"free": x.exp, "waits": lambda: x.sum().item()}, 1, 5)
        assert found["free"].graph
        assert not found["waits"].graph
        assert 0 < found["free"].ms <= 1.5 * found["free"].eager_ms
        assert torch.cuda.current_stream() == torch.cuda.default_stream()

    def test_inputs_take_turns_when_they_fit_in_the_cache(self):
        sets = contenders.draw((64, 512), 1.0, torch.bfloat16, "cuda")
        assert len(sets) == 8
        assert not torch.equal(sets[0].z, sets[1].z)

    def test_small_runs(self, tmp_path):
        todo = rows.plan(device="cuda", shapes=[(64, 512)], std=[1.0], only=["parsimax"], repeats=3)
        assert rows.main(todo, tmp_path) == 0
        layer = loss.plan(device="cuda", tokens=64, hidden=64, words=[500], std=[1.0], repeats=3)
        loss.main(layer, tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == 2
