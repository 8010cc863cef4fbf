"""``parsimax heads``: what the heads of one or several runs do, as a page, JSON and CSV."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from parsimax.cli.runs import Device

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from parsimax._core.records import AttentionRecord
    from parsimax.analysis.heads import Agreement, HeadReport
    from parsimax.seq2seq.data.readers import Example
    from parsimax.seq2seq.run import Run

_COMPARED = 100  # sentences on which the heads of several runs are compared


def heads(
    *run: Annotated[Path, Parameter(help="Folder of a run; several are shown side by side.")],
    data: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Files, folders or globs; of parallel text the source's and the target's file. "
            "The first run's validation data by default.",
        ),
    ] = (),
    format: Annotated[
        Literal["inflection", "parallel", "tsv"] | None, Parameter(help="As in the run by default.")
    ] = None,
    sentences: Annotated[
        int | None, Parameter(help="How many to read, from the first; all by default.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="Folder for the files; heads/ in the first run by default.")
    ] = None,
    language: Annotated[
        str | None,
        Parameter(
            help="Of the sources, such as en, for its interrogative words; by default the ending "
            "of the source's file if it is one that is known, else en."
        ),
    ] = None,
    interrogatives: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True, negative=(), help="Interrogative words, instead of a language's."
        ),
    ] = (),
    batch: Annotated[int, Parameter(help="Sentences at a time; results do not change.")] = 32,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool, Parameter(negative=(), help="Leave bad rows out and count them.")
    ] = False,
) -> int:
    """Show what attention heads do: density, diversity, learned alphas, roles.

    Writes heads.html, a page that needs nothing else, and heads.json, heads.csv and layers.csv.
    Runs with the same vocabulary are also compared head by head.
    """
    for name, value in (("sentences", sentences), ("batch", batch)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if language is not None and interrogatives:
        raise ValueError("language, interrogatives: expected one of them, got both")
    models = _load(run, checkpoint, device)

    from itertools import islice

    from rich.console import Console
    from rich.progress import Progress

    from parsimax.analysis import heads as analysis
    from parsimax.seq2seq.data import readers
    from parsimax.viz.heads import write_page

    config = models[0].config
    paths = data or config.data.validation
    reader = readers.read(format or config.data.format, paths, skip_bad=skip_bad)
    examples = list(islice(reader, sentences))
    errors = Console(stderr=True)
    if reader.skipped:
        errors.print(f"bad rows left out: {reader.skipped:,}", style="yellow")
    if not examples:
        raise ValueError(f"data: expected at least one sentence, got none in {', '.join(paths)}")
    asked: str | Collection[str] = interrogatives or language or _language_of(paths)
    names = _names(run)
    with Progress(console=errors, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading attention", total=len(models) * len(examples))
        reports = []
        for number, (name, model) in enumerate(zip(names, models, strict=True)):
            before = number * len(examples)
            records = _records(
                model,
                examples,
                batch,
                progress=lambda done, before=before: bar.update(task, completed=before + done),
            )
            reports.append(
                analysis.analyse(
                    records,
                    name=name,
                    alphas=model.model.alphas(),
                    trajectories=analysis.read_trajectories(model.folder / "metrics.jsonl"),
                    language=asked,
                )
            )
    agreements = _agreements(models, examples, batch, errors)
    folder = run[0] / "heads" if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    shown = ", ".join(Path(path).name for path in paths)
    page = write_page(folder / "heads.html", reports, agreements, data=shown)
    analysis.write_json(folder / "heads.json", reports, agreements)
    analysis.write_csv(
        folder / "heads.csv", [row for each in reports for row in analysis.head_rows(each)]
    )
    analysis.write_csv(
        folder / "layers.csv", [row for each in reports for row in analysis.layer_rows(each)]
    )
    Console().print(_table(reports))
    for each in agreements:
        print(
            f"{names[each.first]} and {names[each.second]}, {each.module}: matched heads "
            f"{each.matched:.3f} alike, any two heads {each.any_pair:.3f}"
        )
    print(f"written to {page}, with heads.json, heads.csv and layers.csv beside it")
    return 0


def _load(folders: Sequence[Path], checkpoint: str, device: Device) -> list[Run]:
    from parsimax.cli import runs

    found, source = runs.split_paths(folders)
    if source != runs.STDIN:
        raise ValueError(f"{source} is a file: data is given by --data {source}")
    return [runs.load([folder], checkpoint=checkpoint, device=device).runs[0] for folder in found]


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths if two have the same."""
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]


def _language_of(paths: Sequence[str]) -> str:
    """The language that the source's file is named for, else English."""
    from parsimax.analysis.heads import INTERROGATIVES

    for part in reversed(Path(paths[0]).name.split(".")):
        if part in INTERROGATIVES:
            return part
    return "en"


def _records(
    model: Run, examples: Sequence[Example], batch: int, progress: Any = None
) -> Iterator[AttentionRecord]:
    from parsimax.seq2seq.recording import records

    place = next(model.model.parameters()).device
    return records(
        model.model, model.codec, examples, batch_size=batch, device=place, progress=progress
    )


def _agreements(
    models: Sequence[Run], examples: Sequence[Example], batch: int, errors: Any
) -> list[Agreement]:
    """Comparisons of runs whose heads can be compared; says why where they cannot."""
    from parsimax.analysis import heads as analysis

    if len(models) == 1:
        return []
    first = models[0]
    for other in models[1:]:
        if other.codec.fingerprint != first.codec.fingerprint:
            errors.print(
                f"{first.folder} and {other.folder} have different vocabularies: not compared head "
                "by head",
                style="yellow",
            )
            return []
        shapes = [_shape(model) for model in (first, other)]
        if shapes[0] != shapes[1]:
            errors.print(
                f"{first.folder} and {other.folder} have different layers and heads: not compared "
                "head by head",
                style="yellow",
            )
            return []
    some = examples[:_COMPARED]
    return analysis.agreement([_records(model, some, batch) for model in models])


def _shape(model: Run) -> tuple[Any, ...]:
    settings = model.config.model
    names = ("kind", "encoder_layers", "decoder_layers", "heads")
    return tuple(getattr(settings, name, None) for name in names)


def _table(reports: Sequence[HeadReport]) -> Any:
    """What the terminal shows: one row a run and kind of attention."""
    from rich.table import Table

    table = Table(title="Attention heads")
    for column in ("run", "attention", "heads", "density", "diversity", "α", "best at −1", "at +1"):
        table.add_column(column, justify="left" if column in ("run", "attention") else "right")
    for report in reports:
        for module in report.modules.values():
            alphas, diversity = module.alphas, module.diversity.diversity.nanmean().item()
            cells = [
                f"{module.layers} × {module.heads}",
                f"{100 * module.density.overall():.1f} %",
                "–" if diversity != diversity else f"{diversity:.3f}",
                "–" if alphas is None else f"{alphas.min():.2f}…{alphas.max():.2f}",
            ]
            for offset in (-1, 1):
                best = module.positional.ranking(offset, 1) if module.positional else []
                cells.append(f"{100 * best[0][1]:.1f} %" if best else "–")
            table.add_row(report.name, module.module, *cells)
    return table
