"""From a config to a trained run: one loop over epochs, the best of which is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parsimax._runs import checkpoint, metrics_file
from parsimax._runs.display import Display
from parsimax._runs.errors import TrainingError
from parsimax._runs.folder import Hold

from . import vectors as word_vectors
from .batches import Batch, shuffled
from .config import Config, Metric
from .corpora import Corpora
from .evaluation import evaluate
from .folder import NO_MATTER, RunFolder, begin, check_resumed, go_on
from .metrics import Scores
from .model import Classifier, Prediction
from .run import Run
from .vocabulary import Vocabulary

Objective = Callable[[Classifier, Prediction, Batch], Tensor]
"""What is minimised: (model, prediction, batch) to one value a text (B,)."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        run: The model of the best epoch.
        epochs: That were trained, in all.
        stopped: Why it ended.
        best: Epoch, and scores on the validation data.
        test: Scores of the best epoch on the test data, if there are any.
        seconds: All epochs together, with their validation.
    """

    run: Run
    epochs: int
    stopped: str
    best: tuple[int, dict[str, Any]]
    test: Scores | None
    seconds: float


@dataclass
class _State:
    """What changes while a run trains; all of it is in a checkpoint."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_value: float = -math.inf
    seconds: float = 0.0


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    objective: Objective | None = None,
    origin: str = "",
    data_of: str | None = None,
) -> Outcome:
    """Train a classifier into a run folder.

    Args:
        config: All options; see :func:`parsimax.classify.config.load`.
        folder: Where the run is, or will be.
        resume: Go on after the last epoch; otherwise there must be none.
        quiet: Show nothing.
        objective: What to minimise instead of the output mapping's loss, such as an adversary's.
        origin: What the objective depends on besides the config; a run is resumed with the same
            only.
        data_of: The fingerprint that the training and validation data must have, if any.
    """
    place = RunFolder(Path(folder))
    device = _device(config.training.device)
    hold = Hold(place.path) if place.path.is_dir() else None
    try:
        differ = check_resumed(place, config) if resume else {}
        if not resume:
            begin(place, config)
        hold = hold or Hold(place.path)
        display = Display(quiet)
        data = Corpora.read(config, display)
        if data_of is not None and data.fingerprint != data_of:
            raise TrainingError(
                f"{place.path}: the training or validation data are not those that the run it is "
                "compared with was trained on; train that run again"
            )
        checkpoint.seed_everything(config.seed, 0)
        model = _new_model(config, data.vocabulary, display).to(device)
        trainer = _Trainer(config, place, display, data, model, objective, origin)
        if resume:
            trainer.restore(differ)
            go_on(place, config)
        data.vocabulary.save(place.vocabulary)
        return trainer.run()
    finally:
        if hold is not None:
            hold.release()


def _new_model(config: Config, vocabulary: Vocabulary, display: Display) -> Classifier:
    start = None
    if config.data.vectors is not None:
        found = word_vectors.read(config.data.vectors, vocabulary, config.seed)
        display.line(word_vectors.describe(found, vocabulary))
        start = torch.from_numpy(found.matrix)
        asked = config.model.embedding
        if asked is not None and asked != start.shape[1]:
            raise TrainingError(
                f"model.embedding: {config.data.vectors} has vectors of size {start.shape[1]}, "
                f"got {asked}; leave it out"
            )
    else:
        display.line(f"{len(vocabulary.words):,} words")
    return Classifier(config.model, len(vocabulary), len(vocabulary.labels), start)


class _Trainer:
    """The loop."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        display: Display,
        data: Corpora,
        model: Classifier,
        objective: Objective | None,
        origin: str,
    ) -> None:
        self.config, self.folder, self.display = config, folder, display
        self.data, self.model = data, model
        self.device = model.out.weight.device
        self.optimizer = make_optimizer(config, model)
        self.class_weights = _class_weights(config, data).to(self.device)
        self.objective = objective or self._own_loss
        self.origin = origin
        self.state = _State()

    def run(self) -> Outcome:
        metrics_file.keep_until(self.folder.metrics, self.state.step)
        training = self.config.training
        batches = math.ceil(len(self.data.train) / training.batch)
        self.display.start(batches * training.max_epochs, self.state.step)
        stopped = self._stopped()
        try:
            while stopped is None:
                self._epoch()
                stopped = self._stopped()
        finally:
            self.display.stop()
        best = checkpoint.read(self.folder.checkpoint(checkpoint.BEST))
        self.model.load_state_dict(best["model"])
        test = self._test()
        run = Run(
            self.model.eval(),
            self.data.vocabulary,
            self.config,
            self.folder.path,
            best["epoch"],
            best["validated"],
            self.data.fingerprint,
        )
        return Outcome(
            run=run,
            epochs=self.state.epoch,
            stopped=stopped,
            best=(best["epoch"], best["validated"]),
            test=test,
            seconds=self.state.seconds,
        )

    def _stopped(self) -> str | None:
        training, state = self.config.training, self.state
        if state.epoch >= training.max_epochs:
            return f"training.max_epochs = {training.max_epochs} reached"
        if training.max_minutes is not None and state.seconds >= 60 * training.max_minutes:
            return f"training.max_minutes = {training.max_minutes:g} reached"
        if training.patience is not None and state.epoch - state.best_epoch >= training.patience:
            return f"{training.metric} was not better for {training.patience} epochs"
        return None

    def _epoch(self) -> None:
        began = time.monotonic()
        self.model.train()
        total, tokens, state = 0.0, 0, self.state
        random = np.random.default_rng([self.config.seed, state.epoch])
        for batch in shuffled(self.data.train, self.config.training.batch, random):
            total += self._step(batch)
            tokens += int(batch.mask.sum())
            state.step += 1
            if not math.isfinite(total):
                raise TrainingError(
                    f"the loss is {total} at step {state.step}; take a smaller optimizer.lr, or "
                    "set optimizer.clip"
                )
            self.display.step(state.step)
        state.epoch += 1
        trained = time.monotonic() - began
        loss = total / len(self.data.train)
        scores, _ = evaluate(self.model, self.data.validation, self.data.vocabulary.labels)
        state.seconds += time.monotonic() - began
        self._keep(scores)
        values = {"epoch": state.epoch, "train_loss": loss, "seconds": round(trained, 3)}
        metrics_file.append(
            self.folder.metrics, "validation", state.step, {**values, **scores.to_dict()}
        )
        self.display.step(state.step, f"{tokens / trained:,.0f} tokens/s  loss {loss:.4f}")
        self.display.line(
            f"epoch {state.epoch}: train loss {loss:.4f}, validation {_shown(scores)}"
            f"  ({trained:.1f} s{', best' if state.best_epoch == state.epoch else ''})"
        )

    def _step(self, batch: Batch) -> float:
        batch = batch.to(self.device)
        losses = self.objective(self.model, self.model(batch.tokens, batch.mask), batch)
        loss = losses.sum() if self.config.training.loss == "sum" else losses.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip = self.config.optimizer.clip
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        return float(losses.detach().sum())

    def _own_loss(self, model: Classifier, found: Prediction, batch: Batch) -> Tensor:
        return model.loss(found.scores, batch.labels, self.class_weights)

    def _keep(self, scores: Scores) -> None:
        """Write the checkpoints of an epoch: the last one, and the best so far."""
        value, state = better(scores, self.config.training.metric), self.state
        best = value > state.best_value or not state.best_epoch
        if best:
            state.best_value, state.best_epoch = value, state.epoch
        whole = {
            "model": self.model.state_dict(),
            "vocabulary": self.data.vocabulary.fingerprint,
            "data": self.data.fingerprint,
            "origin": self.origin,
            "epoch": state.epoch,
            "validated": scores.to_dict(),
        }
        if best:
            checkpoint.write(self.folder.checkpoint(checkpoint.BEST), whole)
        checkpoint.write(
            self.folder.checkpoint(checkpoint.LAST),
            {
                **whole,
                "optimizer": self.optimizer.state_dict(),
                "progress": dict(vars(state)),
                "random": checkpoint.random_state(self.device),
            },
        )

    def restore(self, differ: Mapping[str, str]) -> None:
        """Go on from the last checkpoint, if it is of the same data; nothing is written here.

        ``differ`` are the options that the run had otherwise, in words.
        """
        path = self.folder.checkpoint(checkpoint.LAST)
        last = checkpoint.read(path)
        # checkpoints of earlier versions know their vocabulary only
        data = last.get("data", self.data.fingerprint)
        if (last["vocabulary"], data) != (self.data.vocabulary.fingerprint, self.data.fingerprint):
            raise TrainingError(f"{path}: the training data are not those of this run any more")
        if last.get("origin", self.origin) != self.origin:
            raise TrainingError(f"{path} was trained beside another model than the one given now")
        self.model.load_state_dict(last["model"])
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(last["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # which may be told anew
        self.state = _State(**last["progress"])
        vain = [words for key, words in differ.items() if key not in {*NO_MATTER, "data.test"}]
        stopped = self._stopped()
        if stopped is not None and vain:
            raise TrainingError(
                f"{self.folder.path} has ended after {self.state.epoch} epochs ({stopped}), and "
                f"other values of {', '.join(vain)} would change its config and not its weights; "
                "begin a new run, or let it train longer"
            )
        checkpoint.set_random_state(last["random"], self.device)

    def _test(self) -> Scores | None:
        if self.data.test is None:
            return None
        scores, _ = evaluate(self.model, self.data.test, self.data.vocabulary.labels)
        lines = metrics_file.read_metrics(self.folder.metrics)
        if not lines or lines[-1]["event"] != "test":  # which an ended run has, if it is resumed
            values = {"epoch": self.state.best_epoch, **scores.to_dict()}
            metrics_file.append(self.folder.metrics, "test", self.state.step, values)
        return scores


def better(scores: Scores, metric: Metric) -> float:
    """A number that is higher for better scores."""
    if metric == "loss":
        return -scores.loss
    value = {"auc": scores.auc, "accuracy": scores.accuracy, "f1": scores.f1}[metric]
    return -math.inf if math.isnan(value) else value


def _shown(scores: Scores) -> str:
    area = "undefined" if math.isnan(scores.auc) else f"{scores.auc:.4f}"
    return (
        f"loss {scores.loss:.4f}, accuracy {100 * scores.accuracy:.2f} %, "
        f"F1 {scores.f1:.4f}, AUC {area}"
    )


def make_optimizer(config: Config, model: Classifier) -> torch.optim.Optimizer:
    """Adam, without weight decay for attention."""
    settings = config.optimizer
    attention = {id(p) for p in model.attention.parameters()}
    learned = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for p in learned if id(p) not in attention],
            "weight_decay": settings.weight_decay,
        },
        {"params": [p for p in learned if id(p) in attention], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if settings.decoupled else torch.optim.Adam
    return kind(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        amsgrad=settings.amsgrad,
        fused=True,  # one pass over the embedding, which is most of a small model
    )


def _class_weights(config: Config, data: Corpora) -> Tensor:
    classes = len(data.vocabulary.labels)
    if config.training.class_weights == "equal":
        return torch.ones(classes)
    counts = torch.bincount(data.train.labels, minlength=classes)
    return len(data.train) / (classes * counts.float())


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError("training.device: cuda was asked for, and torch finds no GPU; take cpu")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
