"""All options of a text classifier's run.

A config file says ``task: classification`` and leaves out what has its default::

    task: classification
    data:
      train: [train.jsonl]
      validation: [dev.jsonl]
    model:
      encoder: {kind: bilstm, hidden: 128}
      attention: {kind: additive, mapping: sparsegen(lam=0.5)}

Paths are those of the folder in which the command is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from parsimax._runs import config_reader
from parsimax._runs.config_reader import ConfigError, Rule
from parsimax._runs.rules import above, at_least, betas, fraction, mapping, paths

TASK = "classification"

Query = Literal["auto", "none", "learned", "final", "mean"]
Metric = Literal["auc", "accuracy", "f1", "loss"]


@dataclass(frozen=True)
class DataSettings:
    """Which files, and which words and texts of them."""

    train: tuple[str, ...]  # files, folders or globs
    validation: tuple[str, ...]
    test: tuple[str, ...] = ()  # measured once, when training has ended
    format: Literal["auto", "json", "tsv"] = "auto"  # of each file, by its first line
    tokens: Literal["whitespace", "words"] = "whitespace"  # words: punctuation stands alone
    lowercase: bool = False
    min_length: int = 1  # in tokens; shorter texts are left out and counted
    max_length: int | None = None
    too_long: Literal["drop", "cut"] = "drop"  # what happens to a text above max_length
    min_documents: int = 1  # a word is known if so many training texts have it
    max_words: int | None = None  # the words of the most training texts
    vectors: str | None = None  # word vectors: .npz with words and vectors, or word2vec/GloVe text
    skip_bad: bool = False  # rows that cannot be read are skipped and counted


@dataclass(frozen=True)
class BiLSTMSettings:
    """Bidirectional LSTMs."""

    kind: Literal["bilstm"] = "bilstm"
    hidden: int = 128  # of each direction
    layers: int = 1
    dropout: float = 0.0  # between layers


@dataclass(frozen=True)
class TransformerSettings:
    """Layers of self-attention, normalised before each part."""

    kind: Literal["transformer"] = "transformer"
    dim: int = 128
    heads: int = 4
    layers: int = 2
    feedforward: int = 256
    dropout: float = 0.1
    attention: str = "softmax"  # of the heads, not of the attention that is audited


@dataclass(frozen=True)
class AttentionSettings:
    """The attention that pools hidden states, and that an audit looks at.

    ``query`` is what hidden states are compared with: nothing, a learned vector, the final states
    of both directions, or the mean of all states. By default additive attention has none and dot
    attention a learned one, which is what Jain & Wallace (2019) have.
    """

    kind: Literal["additive", "dot", "uniform"] = "additive"  # uniform: nothing is learned
    query: Query = "auto"
    hidden: int = 128  # of additive attention
    mapping: str = "softmax"

    @property
    def chosen_query(self) -> Query:
        """The query, ``auto`` resolved."""
        if self.query != "auto":
            return self.query
        return "learned" if self.kind == "dot" else "none"


@dataclass(frozen=True)
class ModelSettings:
    """Embedding, encoder, attention, and a linear layer."""

    embedding: int | None = None  # size; that of the word vectors, or 100
    freeze_embedding: bool = False
    dropout: float = 0.0  # of embeddings and of the context
    boundaries: bool = False  # the encoder reads a beginning and an end, which have no attention
    encoder: BiLSTMSettings | TransformerSettings = field(default_factory=BiLSTMSettings)
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    output: str = "softmax"  # mapping of the classes' scores, and with it the loss


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False
    weight_decay: float = 0.0  # L2 in the gradient; attention has none
    decoupled: bool = False  # AdamW
    clip: float | None = None  # of the gradient's norm


@dataclass(frozen=True)
class TrainingSettings:
    """How long, in which portions, and what is best."""

    max_epochs: int = 8
    max_minutes: float | None = None
    batch: int = 32  # texts
    loss: Literal["mean", "sum"] = "mean"  # over the texts of a batch
    class_weights: Literal["equal", "balanced"] = "equal"
    metric: Metric = "auc"  # of the validation data, after each epoch
    patience: int | None = None  # epochs without a better one before the run ends
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True)
class Config:
    """All options of a run."""

    data: DataSettings
    task: Literal["classification"] = "classification"
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
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
    data, encoder, attention = config.data, config.model.encoder, config.model.attention
    if data.max_length is not None and data.max_length < data.min_length:
        raise ConfigError(
            f"{where}: data.max_length: expected at least data.min_length = {data.min_length}, "
            f"got {data.max_length}"
        )
    if encoder.kind == "transformer" and encoder.dim % encoder.heads:
        raise ConfigError(
            f"{where}: model.encoder.dim: expected a multiple of model.encoder.heads = "
            f"{encoder.heads}, got {encoder.dim}"
        )
    if attention.kind == "dot" and attention.query == "none":
        raise ConfigError(
            f"{where}: model.attention.query: dot attention compares with a query, which is "
            "learned, final or mean; got none"
        )
    if encoder.kind == "transformer" and attention.query == "final":
        raise ConfigError(
            f"{where}: model.attention.query: final states are those of a bilstm; of a "
            "transformer take mean, got final"
        )
    if config.model.freeze_embedding and data.vectors is None:
        raise ConfigError(f"{where}: model.freeze_embedding needs word vectors: set data.vectors")


def _output(value: str) -> str | None:
    wrong = mapping(value)
    if wrong is None and value.strip().startswith("budget"):
        return "expected a mapping whose probabilities sum to 1"
    return wrong


_RULES: dict[str, Rule] = {
    "data.train": paths,
    "data.validation": paths,
    "data.min_length": at_least(1),
    "data.max_length": at_least(1),
    "data.min_documents": at_least(1),
    "data.max_words": at_least(1),
    **{
        f"model.{name}": at_least(1)
        for name in (
            *("embedding", "attention.hidden", "encoder.hidden", "encoder.layers"),
            *("encoder.dim", "encoder.heads", "encoder.feedforward"),
        )
    },
    "model.dropout": fraction,
    "model.encoder.dropout": fraction,
    "model.encoder.attention": mapping,
    "model.attention.mapping": mapping,
    "model.output": _output,
    "optimizer.lr": above(0),
    "optimizer.betas": betas,
    "optimizer.eps": above(0),
    "optimizer.weight_decay": at_least(0),
    "optimizer.clip": above(0),
    "training.max_epochs": at_least(1),
    "training.max_minutes": above(0),
    "training.batch": at_least(1),
    "training.patience": at_least(1),
    "seed": at_least(0),
}

# What other toolkits call it.
_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "batch_size": "training.batch",
    "bsize": "training.batch",
    "epochs": "training.max_epochs",
    "early_stopping": "training.patience",
    "patience": "training.patience",
    "valid": "data.validation",
    "dev": "data.validation",
    "val": "data.validation",
    "embeddings": "data.vectors",
    "hidden_size": "model.encoder.hidden",
    "min_df": "data.min_documents",
    "pos_weight": "training.class_weights",
}
