"""From a config to a trained run."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

from parsimax._runs.display import Display
from parsimax._runs.errors import TrainingError
from parsimax.seq2seq.config import Config

from .averaging import average
from .folder import RunFolder
from .module import STOPPING, TrainingModule
from .others import EndOthers


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        folder: Of the run.
        step: Of the optimiser, in all.
        stopped: Why it ended.
        validation: The last validation.
        best: The step and the value of the metric of the best one; None if there was none.
        first: Whether this is the first of the processes, the one that speaks.
    """

    folder: Path
    step: int
    stopped: str
    validation: dict[str, Any]
    best: tuple[int, float] | None
    first: bool

    @property
    def interrupted(self) -> bool:
        """Whether somebody stopped it before it was done."""
        return self.stopped == "interrupted"


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    module: type[TrainingModule] = TrainingModule,
) -> Outcome:
    """Train a model into a run folder, or go on where its last checkpoint stands.

    With several devices this starts one process for each, unless a launcher such as ``torchrun``
    or SLURM did; all of them run the same program up to here.

    Args:
        config: All options; see :func:`parsimax.seq2seq.config.load`.
        folder: Where the run is, or will be.
        resume: Go on from the last checkpoint; otherwise there must be none.
        quiet: Show nothing.
        module: What makes a step.
    """
    made = module(config, RunFolder(Path(folder)), resume, Display(quiet))
    others = EndOthers()
    with _calm(), _stoppable(made):
        try:
            make_trainer(config, others).fit(made)
        except RuntimeError:
            if others.failed:
                raise TrainingError(
                    "another process of this run ended with an error, which it has said above"
                ) from None
            raise
        finally:
            if made.hold is not None:
                made.hold.release()
    ranked = made.keeper.ranked
    wanted = config.training.average > 1 and not made.interrupted
    if made.trainer.is_global_zero and wanted and ranked:
        average(made.folder.path, min(config.training.average, len(ranked)))
    return Outcome(
        folder=made.folder.path,
        step=made.progress.step,
        stopped=made.stopped,
        validation=made.validated,
        best=(ranked[0].step, ranked[0].value) if ranked else None,
        first=made.trainer.is_global_zero,
    )


def make_trainer(config: Config, *callbacks: lightning.Callback) -> lightning.Trainer:
    """Lightning's trainer, told to leave to us what has to be exact."""
    training = config.training
    strategy: Any = training.strategy
    precision: Any = training.precision
    if strategy == "fsdp":
        # All processes share one copy of the weights and each has its own part of a batch.
        # Lightning casts to bf16 by autocast; here FSDP itself does.
        strategy = _sharded()
        precision = "32-true" if precision == "bf16-mixed" else precision
    # A job that is requeued by SLURM goes on from our checkpoints, not from Lightning's.
    plugins: list[Any] = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    if precision == "64-true":
        plugins, precision = [*plugins, _DoublePrecision()], None
    return lightning.Trainer(
        plugins=plugins,
        accelerator=training.accelerator,
        devices=training.devices,
        num_nodes=training.num_nodes,
        strategy=strategy,
        precision=precision,
        max_epochs=1,  # the stream of work is one long epoch
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class _DoublePrecision(lightning.plugins.DoublePrecision):
    """Lightning would look for floats in a batch and change it; it is frozen and has none."""

    def convert_input(self, data: Any) -> Any:
        return data


def _sharded() -> lightning.strategies.ModelParallelStrategy:
    class Sharded(lightning.strategies.ModelParallelStrategy):
        """All processes are data-parallel, none tensor-parallel."""

        def setup_environment(self) -> None:
            self._data_parallel_size = self.num_nodes * self.num_processes
            super().setup_environment()

    return Sharded(data_parallel_size=1, tensor_parallel_size=1)


@contextmanager
def _calm() -> Iterator[None]:
    """Lightning talks about itself: tips, devices that are not used, what it would do better."""
    loggers = [logging.getLogger(f"{name}.utilities.rank_zero") for name in _PACKAGES]
    loggers += [logging.getLogger(name) for name in _PACKAGES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for package in _PACKAGES:
            warnings.filterwarnings("ignore", module=rf"{package}(\..*)?")
        # FSDP warns of what in-place operations on a model's output would do; there are none.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


_PACKAGES = ("pytorch_lightning", "lightning_fabric")


@contextmanager
def _stoppable(module: TrainingModule) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run after a step and saves it; the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, module.on_signal)
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
