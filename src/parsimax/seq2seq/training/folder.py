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

import hashlib
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

from . import sources
from .resume import Change, check

_NAMES = {"config.yaml", "versions.json", "metrics.jsonl", "codec", "data", "checkpoints"}
_NAMES |= {"sources.json", "tensorboard"}
_WRITER = "parsimax train"
BY_DEMO = "made-by-parsimax-demo.txt"  # a run that the demo made and may replace


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

    A new run takes a folder that is not there or empty, or one that a run took before it and
    trained nothing in, say because of a row that it could not read. In any other folder are
    somebody's files, and they stay.
    """
    last = folder.checkpoint(checkpoint.LAST)
    if resume:
        return _resume(folder, config, last)
    _check_free(folder)
    # The mark of a run comes first: whatever is left by a process that is killed is known as ours.
    folder.path.mkdir(parents=True, exist_ok=True)
    _write_facts(folder, config)
    folder.metrics.unlink(missing_ok=True)
    folder.checkpoints.mkdir(exist_ok=True)
    checkpoint.remove_parts(folder.checkpoints)
    for old in folder.tensorboard.glob("events.out.tfevents.*"):
        old.unlink()
    return []


def _check_free(folder: RunFolder) -> None:
    """Whether a new run may write here without touching what is somebody's."""
    path = folder.path
    if path.exists() and not path.is_dir():
        raise TrainingError(f"{path} is a file, and a run needs a folder; give one by --out")
    present = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if not set(present) - {BY_DEMO}:
        return
    mark = _mark(folder)
    if mark is None:
        what = ", ".join(present[:3]) + (", ..." if len(present) > 3 else "")
        raise TrainingError(
            f"{path} is not the folder of a run (it holds {what}), and nothing in it is touched; "
            f"give another by --out, such as {path / 'run'}"
        )
    trained = sorted(p.name for p in folder.checkpoints.glob("*.ckpt"))
    if folder.checkpoint(checkpoint.LAST).exists():
        raise TrainingError(
            f"{path} holds a run already; go on with it by --resume, or give another folder by "
            "--out"
        )
    if trained:
        raise TrainingError(
            f"{path} holds checkpoints of a run already ({', '.join(trained[:3])}), without the "
            "last.ckpt that --resume needs; give another folder by --out"
        )
    if folder.config.exists() and mark != _digest(folder.config.read_bytes()):
        raise TrainingError(
            f"{folder.config} is not as the run wrote it, and it would be replaced; move it out "
            "of the folder, or give another folder by --out"
        )


def _mark(folder: RunFolder) -> str | None:
    """The digest of the config that a run wrote into its folder; None where no run did."""
    try:
        found = json.loads((folder.path / "versions.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("written_by") != _WRITER:
        return None
    return str(found.get("config_sha256"))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def only_a_run(folder: RunFolder) -> bool:
    """Whether a folder is a run's and holds nothing beside it."""
    present = {p.name for p in folder.path.iterdir()}
    return _mark(folder) is not None and present <= {*_NAMES, BY_DEMO}


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
    if _mark(folder) is None:
        checkpoint.read(last)  # refuses what another program wrote
    changes = check(configs.load(folder.config), config, str(folder.path))
    sources.check_unchanged(folder.sources, config.data, str(folder.path))
    checkpoint.remove_parts(folder.checkpoints)
    _write_facts(folder, config)
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


def _write_facts(folder: RunFolder, config: Config) -> None:
    options = config.to_yaml()
    mark = {"written_by": _WRITER, "config_sha256": _digest(options.encode())}
    replace(folder.path / "versions.json", json.dumps({**mark, **versions()}, indent=1) + "\n")
    replace(folder.config, options)
