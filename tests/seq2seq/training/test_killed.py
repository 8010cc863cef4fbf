"""A run that is killed at any moment and resumed ends as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.seq2seq.training.runs import metrics, small_config

KILLER = Path(__file__).with_name("killer.py")


def test_killed_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    # 60 examples in batches of 8, two a step: 4 steps an epoch, 12 in all, saved at 3, 4, 6, ...
    config = small_config(
        tmp_path,
        *("--training.workers", "2", "--training.accumulate", "2", "--training.save_every", "3"),
        *("--training.keep", "2", "--training.keep_last", "1"),
    )
    assert config.model.dropout == 0.3
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    places = ("step:2", "backward:5", "half:1", "half:2", "renamed:1", "renamed:2", "step:11")
    times = tuple(f"after:{0.2 + 0.3 * n:.2f}" for n in range(3))
    runs = ["whole=end", *(f"placed={p}" for p in places), "placed=end"]
    runs += [*(f"timed={t}" for t in times), "timed=end"]
    log = tmp_path / "log"
    with log.open("w") as file:  # not a pipe, which workers of a killed process would keep open
        subprocess.run(
            [sys.executable, str(KILLER), "config.yaml", *runs],
            cwd=tmp_path,
            stdout=file,
            stderr=file,
            check=True,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            timeout=300,
        )
    expected = ["end exit 0", *(f"{p} killed" for p in places), "end exit 0"]
    assert log.read_text().splitlines()[: len(expected)] == expected
    assert log.read_text().splitlines()[-1] == "end exit 0"
    same(tmp_path / "placed", tmp_path / "whole")
    same(tmp_path / "timed", tmp_path / "whole")


def same(run: Path, whole: Path) -> None:
    ignored = {"event", "seconds", "tokens_per_second"}
    for event in ("train", "validation"):
        expected = [{k: v for k, v in m.items() if k not in ignored} for m in metrics(whole, event)]
        got = [{k: v for k, v in m.items() if k not in ignored} for m in metrics(run, event)]
        assert len(got) == len(expected) > 0
        for mine, theirs in zip(got, expected, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-6, rel=0)
    names = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert names == sorted(p.name for p in (whole / "checkpoints").iterdir())
    for name in names:  # the same computation in the same order: to the bit
        weights = [torch.load(r / "checkpoints" / name, weights_only=True) for r in (run, whole)]
        for key, value in weights[0]["model"].items():
            assert torch.equal(value, weights[1]["model"][key]), (name, key)
