"""``parsimax score``: how probable a model finds given targets."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from parsimax.cli import runs
from parsimax.cli.runs import Device, Models

if TYPE_CHECKING:
    from parsimax.seq2seq.data.readers import Example
    from parsimax.seq2seq.search import Scored


def score(
    *run: Annotated[
        Path,
        Parameter(help="Folder of a run; of several, the probabilities are averaged."),
    ],
    data: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Files, folders or globs with sources and targets; of parallel text the source's "
            "and the target's file.",
        ),
    ],
    data_format: Annotated[
        Literal["inflection", "parallel", "tsv"] | None, Parameter(help="As in the run by default.")
    ] = None,
    format: Annotated[
        Literal["text", "jsonl"],
        Parameter(help="Log-probabilities alone, or JSON objects with each symbol's probability."),
    ] = "text",
    batch: Annotated[int, Parameter(help="Targets at a time; results do not change.")] = 64,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool, Parameter(negative=(), help="Leave bad rows out and count them.")
    ] = False,
) -> int:
    """Print the log-probability of each target given its source, one a line.

    A target that the model has ruled out has -inf, and the JSON names the first symbol with
    probability zero.
    """
    folders, source = runs.split_paths(run)
    if source != runs.STDIN:
        raise ValueError(f"{source} is a file: data is given by --data {source}")
    if batch < 1:
        raise ValueError(f"batch: expected at least 1, got {batch}")
    models = runs.load(folders, checkpoint=checkpoint, device=device)
    from parsimax.seq2seq.data import readers

    data_format = data_format or models.runs[0].config.data.format
    reader = readers.read(data_format, data, skip_bad=skip_bad)
    known = runs.Known(models.codec, reader, skip_bad=skip_bad)
    stream = iter(known)
    while part := list(islice(stream, batch)):
        for example, scored in zip(part, _score(models, part), strict=True):
            if format == "jsonl":
                print(json.dumps(_facts(models, example, scored), ensure_ascii=False))
            else:
                print(f"{scored.log_probability:.6f}")
        sys.stdout.flush()
    runs.say_skipped(reader.skipped + known.skipped)
    return 0


def _score(models: Models, examples: list[Example]) -> list[Scored]:
    from parsimax.seq2seq import search

    batch = runs.to_batch([models.codec.encode_source(e) for e in examples], models.device)
    targets = [models.codec.encode_target(e) for e in examples]
    return search.score(models.stepper, batch.source, batch.source_lengths, targets)


def _facts(models: Models, example: Example, scored: Scored) -> dict[str, Any]:
    """JSON has no infinity: a log-probability of what is impossible is null."""
    possible = scored.first_zero is None
    return {
        "source": example.source,
        "target": example.target,
        "log_probability": scored.log_probability if possible else None,
        "probability": scored.probability,
        "tokens": [
            {"token": token, "p": p}
            for token, p in zip(
                models.codec.target_symbols(scored.symbols), scored.probabilities, strict=True
            )
        ],
        "first_zero": scored.first_zero,
    }
