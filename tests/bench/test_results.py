"""Where results are kept, and what is said about the machine."""

import json
from dataclasses import dataclass

import torch

import parsimax
from parsimax.bench import results


@dataclass(frozen=True)
class _Row:
    name: str
    ms: float | None
    shape: tuple[int, int] = (3, 4)


def test_one_result_a_line_and_no_more_digits_than_are_known(tmp_path):
    path = tmp_path / "new" / "results.json"
    results.store(path, {"date": "today", "speed": 1 / 3}, [_Row("a", 2 / 3), _Row("b", None)])
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == {
        "date": "today",
        "speed": 0.333333,
        "rows": [
            {"name": "a", "ms": 0.666667, "shape": [3, 4]},
            {"name": "b", "ms": None, "shape": [3, 4]},
        ],
    }
    assert sum("ms" in line for line in text.splitlines()) == 2
    results.store(path, {"date": "today"}, [])
    assert json.loads(path.read_text(encoding="utf-8"))["rows"] == []


def test_a_gpu_is_described_and_names_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(results, "_driver", lambda: "580.1")
    about = results.machine("cuda")
    assert about["gpu"] == "NVIDIA H200"
    assert about["driver"] == "580.1"
    assert about["parsimax"] == parsimax.__version__
    assert {"date", "cuda", "torch", "triton", "entmax", "adasplash", "python"} <= about.keys()
    target = results.destination(tmp_path, "loss", "cuda")
    assert target == tmp_path / "loss-nvidia-h200.json"


def test_code_is_told_from_any_other(monkeypatch, tmp_path):
    (tmp_path / "part").mkdir()
    files = tmp_path / "__init__.py", tmp_path / "part" / "a.py"
    for path in files:
        path.write_text("x = 1\n")
    monkeypatch.setattr(results.parsimax, "__file__", str(files[0]))
    first = results.code()
    assert first == results.code()
    assert len(first) == 12
    files[1].write_text("x = 2\n")
    changed = results.code()
    files[1].rename(tmp_path / "part" / "b.py")
    assert len({first, changed, results.code()}) == 3


def test_a_driver_that_cannot_be_asked_is_unknown(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(results.subprocess, "run", missing)
    assert results._driver() == "unknown"
