"""Training as a Lightning module: one call of ``training_step`` is one step of the optimiser.

Lightning chooses devices, starts processes, wraps the model for DDP, casts to bf16 and runs the
loop. What has to be exact stays here: which batches, what the loss is divided by, when to validate,
what a checkpoint holds. Lightning sees one long epoch and no validation loader, because its own
counters run ahead of the data that was used.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor

from parsimax._runs import checkpoint
from parsimax._runs.display import Display
from parsimax._runs.errors import TrainingError
from parsimax._runs.folder import Hold
from parsimax.seq2seq.config import Config
from parsimax.seq2seq.data.batch import Batch
from parsimax.seq2seq.data.batching import BatchSampler, make_loader
from parsimax.seq2seq.data.corpus import Corpus
from parsimax.seq2seq.data.textcodec import TextCodec
from parsimax.seq2seq.models import Seq2Seq, build

from . import gathering, memory
from .folder import RunFolder, begin, prepare
from .graphs import GraphedLoss
from .keeping import Keeper
from .optimizing import apply_settings, make_optimizer, rescale
from .record import Recorder
from .schedule import Schedule
from .stream import Stream, Work
from .validation import measure, summarise

STOPPING = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = "interrupted"


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0  # of the optimiser
    epoch: int = 0  # complete ones
    batches: int = 0  # consumed in the epoch that has begun
    seconds: float = 0.0  # over all times the run was resumed


@dataclass
class _Logs:
    """What happened since the last line; tensors stay on their device until then."""

    losses: list[Tensor]
    norms: list[Tensor]
    work: list[Work]
    began: float

    @classmethod
    def empty(cls) -> _Logs:
        return cls([], [], [], time.perf_counter())


class TrainingModule(lightning.LightningModule):
    """A model, its optimiser and everything that a checkpoint of the two holds."""

    def __init__(self, config: Config, folder: RunFolder, resume: bool, display: Display) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.prepare_data_per_node = False  # the folder is on a disk that all machines see
        self.config = config
        self.folder = folder
        self.resume = resume
        self.display = display
        self.progress = Progress()
        self.schedule = Schedule(config.optimizer)
        validation = config.training.validation
        self.keeper = Keeper(validation.metric, config.training.keep, config.training.keep_last)
        self.validated: dict[str, Any] = {}  # the last one
        self.stopped = ""  # why
        self.hold: Hold | None = None  # in the process that took the folder
        self.interrupted = False  # somebody wants the run to end after this step
        self.model: Seq2Seq[Any] | None = None
        self._logs = _Logs.empty()
        self._recorder: Recorder | None = None
        self._random: dict[str, Any] | None = None
        self._graphed: GraphedLoss | None = None
        self._began = time.monotonic()

    # --- before the first step -------------------------------------------------------------------

    def prepare_data(self) -> None:
        """In one process: take the folder, learn the codec, encode the corpora."""
        if self.folder.path.is_dir():
            self.hold = Hold(self.folder.path)
        changes = begin(self.folder, self.config, self.resume)
        self.hold = self.hold or Hold(self.folder.path)
        for change in changes:
            self.display.line(f"resuming with a new value of {change}")
        if not self.resume:
            prepare(self.folder, self.config, self.display)

    def setup(self, stage: str) -> None:
        """In every process: open what was prepared."""
        self.display.quiet |= not self.trainer.is_global_zero
        self.codec = TextCodec.load(self.folder.codec)
        self.train_corpus = Corpus.open(self.folder.corpus("train"))
        self.validation_corpus = Corpus.open(self.folder.corpus("validation"))
        training = self.config.training
        size = training.validation.batch or training.batch.size
        self.sampler = self._sampler(self.train_corpus, training.batch.size, shuffle=True)
        self._in_order = self._sampler(self.validation_corpus, size, shuffle=False)
        self._loaders: dict[str, Iterable[Batch]] = {}

    def configure_model(self) -> None:
        """Build the model, the same in every process."""
        if self.model is not None:
            return
        checkpoint.seed_everything(self.config.seed, 0)
        codec = self.codec
        self.model = build(
            self.config.model, len(codec.source_vocabulary), len(codec.target_vocabulary)
        )
        if self.sharded:
            mesh = self.device_mesh
            assert mesh is not None
            gathering.shard(self.model, mesh["data_parallel"], self.config.training.precision)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser; schedules are ours."""
        assert self.model is not None
        return make_optimizer(self.model.parameters(), self.config.optimizer)

    def on_fit_start(self) -> None:
        """Go on from the last checkpoint, or write the first."""
        self._began = time.monotonic()
        if self.resume:
            self._restore(checkpoint.read(self.folder.checkpoint(checkpoint.LAST)))
        else:
            checkpoint.seed_everything(self.config.seed, self.global_rank)
            self._random = checkpoint.random_state(self.device)
        if self.trainer.is_global_zero:
            self._recorder = Recorder(
                self.folder.metrics, self.folder.tensorboard, self.progress.step
            )
        if not self.resume:
            self._save(validated=False)
        self.stopped = self._agree(self._why_stop(timed=self.resume))
        self.trainer.should_stop = bool(self.stopped)

    def train_dataloader(self) -> Iterable[Work]:
        """All work that is left."""
        training = self.config.training
        stream = Stream(
            self._batches_of,
            training.accumulate,
            epoch=self.progress.epoch,
            consumed=self.progress.batches,
            epochs=training.max_epochs,
        )
        return [] if self.stopped else stream

    def _batches_of(self, epoch: int, consumed: int) -> Iterable[Batch]:
        self.sampler.set_epoch(epoch)
        self.sampler.skip(consumed)
        return self._loader("train", self.train_corpus, self.sampler)

    def _sampler(self, corpus: Corpus, size: int, shuffle: bool) -> BatchSampler:
        return BatchSampler(
            corpus.source_lengths,
            corpus.target_lengths,
            size,
            self.config.training.batch.unit,
            seed=self.config.seed,
            shuffle=shuffle,
            rank=self.global_rank,
            world=self.trainer.world_size,
        )

    def _loader(self, name: str, corpus: Corpus, sampler: BatchSampler) -> Iterable[Batch]:
        """A loader whose workers stay, because epochs may be short."""
        if name not in self._loaders:
            workers = self.config.training.workers
            on_gpu = self.device.type == "cuda"
            self._loaders[name] = make_loader(
                corpus, sampler, workers, pin_memory=on_gpu, persistent=workers > 0
            )
        return self._loaders[name]

    def on_train_start(self) -> None:
        """Show that it begins."""
        training = self.config.training
        limits = [training.max_steps]
        if training.max_epochs is not None:
            per_epoch = -(-self.sampler.batches // training.accumulate)
            limits.append(per_epoch * training.max_epochs)
        total = min((limit for limit in limits if limit is not None), default=None)
        self.display.start(total, self.progress.step)
        if signal.getsignal(signal.SIGINT) == self.on_signal:
            # Lightning has put its own handler there, which talks to other processes at once.
            signal.signal(signal.SIGTERM, self.on_signal)
        self._graphed = self._graphs()
        self._logs = _Logs.empty()

    def _graphs(self) -> GraphedLoss | None:
        """CUDA graphs on one GPU; processes that exchange gradients run steps as they are."""
        alone = self.trainer.world_size == 1 and not self.sharded
        if self.device.type != "cuda" or not alone or not self.config.training.cuda_graphs:
            return None
        assert self.model is not None
        half = self.config.training.precision == "bf16-mixed"
        return GraphedLoss(self.model, context=_half_precision if half else None)

    # --- one step --------------------------------------------------------------------------------

    def transfer_batch_to_device(self, batch: Work, device: torch.device, _: int) -> Work:
        """Lightning's hook: the batches go while the host goes on."""
        return batch.to(device)

    def on_train_batch_start(self, batch: Work, batch_idx: int) -> None:
        """Random numbers go on from the checkpoint only now, when nobody else draws any more."""
        if self._random is not None:
            checkpoint.set_random_state(self._random, self.device)
            self._random = None

    def training_step(self, work: Work, batch_idx: int) -> None:
        """One step: gradients of sums over all batches and processes, divided once at the end."""
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.progress.step)
        losses = []
        try:
            for number, batch in enumerate(work.batches, 1):
                self._reduce_gradients(number == len(work.batches))
                losses.append(self.accumulate(batch))
            assert self.model is not None
            norm = rescale(self.model.parameters(), self._scale(work), self.config.optimizer.clip)
            optimizer.step()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not memory.is_exhausted(error):
                raise
            batch = work.batches[min(len(losses), len(work.batches) - 1)]
            message = memory.explain(batch, self.progress.step, self.config)
            raise TrainingError(message) from None
        optimizer.zero_grad(set_to_none=self._graphed is None)
        self._logs.losses.append(losses[0] if len(losses) == 1 else torch.stack(losses).sum())
        self._logs.norms.append(norm)
        self._logs.work.append(work)

    def accumulate(self, batch: Batch) -> Tensor:
        """Add the gradient of a batch's summed loss; the loss, in a tensor that stays as it is."""
        if self._graphed is not None:
            return self._graphed(batch)
        assert self.model is not None
        loss: Tensor = self.model(batch)
        self.manual_backward(loss)
        return loss.detach()

    def _reduce_gradients(self, reduce: bool) -> None:
        """Whether processes add up their gradients in the backward that follows."""
        wrapped = self.trainer.model
        if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            wrapped.require_backward_grad_sync = reduce
        elif self.sharded:
            self.model.set_requires_gradient_sync(reduce)  # type: ignore[union-attr, operator]

    def _scale(self, work: Work) -> float | Tensor:
        """One over the sentences or tokens of the step in all processes.

        DDP and FSDP give the mean of the processes' gradients, and the sum is wanted.
        """
        by_tokens = self.config.training.normalize == "tokens"
        count = work.tokens if by_tokens else work.sentences
        if self.trainer.world_size == 1:
            return 1.0 / count
        total = torch.tensor(float(count), device=self.device)
        return self.trainer.world_size / gathering.sum_over_processes(total)

    # --- between steps ---------------------------------------------------------------------------

    def on_train_batch_end(self, outputs: Any, work: Work, batch_idx: int) -> None:
        """Count, and log, validate, save and stop when it is time to."""
        progress, training = self.progress, self.config.training
        progress.step += 1
        progress.epoch = work.epoch + work.ends_epoch
        progress.batches = 0 if work.ends_epoch else work.consumed
        self.display.step(progress.step)
        log = progress.step % training.log_every == 0
        alone = self.trainer.world_size == 1
        stop = self._why_stop(timed=alone) or (self._interruption() if alone else "")
        # Processes have different clocks, and signals reach them at different steps: they agree
        # when they exchange sums anyway.
        if not alone and log:
            stop = stop or self._agree(self._why_stop() or self._interruption())
        validate = self._validation_is_due(work) or (bool(stop) and stop != _INTERRUPTED)
        save = validate or bool(stop)
        if training.save_every is not None:
            save = save or progress.step % training.save_every == 0
        if log or save:  # a checkpoint holds no part of a line
            self._log()
        if validate:
            self._validate()
            stop = stop or self._why_stop(timed=alone)  # what was validated is the same in all
        if save:
            self._save(validated=validate)
        self._logs.began = time.perf_counter() if save else self._logs.began
        if stop:
            self.stopped = stop
            self.trainer.should_stop = True

    def _validation_is_due(self, work: Work) -> bool:
        due = self.config.training.validation
        if due.unit == "steps":
            return self.progress.step % due.every == 0
        return work.ends_epoch and self.progress.epoch % due.every == 0

    def _why_stop(self, timed: bool = True) -> str:
        """Which limit has been reached, if one has."""
        training, progress = self.config.training, self.progress
        if training.max_steps is not None and progress.step >= training.max_steps:
            return f"training.max_steps = {training.max_steps} reached"
        if training.max_epochs is not None and progress.epoch >= training.max_epochs:
            return f"training.max_epochs = {training.max_epochs} reached"
        patience = training.validation.patience
        if patience is not None and self.keeper.since_best >= patience:
            return f"no better {training.validation.metric} in {patience} validations"
        minutes = training.max_minutes
        if timed and minutes is not None and self._seconds() >= 60 * minutes:
            return f"training.max_minutes = {minutes:g} reached"
        return ""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """End the run, saved, where all processes can; at once if asked a second time.

        One process ends after this step. Several agree where they exchange numbers for the log,
        because asking each other at every step would make all of them wait for the slowest.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        every = self.config.training.log_every
        if self._trainer is None or self._trainer.world_size == 1 or every == 1:
            when = "after this step"
        else:
            step = (self.progress.step // every + 1) * every
            when = f"after step {step:,}, where the processes agree on it (training.log_every)"
        self.display.line(f"stopping {when}; once more to stop at once")

    def _interruption(self) -> str:
        return _INTERRUPTED if self.interrupted else ""

    def _agree(self, reason: str) -> str:
        """The first reason that a process has, the same in all of them."""
        return next((r for r in gathering.gather(reason) if r), "")

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self._began

    def _log(self) -> None:
        """Fetch what happened since the last time; stop if it is no number any more."""
        logs, self._logs = self._logs, _Logs.empty()
        if not logs.losses:
            return
        count = len(logs.losses)
        counts = [sum(w.tokens for w in logs.work), sum(w.sentences for w in logs.work)]
        sums = torch.cat(
            [
                torch.stack(logs.losses).double(),
                torch.tensor(counts, dtype=torch.float64, device=self.device),
            ]
        )
        norms = torch.stack(logs.norms).double()
        values = torch.cat([gathering.sum_over_processes(sums), norms]).tolist()
        losses, (tokens, sentences), norms_ = values[:count], values[count:-count], values[-count:]
        self._check_finite(losses, norms_, logs.work)
        seconds = time.perf_counter() - logs.began
        by_tokens = self.config.training.normalize == "tokens"
        line = {
            "epoch": self.progress.epoch,
            "loss": sum(losses) / tokens,
            "objective": sum(losses) / (tokens if by_tokens else sentences),
            "gradient_norm": sum(norms_) / count,
            "lr": self._optimizer.param_groups[0]["lr"],
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "seconds": self._seconds(),
        }
        if self._recorder is not None:
            self._recorder.write("train", self.progress.step, line)
        self.display.step(
            self.progress.step,
            f"{line['tokens_per_second']:,.0f} tokens/s  loss {line['loss']:.4f}  "
            f"lr {line['lr']:.2g}",
        )

    def _check_finite(self, losses: list[float], norms: list[float], work: list[Work]) -> None:
        for number, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
            if loss - loss == 0 and norm - norm == 0:
                continue
            step = self.progress.step - len(losses) + number + 1
            what = f"the loss is {loss}" if loss - loss != 0 else f"the gradient's norm is {norm}"
            indices = [int(i) for index in work[number].indices for i in index if i >= 0]
            shown = ", ".join(map(str, indices[:20])) + (", ..." if len(indices) > 20 else "")
            raise TrainingError(
                f"{what} at step {step}, for the training examples {shown} (counted from 0). "
                + self._advice()
            )

    def _advice(self) -> str:
        """What to do about a model that diverged."""
        return (
            "Nothing of it was saved: the last checkpoint is older. Lower optimizer.lr (now "
            f"{self.config.optimizer.lr:g}), lengthen optimizer.schedule.warmup or lower "
            "optimizer.clip, and resume"
        )

    # --- validation and checkpoints --------------------------------------------------------------

    def _validate(self) -> None:
        assert self.model is not None
        training = self.config.training
        batches = self._loader("validation", self.validation_corpus, self._in_order)
        context = self.trainer.precision_plugin.val_step_context()
        try:
            total = measure(self.model, batches, self.device, context)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not memory.is_exhausted(error):
                raise
            raise TrainingError(memory.explain_validation(self.config)) from None
        if not math.isfinite(float(total.loss)):
            raise TrainingError(
                f"the validation loss is {float(total.loss)} after step {self.progress.step}. "
                + self._advice()
            )
        means = summarise(total)
        self.schedule.validated(means["loss"])
        best = self.keeper.add(self.progress.step, means[training.validation.metric], means["loss"])
        self.validated = {"epoch": self.progress.epoch, **means, "best": best}
        alphas = {kind: gathering.whole(a).tolist() for kind, a in self.model.alphas().items()}
        if alphas:
            self.validated["alphas"] = alphas
        if self._recorder is not None:
            self._recorder.write(
                "validation",
                self.progress.step,
                {**self.validated, "seconds": self._seconds()},
            )
            self._recorder.flush()
        self.display.line(
            f"step {self.progress.step:,}  epoch {self.progress.epoch}  "
            f"validation loss {means['loss']:.4f}  accuracy {100 * means['accuracy']:.2f} %  "
            f"support {means['output_support']:.2f} symbols, "
            f"{means['attention_support']:.2f} positions" + ("  (best)" if best else "")
        )

    def _save(self, validated: bool) -> None:
        """Write checkpoints so that at every moment the last one and all it names are there."""
        assert self.model is not None
        model = gathering.model_state(self.model)
        # The step may have been too large although its loss and gradient were numbers.
        for name, weight in model.items():
            if not bool(torch.isfinite(weight).all()):
                raise TrainingError(
                    f"the weights {name} have values that are no numbers after step "
                    f"{self.progress.step}. " + self._advice()
                )
        optimizer = gathering.optimizer_state(self.model, self._optimizer)
        random = self._random or checkpoint.random_state(self.device)
        randoms = gathering.gather(random)
        self.progress.seconds, self._began = self._seconds(), time.monotonic()
        if not self.trainer.is_global_zero:
            return
        common = {
            "model": model,
            "config": self.config.to_yaml(),
            "codec": self.codec.fingerprint,
            "progress": asdict(self.progress),
            "validated": self.validated,
        }
        step = self.progress.step
        if validated and self.keeper.stays(step):
            name = next(
                k.name for k in (*self.keeper.ranked, *self.keeper.recent) if k.step == step
            )
            checkpoint.write(self.folder.checkpoint(name), common)
        checkpoint.write(
            self.folder.checkpoint(checkpoint.LAST),
            {
                **common,
                "optimizer": optimizer,
                "schedule": self.schedule.state(),
                "keeper": self.keeper.state(),
                "random": randoms,
                "sampler": self.sampler.signature,
            },
        )
        self._tidy()

    def _tidy(self) -> None:
        """Let ``best`` be the best, and remove the checkpoints that are not kept."""
        if self.keeper.ranked:
            best = self.folder.checkpoint(self.keeper.ranked[0].name)
            checkpoint.point(self.folder.checkpoint(checkpoint.BEST), best)
        names = self.keeper.names()
        for path in self.folder.checkpoints.glob("step-*.ckpt"):
            if path.stem not in names:
                path.unlink()

    def _lost(self) -> set[str]:
        """Kept checkpoints whose files are gone, say because a run was copied without them.

        The best one is in ``best.ckpt``, too, and comes back from there. Only the first process
        looks, because it also writes.
        """
        if not self.trainer.is_global_zero:
            return set()
        gone = {n for n in self.keeper.names() if not self.folder.checkpoint(n).exists()}
        best = self.folder.checkpoint(checkpoint.BEST)
        ranked = self.keeper.ranked
        lost = bool(ranked) and ranked[0].name in gone and best.exists()
        if lost and checkpoint.read(best)["progress"]["step"] == ranked[0].step:
            checkpoint.point(self.folder.checkpoint(ranked[0].name), best)
            gone.remove(ranked[0].name)
        return gone

    def _restore(self, state: dict[str, Any]) -> None:
        assert self.model is not None
        if state["codec"] != self.codec.fingerprint:
            raise TrainingError(
                f"the last checkpoint of {self.folder.path} was trained with another vocabulary "
                f"than the one in {self.folder.codec}; put the codec folder of its run back, or "
                "train anew with --out and another folder"
            )
        if state["sampler"] != self.sampler.signature:
            raise TrainingError(
                f"the data in {self.folder.path / 'data'} is not what the last checkpoint was "
                "trained on, so the order of batches would differ; put it back, or train anew with "
                "--out and another folder"
            )
        gathering.set_model_state(self.model, state["model"])
        gathering.set_optimizer_state(self.model, self._optimizer, state["optimizer"])
        apply_settings(self._optimizer, self.config.optimizer)
        self.schedule.restore(state["schedule"])
        self.keeper.restore(state["keeper"])
        self.keeper.forget(gathering.gather(self._lost())[0])
        self.progress = Progress(**state["progress"])
        self.validated = state["validated"]
        if self.global_rank < len(state["random"]):
            self._random = state["random"][self.global_rank]
        else:  # more processes than before
            checkpoint.seed_everything(self.config.seed + self.progress.step, self.global_rank)
            self._random = checkpoint.random_state(self.device)
        if self.trainer.is_global_zero:
            self._tidy()
        self.display.line(
            f"resuming at step {self.progress.step:,}, epoch {self.progress.epoch}, "
            f"batch {self.progress.batches:,}"
        )

    def teardown(self, stage: str) -> None:
        """Close what is open."""
        self.display.stop()
        self._loaders = {}
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    @property
    def sharded(self) -> bool:
        """Whether the weights are spread over processes."""
        return isinstance(self.trainer.strategy, lightning.strategies.ModelParallelStrategy)

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.trainer.optimizers[0]
        return optimizer


def _half_precision() -> torch.autocast:
    """As Lightning casts, but a graph must not keep a cast weight: the weight changes."""
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
