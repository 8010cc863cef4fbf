"""Several processes, started by the command itself, do what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.seq2seq.training.runs import metrics, write_config

from parsimax._runs import checkpoint
from parsimax.seq2seq import config as configs
from parsimax.seq2seq.training import train as fit

# 61 examples in batches of 4, of which the last has one: then the second process has nothing. Two
# batches a step, so that the last step has one batch of 16.
RNN = (
    "--model.dropout",
    "0",
    "--training.max_epochs",
    "2",
    "--training.accumulate",
    "2",
    "--training.batch.size",
    "4",
)
TRANSFORMER = (
    *(
        "--training.max_epochs",
        "2",
        "--training.batch.size",
        "16",
        "--training.batch.unit",
        "tokens",
    ),
    *("--training.normalize", "tokens", "--optimizer.clip", "0.1"),
    # The gradient of a key's bias is zero but for rounding, which Adam would make as large as any.
    *("--optimizer.eps", "1e-4"),
)
SMALL = """
model:
  {kind: transformer, dim: 8, heads: 2, encoder_layers: 1, decoder_layers: 1, feedforward: 8,
   dropout: 0}
"""


def train(config: Path, run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "parsimax", "train", str(config), "--out", str(run), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        timeout=200,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def same(run: Path, whole: Path) -> None:
    """Losses, norms and weights to 1e-4 and better; what is counted, exactly."""
    for event in ("train", "validation"):
        expected, got = metrics(whole, event), metrics(run, event)
        assert [m["step"] for m in got] == [m["step"] for m in expected]
        for mine, theirs in zip(got, expected, strict=True):
            for key in {"loss", "objective", "gradient_norm", "accuracy", "lr"} & set(theirs):
                assert mine[key] == pytest.approx(theirs[key], abs=1e-5), (event, key)
            for key in {"sentences", "tokens", "epoch"} & set(theirs):
                assert mine[key] == theirs[key]
    mine, theirs = (checkpoint.read(r / "checkpoints" / "last.ckpt") for r in (run, whole))
    for name, value in theirs["model"].items():
        torch.testing.assert_close(mine["model"][name], value, rtol=0, atol=1e-4)
    assert mine["progress"]["batches"] == theirs["progress"]["batches"]
    assert len(mine["random"]) == 2


def test_two_processes_equal_one(tmp_path: Path) -> None:
    config = write_config(tmp_path, train=61)
    whole, run = tmp_path / "one", tmp_path / "two"
    fit(configs.load(config, RNN), whole, quiet=True)
    done = train(config, run, *RNN, "--training.devices", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Ended at step 16") == 1  # one of them speaks
    same(run, whole)


def test_sharded_processes_equal_one(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    text = config.read_text()
    begin = text.index("model:")
    config.write_text(text[:begin] + SMALL.strip() + "\n" + text[text.index("optimizer:") :])
    whole, run = tmp_path / "one", tmp_path / "two"
    fit(configs.load(config, TRANSFORMER), whole, quiet=True)
    fsdp = ("--training.strategy", "fsdp", "--training.devices", "2")
    assert train(config, run, *TRANSFORMER, *fsdp, "--training.max_epochs", "1").returncode == 0
    # Resumed by two, it ends as one process that was never stopped.
    done = train(config, run, *TRANSFORMER, *fsdp, "--resume")
    assert done.returncode == 0, done.stderr
    assert "training.max_epochs: 1 -> 2" in done.stderr
    same(run, whole)
