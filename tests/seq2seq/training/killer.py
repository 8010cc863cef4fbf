"""A program that trains runs, is killed (SIGKILL) where it is told to be, and resumes them.

    killer.py CONFIG RUN=WHERE [RUN=WHERE ...]

Each argument is one process, forked from this one so that torch is imported once. WHERE is
``step:N`` (after step N, before anything is saved), ``backward:N`` (between backward and optimiser
of step N), ``half:K`` (with half of its K-th checkpoint file written), ``renamed:K`` (after its
K-th change of a name among the checkpoints), ``after:S`` (S seconds after it began) or ``end``.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from parsimax._runs import checkpoint
from parsimax.seq2seq import config as configs
from parsimax.seq2seq.training import fit
from parsimax.seq2seq.training.module import TrainingModule


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str) -> type[TrainingModule]:
    kind, _, number = where.partition(":")
    calls = 0

    class Killed(TrainingModule):
        def accumulate(self, batch: Any) -> torch.Tensor:
            loss = super().accumulate(batch)
            if kind == "backward" and self.progress.step + 1 == int(number):
                die()
            return loss

        def on_train_batch_end(self, *arguments: Any) -> None:
            if kind == "step" and self.progress.step + 1 == int(number):
                die()
            super().on_train_batch_end(*arguments)

    save, sync = torch.save, checkpoint.sync_folder

    def save_half(state: Any, file: Any) -> None:
        nonlocal calls
        calls += 1
        if calls < int(number):
            save(state, file)
            return
        whole = io.BytesIO()
        save(state, whole)
        file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
        file.flush()
        die()

    def sync_and_die(folder: Path) -> None:
        nonlocal calls
        calls += 1
        sync(folder)
        if calls == int(number):
            die()

    if kind == "half":
        torch.save = save_half
    if kind == "renamed":
        checkpoint.sync_folder = sync_and_die
    return Killed


def warm_up() -> None:
    """Load what a forked process would load once more."""
    import torch.utils.tensorboard

    import parsimax as px

    for alpha in (1.5, 2.0):
        z = torch.zeros(2, 3, requires_grad=True)
        px.entmax(z, alpha=alpha).sum().backward()
        px.entmax_loss(z, torch.tensor([0, 1]), alpha=alpha).backward()


def main(config: str, *runs: str) -> None:
    options = configs.load(config)
    warm_up()
    for run, _, where in (argument.rpartition("=") for argument in runs):
        child = os.fork()
        if child == 0:
            resume = Path(run, "checkpoints", "last.ckpt").exists()
            fit.train(options, run, resume=resume, quiet=True, module=arm(where))
            os._exit(0)
        if where.startswith("after:"):
            time.sleep(float(where.partition(":")[2]))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(
            where, "killed" if killed else f"exit {os.waitstatus_to_exitcode(status)}", flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
