"""``parsimax evaluate``: all numbers of a run on a data set, as a table and as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from parsimax.cli import runs
from parsimax.cli.runs import Device


def evaluate(
    *run: Annotated[
        Path,
        Parameter(help="Folder of a run; of several, the probabilities are averaged."),
    ],
    data: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Files, folders or globs; of parallel text the source's and the target's file. "
            "The run's validation data by default; of a classifier its test data, if it has any.",
        ),
    ] = (),
    format: Annotated[
        Literal["inflection", "parallel", "tsv"] | None,
        Parameter(name=("--data-format", "--format"), help="As in the run by default."),
    ] = None,
    beam: Annotated[int | None, Parameter(help="Prefixes a source may have at a time.")] = None,
    length_penalty: Annotated[
        float | None, Parameter(help="Above 0, longer outputs gain and nothing is certified.")
    ] = None,
    max_length: Annotated[int | None, Parameter(help=runs.MAX_LENGTH)] = None,
    epsilon: Annotated[float, Parameter(help="Of the ε-perplexity.")] = 1e-6,
    tokenize: Annotated[
        str | None, Parameter(help="Tokenizer of sacrebleu's BLEU: 13a by default, zh, char, ...")
    ] = None,
    out: Annotated[Path | None, Parameter(help="File for the numbers, as JSON.")] = None,
    predictions: Annotated[
        Path | None, Parameter(help="File for every output, as JSON lines.")
    ] = None,
    json: Annotated[bool, Parameter(negative=(), help="Print JSON and no table.")] = False,
    groups: Annotated[
        bool, Parameter(negative=(), help="List every group, however many there are.")
    ] = False,
    batch: Annotated[int, Parameter(help="Sentences at a time; results do not change.")] = 64,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool, Parameter(negative=(), help="Leave bad rows out and count them.")
    ] = False,
) -> int:
    """Measure a model: right outputs, certificates, sparsity, probability of the references.

    Word accuracy is averaged over groups, which in inflection tables are the languages. Of a text
    classifier: accuracy, F1 and AUC; options about search and outputs are not for it.
    """
    folders, source = runs.split_paths(run)
    if source != runs.STDIN:
        raise ValueError(f"{source} is a file: data is given by --data {source}")
    for name, value in (("beam", beam), ("batch", batch), ("max_length", max_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon: expected a number between 0 and 1, got {epsilon:g}")
    for path in (out, predictions):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}; make it first")
    if _only_classifiers(folders):
        others = {
            "format": format,
            "beam": beam,
            "length-penalty": length_penalty,
            "max-length": max_length,
            "tokenize": tokenize,
            "groups": groups or None,
        }
        for option, given in others.items():
            if given is not None:
                raise ValueError(f"--{option} is for sequences, and {folders[0]} classifies texts")
        from parsimax.cli import classifiers

        return classifiers.evaluate(
            folders,
            data=data,
            out=out,
            predictions=predictions,
            as_json=json,
            batch=batch,
            checkpoint=checkpoint,
            device=device,
            skip_bad=skip_bad,
        )
    from parsimax.seq2seq.metrics.translation import check_tokenizer

    check_tokenizer(tokenize)  # before a search that takes long
    models = runs.load(folders, checkpoint=checkpoint, device=device)
    config = models.runs[0].config

    from rich.console import Console
    from rich.progress import Progress

    from parsimax.seq2seq import evaluation
    from parsimax.seq2seq.data import readers
    from parsimax.seq2seq.metrics.table import table

    paths = data or config.data.validation
    reader = readers.read(format or config.data.format, paths, skip_bad=skip_bad)
    known = runs.Known(models.codec, reader, skip_bad=skip_bad)
    examples = list(known)
    errors = Console(stderr=True)
    runs.say_skipped(reader.skipped + known.skipped)
    search = config.search
    with Progress(console=errors, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("searching", total=len(examples))
        result = evaluation.evaluate(
            models.stepper,
            models.codec,
            examples,
            beam_size=search.beam if beam is None else beam,
            length_penalty=search.length_penalty if length_penalty is None else length_penalty,
            max_length=search.max_length if max_length is None else max_length,
            batch_size=batch,
            epsilon=epsilon,
            tokenize=tokenize,
            device=models.device,
            progress=lambda done: bar.update(task, completed=done),
        )
    if out is not None:
        result.write(out)
    if predictions is not None:
        result.write_predictions(predictions)
    if json:
        print(result.to_json())
        return 0
    title = f"{', '.join(map(str, folders))} on {', '.join(map(str, paths))}"
    Console().print(table(result, title=title, all_groups=groups))
    for path in (out, predictions):
        if path is not None:
            print(f"written to {path}")
    return 0


def _only_classifiers(folders: list[Path]) -> bool:
    from parsimax._runs.task import is_classifier

    return all(is_classifier(folder) for folder in folders)
