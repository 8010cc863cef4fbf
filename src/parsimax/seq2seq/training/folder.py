"""The folder of a run: what is where, who may begin in it, what is prepared before training.

::

    RUN/config.yaml      all options, resolved
        versions.json    of Python and of the packages that matter
        metrics.jsonl    one line for each log and validation
        codec/           segmentation and vocabularies
        data/            encoded corpora
        checkpoints/     best.ckpt, last.ckpt, step-NNNNNNNN.ckpt of those that are kept
        tensorboard/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from parsimax._runs import checkpoint
from parsimax._runs.display import Display
from parsimax._runs.errors import TrainingError
from parsimax._runs.facts import replace, versions
from parsimax.seq2seq import config as configs
from parsimax.seq2seq.config import Config
from parsimax.seq2seq.data import corpus, readers
from parsimax.seq2seq.data.textcodec import TextCodec

from .resume import Change, check

_OURS = {"config.yaml", "versions.json", "metrics.jsonl", "codec", "data", "checkpoints"}
_OURS |= {"tensorboard"}


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """All options."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A line for each log and validation."""
        return self.path / "metrics.jsonl"

    @property
    def codec(self) -> Path:
        """Segmentation and vocabularies."""
        return self.path / "codec"

    @property
    def tensorboard(self) -> Path:
        """Events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """All checkpoints."""
        return self.path / "checkpoints"

    def corpus(self, name: str) -> Path:
        """An encoded corpus: train or validation."""
        return self.path / "data" / name

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a name such as ``best``."""
        return self.checkpoints / f"{name}.ckpt"


def begin(folder: RunFolder, config: Config, resume: bool) -> list[Change]:
    """Take the folder for a run, new or resumed; the changes of options that a resumed run takes.

    A folder in which nothing was trained yet is nobody's: a run that stopped before its first
    checkpoint, say on a row it could not read, begins again.
    """
    last = folder.checkpoint(checkpoint.LAST)
    if resume:
        return _resume(folder, config, last)
    if last.exists():
        raise TrainingError(
            f"{folder.path} holds a run already; go on with it by --resume, or give another "
            "folder by --out"
        )
    present = {p.name for p in folder.path.iterdir()} if folder.path.is_dir() else set()
    foreign = sorted(present - _OURS)
    if (foreign and "config.yaml" not in present) or folder.path.is_file():
        what = ", ".join(foreign[:3]) or "a file"
        raise TrainingError(
            f"{folder.path} is not the folder of a run (it holds {what}); give another by --out"
        )
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    folder.metrics.unlink(missing_ok=True)
    for old in (*folder.checkpoints.glob("*"), *folder.tensorboard.glob("events*")):
        old.unlink()
    _write_facts(folder, config)
    return []


def _resume(folder: RunFolder, config: Config, last: Path) -> list[Change]:
    if not last.exists():
        if folder.path.exists():
            why = "nothing was trained there yet"
        else:
            why = "there is no such folder"
        raise TrainingError(
            f"{folder.path} has no checkpoint to resume from: {why}; run the same command without "
            "--resume"
        )
    checkpoint.remove_parts(folder.checkpoints)
    changes = check(configs.load(folder.config), config, str(folder.path))
    _write_facts(folder, config)
    return changes


def prepare(folder: RunFolder, config: Config, display: Display) -> None:
    """Learn the codec and encode the corpora, unless that was done."""
    data = config.data
    train = readers.read(data.format, data.train, skip_bad=data.skip_bad)
    validation = readers.read(data.format, data.validation, skip_bad=data.skip_bad)
    with display.counting("reading examples") as count:
        codec = TextCodec.learn(train, data.codec, count)
    codec.save(folder.codec)
    for name, reader in (("train", train), ("validation", validation)):
        with display.counting(f"encoding {name} examples") as count:
            made = corpus.build(
                reader,
                codec,
                folder.corpus(name),
                max_source_length=data.max_source_length,
                max_target_length=data.max_target_length,
                progress=count,
            )
        if not made.facts.examples:
            raise TrainingError(
                f"data.{name} has no example left: {made.facts.skipped} bad rows were skipped and "
                f"{made.facts.too_long} examples are longer than data.max_source_length or "
                "data.max_target_length"
            )
        display.line(f"{name}: {_describe(made.facts)}")
    display.line(
        f"vocabulary: {len(codec.source_vocabulary):,} source and "
        f"{len(codec.target_vocabulary):,} target symbols"
    )


def _describe(facts: corpus.CorpusFacts) -> str:
    unknown = facts.unknown_source + facts.unknown_target
    remarks = [
        f"{count:,} {what}"
        for count, what in (
            (facts.skipped, "bad rows skipped"),
            (facts.too_long, "left out as too long"),
            (unknown, "symbols not in the vocabulary"),
        )
        if count
    ]
    return (
        f"{facts.examples:,} examples, {facts.source_symbols:,} source and "
        f"{facts.target_symbols:,} target symbols" + (f" ({', '.join(remarks)})" if remarks else "")
    )


def _write_facts(folder: RunFolder, config: Config) -> None:
    replace(folder.config, config.to_yaml())
    replace(folder.path / "versions.json", json.dumps(versions(), indent=1) + "\n")
