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


def trained(tmp_path: Path, name: str, *wheres: str) -> tuple[Path, list[str]]:
    config = small_config(
        tmp_path,
        *("--training.workers", "2", "--training.accumulate", "2", "--training.save_every", "3"),
        *("--training.keep", "2", "--training.keep_last", "1"),
    )
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    log = tmp_path / f"{name}.log"
    with log.open("w") as file:  # not a pipe, which workers of a killed process would keep open
        subprocess.run(
            [sys.executable, str(KILLER), str(path), str(tmp_path / name), *wheres],
            stdout=file,
            stderr=file,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            timeout=200,
        )
    return tmp_path / name, log.read_text().splitlines()


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


def test_killed_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    # 60 examples in batches of 8, two a step: 4 steps an epoch, 12 in all, saved at 3, 4, 6, ...
    whole, log = trained(tmp_path, "whole", "end")
    assert log == ["end exit 0"]
    wheres = ("step:2", "backward:5", "half:1", "half:2", "renamed:1", "renamed:2", "step:11")
    run, log = trained(tmp_path, "killed", *wheres, "end")
    assert log == [f"{where} killed" for where in wheres] + ["end exit 0"]
    same(run, whole)


@pytest.mark.slow
def test_killed_at_any_time(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path, "whole", "end")
    wheres = tuple(f"after:{0.15 + 0.17 * n:.2f}" for n in range(8))
    run, _ = trained(tmp_path, "killed", *wheres, "end")
    same(run, whole)
