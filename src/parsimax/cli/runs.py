"""What the commands that use trained runs share: which runs, which lines, which device."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from parsimax.seq2seq.data.batch import Batch
    from parsimax.seq2seq.data.readers import Example
    from parsimax.seq2seq.data.textcodec import TextCodec
    from parsimax.seq2seq.run import Run
    from parsimax.seq2seq.search import Stepper

Device = Literal["auto", "cpu", "cuda"]
STDIN = "/dev/stdin"  # what a lone hyphen on the command line becomes

MAX_LENGTH = (
    "Symbols an output may have; as the run says by default, which is twice those of the source "
    "and 50 unless it was told otherwise."
)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that no random numbers begin with, and one that is given twice."""
    for i, seed in enumerate(seeds):
        if not 0 <= seed < 2**63:
            raise ValueError(f"seeds: expected numbers from 0 to 2**63 - 1, got {seed}")
        if seed in seeds[:i]:
            raise ValueError(f"seeds: expected different numbers, got {seed} twice")


@dataclass(frozen=True)
class Models:
    """Runs that speak as one.

    Args:
        stepper: the model, or the ensemble of several.
        codec: the text side, which all share.
        runs: one for each folder.
        device: where the models are.
    """

    stepper: Stepper[Any]
    codec: TextCodec
    runs: tuple[Run, ...]
    device: torch.device


@dataclass(frozen=True)
class Line:
    """A line of the input: its number from 1, its text, its symbols, or what is wrong with it."""

    number: int
    text: str
    symbols: tuple[int, ...] = ()
    error: str = ""

    @property
    def strange(self) -> bool:
        """Whether it has a symbol that was not in the training data."""
        from parsimax.seq2seq.data.symbols import UNK

        return UNK in self.symbols


def split_paths(paths: Sequence[Path]) -> tuple[list[Path], str]:
    """Which paths are runs, and which the input: a last path that is a file or a pipe.

    Raises:
        ValueError: there is no run, or a path that is neither a folder nor a last file.
    """
    if not paths:
        raise ValueError("RUN: expected the folder of a run, such as runs/english; got nothing")
    *others, last = paths
    if str(last) == STDIN or (last.exists() and not last.is_dir()):
        runs, source = others, str(last)
    else:
        runs, source = list(paths), STDIN
    if not runs:
        raise ValueError(
            f"RUN: expected the folder of a run before the input file, got {last} alone"
        )
    for run in runs:
        if run.is_file():
            raise ValueError(f"{run} is a file: runs are folders, and the input comes last")
        if not run.is_dir():
            what = "run or input file" if run is last and others else "run"
            raise ValueError(
                f"{run}: there is no such {what}; a run is a folder that parsimax train wrote"
            )
    return runs, source


def load(folders: Sequence[Path], *, checkpoint: str, device: Device) -> Models:
    """Load runs; of several, the probabilities are averaged."""
    from parsimax._runs.task import is_classifier

    for folder in folders:
        if is_classifier(folder):
            raise ValueError(
                f"{folder} is the run of a text classifier, and this command needs one of a "
                "sequence-to-sequence model"
            )
    from parsimax.seq2seq import run as trained
    from parsimax.seq2seq.search import Ensemble

    where = place(device)
    runs = tuple(trained.load(folder, checkpoint, where) for folder in folders)
    first = runs[0]
    for run in runs[1:]:
        if run.codec.fingerprint != first.codec.fingerprint:
            raise ValueError(
                f"{run.folder} and {first.folder} have different vocabularies, so their "
                "probabilities cannot be averaged; an ensemble needs runs on the same data"
            )
    models = [run.model for run in runs]
    stepper: Any = models[0] if len(models) == 1 else Ensemble(models)
    return Models(stepper, first.codec, runs, where)


def place(device: Device) -> torch.device:
    """The device of a name; auto takes a GPU if there is one."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: cuda was asked for, and torch finds no GPU; take --device cpu")
    chosen = "cuda" if device == "auto" and torch.cuda.is_available() else device
    return torch.device("cpu" if chosen == "auto" else chosen)


def read_lines(source: str) -> Iterator[tuple[int, str, str]]:
    """Number, text and fault of each line of a file, which may be compressed, or of the input."""
    if source != STDIN and Path(source).is_file():
        from parsimax._runs import files
        from parsimax._runs.bad_rows import BadRow

        for number, line in files.read_lines(Path(source)):
            yield (number, "", line.why) if isinstance(line, BadRow) else (number, line, "")
        return
    if source == STDIN:
        yield from _decoded(sys.stdin.buffer)
        return
    with Path(source).open("rb") as pipe:
        yield from _decoded(pipe)


def _decoded(lines: Iterable[bytes]) -> Iterator[tuple[int, str, str]]:
    for number, raw in enumerate(lines, start=1):
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
            if not raw:  # nothing but the mark
                return
        try:
            yield number, raw.decode("utf-8").rstrip("\r\n"), ""
        except UnicodeDecodeError as error:
            yield number, "", f"not UTF-8 (byte {error.start + 1})"


def encode_source(codec: TextCodec, text: str) -> list[int]:
    """The symbols of a source; a row of a training file in its place is noticed.

    Raises:
        ValueError: the text is no source, with what to do.
    """
    from parsimax.seq2seq.data.sources import parse_source

    example = parse_source(text, codec.format)
    if codec.format == "inflection":
        tags = [f"<tag:{tag}>" for tag in example.tags]
        if not any(tag in codec.source_vocabulary for tag in tags):
            raise ValueError(
                f"the model knows none of the tags {';'.join(example.tags)!r}; a source is "
                "'lemma TAB TAG;TAG', which of a row 'lemma TAB form TAB TAG;TAG' are the columns "
                "1 and 3"
            )
    elif codec.format == "tsv" and "\t" in text:
        raise ValueError("a source is one column, got a tab; of a row 'source TAB target' take "
                         "column 1")  # fmt: skip
    return codec.encode_source(example)


class Known:
    """Examples that a codec can encode; ``skipped`` counts the others, where they may be skipped.

    Raises:
        ValueError: while iterating, for an example that cannot be encoded, with its file and line.
    """

    def __init__(self, codec: TextCodec, examples: Iterable[Example], *, skip_bad: bool) -> None:
        self._codec, self._examples, self._skip_bad = codec, examples, skip_bad
        self.skipped = 0

    def __iter__(self) -> Iterator[Example]:
        """The examples, in their order."""
        self.skipped = 0
        for example in self._examples:
            why = self._codec.refusal(example)
            if why and not self._skip_bad:
                raise ValueError(f"{example.path}:{example.line}: {why}; or go on with --skip-bad")
            if why:
                self.skipped += 1
            else:
                yield example


def say_skipped(count: int) -> None:
    """Tell how many rows were left out, if any."""
    if count:
        rows = "1 bad row was" if count == 1 else f"{count:,} bad rows were"
        print(f"parsimax: {rows} left out", file=sys.stderr)


def say_strange(numbers: Sequence[int]) -> None:
    """Tell of lines with symbols that the model cannot tell apart, if any."""
    if numbers:
        where = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
        have = (
            f"line {where} has" if len(numbers) == 1 else f"{len(numbers):,} lines ({where}) have"
        )
        print(
            f"parsimax: {have} symbols that were not in the training data; to the model they are "
            "all the same, <unk>",
            file=sys.stderr,
        )


def encode_lines(codec: TextCodec, source: str) -> Iterator[Line]:
    """The input's lines as symbols; a line that cannot be encoded says why."""
    for number, text, fault in read_lines(source):
        if fault:
            yield Line(number, text, error=fault)
            continue
        try:
            yield Line(number, text, tuple(encode_source(codec, text)))
        except ValueError as error:
            yield Line(number, text, error=str(error))


def stop_at_bad(lines: Iterable[Line], source: str, *, skip_bad: bool) -> Iterator[Line]:
    """The same lines; the first bad one ends everything unless ``skip_bad``."""
    name = "standard input" if source == STDIN else source
    for line in lines:
        if line.error and not skip_bad:
            raise ValueError(
                f"{name}:{line.number}: {line.error}; correct it, or go on with --skip-bad"
            )
        yield line


def in_batches(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Lists of lines, as they come."""
    if size < 1:
        raise ValueError(f"batch: expected at least 1, got {size}")
    stream = iter(lines)
    while batch := list(islice(stream, size)):
        yield batch


def to_batch(rows: Sequence[Sequence[int]], device: torch.device) -> Batch:
    """Sources as one padded batch."""
    from parsimax.seq2seq.data.batching import pad

    return pad(rows).to(device)
