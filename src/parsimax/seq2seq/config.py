"""All options of a run: data, model, optimiser, training, search and seed.

A config file writes them as YAML and leaves out what has its default::

    data:
      format: tsv
      train: [train.tsv]
      validation: [dev.tsv]
    model: {kind: rnn, hidden: 200, output: entmax(alpha=1.5)}
    optimizer: {lr: 1e-3}

Paths are those of the folder in which the command is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from parsimax._runs import config_reader
from parsimax._runs.config_reader import ConfigError, Rule
from parsimax._runs.rules import above, at_least, betas, factor, fraction, mapping, paths

from .data.segmentation import KINDS
from .data.textcodec import CodecSettings
from .models.settings import LEARNED, ModelSettings, RNNSettings

__all__ = [
    "BatchSettings",
    "Config",
    "ConfigError",
    "DataSettings",
    "OptimizerSettings",
    "ScheduleSettings",
    "SearchSettings",
    "TrainingSettings",
    "ValidationSettings",
    "load",
]


@dataclass(frozen=True)
class DataSettings:
    """Which files, and how their text becomes symbols."""

    train: tuple[str, ...]  # files, folders or globs; for parallel text the source, then the target
    validation: tuple[str, ...]
    format: Literal["inflection", "parallel", "tsv"] = "tsv"
    codec: CodecSettings = field(default_factory=CodecSettings)
    max_source_length: int | None = None  # in symbols; longer examples are left out and counted
    max_target_length: int | None = None
    skip_bad: bool = False  # rows that cannot be read are skipped and counted


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate changes.

    All kinds begin with ``warmup`` steps of linear growth. ``halve_on_worse`` multiplies the rate
    by ``factor`` whenever the validation loss is worse than the one before, down to ``floor``;
    ``linear`` lets it fall to ``floor`` in a straight line until step ``steps``.
    """

    kind: Literal["constant", "halve_on_worse", "inverse_sqrt", "linear"] = "constant"
    warmup: int = 0  # steps
    steps: int | None = None  # of ``linear``
    factor: float = 0.5
    floor: float = 0.0


@dataclass(frozen=True)
class OptimizerSettings:
    """What makes a step of a gradient; ``lr`` is the rate at its highest."""

    kind: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-9
    momentum: float = 0.0  # of sgd
    weight_decay: float = 0.0  # of matrices; biases, norms and learned alphas have none
    clip: float | None = 5.0  # of the gradient's norm
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


@dataclass(frozen=True)
class BatchSettings:
    """What is seen at once, over all processes together."""

    size: int = 64
    unit: Literal["sentences", "tokens"] = "sentences"


@dataclass(frozen=True)
class ValidationSettings:
    """When to validate, and what is best; of equally accurate models the one with less loss is."""

    every: int = 1
    unit: Literal["epochs", "steps"] = "epochs"
    metric: Literal["accuracy", "loss"] = "accuracy"  # of symbols, under teacher forcing
    patience: int | None = None  # validations without a better one before the run ends
    batch: int | None = None  # batch size, in the unit of training; as in training by default


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in which portions, on which machines, and what is kept."""

    max_epochs: int | None = 20
    max_steps: int | None = None
    max_minutes: float | None = None
    batch: BatchSettings = field(default_factory=BatchSettings)
    accumulate: int = 1  # batches a step
    normalize: Literal["sentences", "tokens"] = "sentences"  # what the summed loss is divided by
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    keep: int = 1  # the best checkpoints
    keep_last: int = 0  # and the latest of the validated ones
    save_every: int | None = None  # steps between checkpoints besides those at validation
    average: int = 0  # at the end, average this many of the best checkpoints
    log_every: int = 50  # steps
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int | Literal["auto"] = 1
    num_nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    cuda_graphs: bool = True  # on a single GPU: steps are replayed, which small models gain from
    workers: int = 2  # processes that prepare batches; 0: the training process does


@dataclass(frozen=True)
class SearchSettings:
    """What decoding does unless told otherwise."""

    beam: int = 5
    n_best: int = 1
    max_length: int | None = None  # symbols of an output; twice those of the source and 50 if null
    length_penalty: float = 0.0


@dataclass(frozen=True)
class Config:
    """All options of a run."""

    data: DataSettings
    model: ModelSettings = field(default_factory=RNNSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    seed: int = 1

    def flat(self) -> dict[str, object]:
        """All values by dotted name."""
        return config_reader.flatten(self)

    def to_yaml(self) -> str:
        """The whole config as a file that :func:`load` reads."""
        return config_reader.to_yaml(self)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file; ``overrides`` are arguments such as ``--optimizer.lr 1e-3``."""
    path = Path(path)
    tree = config_reader.read_yaml(path)
    config_reader.merge(tree, config_reader.read_overrides(overrides))
    return _build(tree, str(path))


def from_dict(values: dict[str, Any], where: str = "config") -> Config:
    """A config from nested dictionaries, checked as a file is."""
    return _build(config_reader.given(values, where), where)


def _build(tree: config_reader.Tree, where: str) -> Config:
    config = config_reader.build(
        Config, tree, where=where, rules=_RULES, known_elsewhere=_ELSEWHERE
    )
    _check_together(config, where)
    return config


def _check_together(config: Config, where: str) -> None:
    """What no option can say by itself."""
    training, data = config.training, config.data
    limits = (training.max_epochs, training.max_steps, training.max_minutes)
    if limits == (None, None, None) and training.validation.patience is None:
        raise ConfigError(
            f"{where}: nothing would end the run; set one of training.max_epochs, "
            "training.max_steps, training.max_minutes, training.validation.patience"
        )
    if data.format == "parallel":
        for name, paths in (("train", data.train), ("validation", data.validation)):
            if len(paths) != 2:
                raise ConfigError(
                    f"{where}: data.{name}: parallel text is two files, "
                    f"[source, target]; got {len(paths)}: {', '.join(paths)}"
                )
    if training.average > max(training.keep, 1):
        raise ConfigError(
            f"{where}: training.average: {training.average} checkpoints cannot be averaged where "
            f"{training.keep} are kept; raise training.keep"
        )
    model = config.model
    if model.share_embeddings and not data.codec.joint:
        raise ConfigError(
            f"{where}: model.share_embeddings needs one vocabulary for both sides: "
            "set data.codec.joint to true"
        )
    schedule = config.optimizer.schedule
    if schedule.kind == "linear" and (schedule.steps is None or schedule.steps <= schedule.warmup):
        raise ConfigError(
            f"{where}: optimizer.schedule.steps: expected the step at which a linear schedule "
            f"ends, after {schedule.warmup} of warm-up, got {schedule.steps}"
        )
    if schedule.floor > config.optimizer.lr:
        raise ConfigError(
            f"{where}: optimizer.schedule.floor: expected at most optimizer.lr = "
            f"{config.optimizer.lr:g}, got {schedule.floor:g}"
        )
    if model.kind == "transformer" and model.dim % model.heads:
        raise ConfigError(
            f"{where}: model.dim: expected a multiple of model.heads = {model.heads}, "
            f"got {model.dim}"
        )
    if model.kind == "rnn" and model.hidden % 2:
        raise ConfigError(
            f"{where}: model.hidden: expected an even number, because each direction of the "
            f"encoder has half, got {model.hidden}"
        )


# --- which values make sense ---------------------------------------------------------------------


def _devices(value: int | str) -> str | None:
    return None if value == "auto" or int(value) >= 1 else "expected at least 1, or auto"


def _segmentation(value: str) -> str | None:
    from parsimax._core.validation import nearest

    if value in KINDS:
        return None
    return f"expected one of {', '.join(KINDS)}{nearest(value, KINDS)}"


def _attention(value: str) -> str | None:
    from parsimax import mappings

    if value.replace(" ", "") == LEARNED:
        return None
    wrong = mapping(value)
    if wrong is None and isinstance(mappings.parse(value), mappings.Budget):
        return (
            f"expected weights that sum to 1, got {value!r}: its weights sum to k, each at most 1, "
            "and a sentence or a beginning of one with fewer than k symbols has no such weights; "
            "use e.g. sparsemax"
        )
    return wrong


def _output(value: str) -> str | None:
    from .models.output import refusal

    try:
        return refusal(value)
    except (TypeError, ValueError):
        return mapping(value)


_RULES: dict[str, Rule] = {
    "data.train": paths,
    "data.validation": paths,
    "data.codec.source": _segmentation,
    "data.codec.target": _segmentation,
    "data.max_source_length": at_least(1),
    "data.max_target_length": at_least(1),
    **{
        f"model.{name}": at_least(1)
        for name in (
            *("embedding", "hidden", "encoder_layers", "decoder_layers"),
            *("dim", "heads", "feedforward"),
        )
    },
    "model.init": at_least(0),
    "model.dropout": fraction,
    "model.attention_dropout": fraction,
    "model.attention": _attention,
    "model.encoder_attention": _attention,
    "model.context_attention": _attention,
    "model.decoder_attention": _attention,
    "model.output": _output,
    "optimizer.lr": above(0),
    "optimizer.betas": betas,
    "optimizer.eps": above(0),
    "optimizer.momentum": fraction,
    "optimizer.weight_decay": at_least(0),
    "optimizer.clip": above(0),
    "optimizer.schedule.warmup": at_least(0),
    "optimizer.schedule.steps": at_least(1),
    "optimizer.schedule.factor": factor,
    "optimizer.schedule.floor": at_least(0),
    "training.max_epochs": at_least(1),
    "training.max_steps": at_least(1),
    "training.max_minutes": above(0),
    "training.batch.size": at_least(1),
    "training.accumulate": at_least(1),
    "training.validation.every": at_least(1),
    "training.validation.patience": at_least(1),
    "training.validation.batch": at_least(1),
    "training.keep": at_least(1),
    "training.keep_last": at_least(0),
    "training.save_every": at_least(1),
    "training.average": at_least(0),
    "training.log_every": at_least(1),
    "training.devices": _devices,
    "training.num_nodes": at_least(1),
    "training.workers": at_least(0),
    "search.beam": at_least(1),
    "search.n_best": at_least(1),
    "search.max_length": at_least(1),
    "search.length_penalty": at_least(0),
    "seed": at_least(0),
}

# What other toolkits call it.
_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "batch_size": "training.batch.size",
    "batch_type": "training.batch.unit",
    "epochs": "training.max_epochs",
    "steps": "training.max_steps",
    "train_steps": "training.max_steps",
    "gradient_clip_val": "optimizer.clip",
    "max_grad_norm": "optimizer.clip",
    "accum_count": "training.accumulate",
    "accumulate_grad_batches": "training.accumulate",
    "early_stopping": "training.validation.patience",
    "patience": "training.validation.patience",
    "valid": "data.validation",
    "dev": "data.validation",
    "val": "data.validation",
    "gpus": "training.devices",
    "num_workers": "training.workers",
    "beam_size": "search.beam",
}
