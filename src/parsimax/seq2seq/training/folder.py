"""The folder of a run: what is where, who may begin in it, what is prepared before training.

::

    RUN/config.yaml      all options, resolved
        versions.json    of Python and of the packages that matter; also the mark of a run
        metrics.jsonl    one line for each log and validation
        sources.json     which files were encoded, and a hash of each
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
from parsimax._runs.facts import replace
from parsimax._runs.folder import RunPaths, check_free, mark_of, write_facts
from parsimax.seq2seq import config as configs
from parsimax.seq2seq.config import Config
from parsimax.seq2seq.data import corpus, readers
from parsimax.seq2seq.data.textcodec import TextCodec

from . import sources
from .resume import Change, check

_NAMES = {"config.yaml", "versions.json", "metrics.jsonl", "codec", "data", "checkpoints"}
_NAMES |= {"sources.json", "tensorboard"}
BY_DEMO = "made-by-parsimax-demo.txt"  # a run that the demo made and may replace


@dataclass(frozen=True)
class RunFolder(RunPaths):
    """Paths of a run."""

    @property
    def sources(self) -> Path:
        """Hashes of the files that were encoded."""
        return self.path / "sources.json"

    @property
    def codec(self) -> Path:
        """Segmentation and vocabularies."""
        return self.path / "codec"

    @property
    def tensorboard(self) -> Path:
        """Events."""
        return self.path / "tensorboard"

    def corpus(self, name: str) -> Path:
        """An encoded corpus: train or validation."""
        return self.path / "data" / name


def begin(folder: RunFolder, config: Config, resume: bool) -> list[Change]:
    """Take the folder for a run, new or resumed; the changes of options that a resumed run takes.

    A new run takes a folder that is not there or empty, or one that a run took before it and
    trained nothing in, say because of a row that it could not read. In any other folder are
    somebody's files, and they stay.
    """
    last = folder.checkpoint(checkpoint.LAST)
    if resume:
        return _resume(folder, config, last)
    check_free(folder, beside=(BY_DEMO,))
    # The mark of a run comes first: whatever is left by a process that is killed is known as ours.
    folder.path.mkdir(parents=True, exist_ok=True)
    write_facts(folder, config.to_yaml())
    folder.metrics.unlink(missing_ok=True)
    folder.checkpoints.mkdir(exist_ok=True)
    checkpoint.remove_parts(folder.checkpoints)
    for old in folder.tensorboard.glob("events.out.tfevents.*"):
        old.unlink()
    return []


def only_a_run(folder: RunFolder) -> bool:
    """Whether a folder is a run's and holds nothing beside it."""
    present = {p.name for p in folder.path.iterdir()}
    return mark_of(folder) is not None and present <= {*_NAMES, BY_DEMO}


def _resume(folder: RunFolder, config: Config, last: Path) -> list[Change]:
    if not last.exists():
        if any(folder.checkpoints.glob("*.ckpt")):
            raise TrainingError(
                f"{folder.path} has no checkpoint to resume from: {last} is missing; put it back, "
                "or train anew with --out and another folder"
            )
        if folder.path.exists():
            why = "nothing was trained there yet"
        else:
            why = "there is no such folder"
        raise TrainingError(
            f"{folder.path} has no checkpoint to resume from: {why}; run the same command without "
            "--resume"
        )
    if mark_of(folder) is None:
        checkpoint.read(last)  # refuses what another program wrote
    changes = check(configs.load(folder.config), config, str(folder.path))
    sources.check_unchanged(folder.sources, config.data, str(folder.path))
    checkpoint.remove_parts(folder.checkpoints)
    write_facts(folder, config.to_yaml())
    (folder.path / BY_DEMO).unlink(missing_ok=True)  # from now on it is somebody's work
    return changes


def prepare(folder: RunFolder, config: Config, display: Display) -> None:
    """Learn the codec and encode the corpora, unless that was done."""
    data = config.data
    replace(folder.sources, json.dumps(sources.digests(data), indent=1) + "\n")
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
