"""What ``parsimax demo`` does: verbs in, a trained model and a report out.

The model is small and the limits are of time, so that it ends on any CPU: a slow or busy one makes
fewer passes over the data and says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from parsimax._runs.errors import TrainingError
from parsimax._runs.metrics_file import read_metrics
from parsimax.seq2seq import evaluation, lexicon
from parsimax.seq2seq import run as trained
from parsimax.seq2seq.config import Config, from_dict
from parsimax.seq2seq.data import readers
from parsimax.seq2seq.data.readers import Example
from parsimax.seq2seq.metrics.table import rows as table_rows
from parsimax.seq2seq.metrics.table import table
from parsimax.seq2seq.training.folder import BY_DEMO, RunFolder, only_a_run
from parsimax.viz.curves import Panel, curve
from parsimax.viz.inflection_report import PAGE_NAME, Summary, WordPicture, write_report
from parsimax.viz.word_pictures import mistakes, word_picture

if TYPE_CHECKING:
    from parsimax.seq2seq.evaluation import Evaluation
    from parsimax.seq2seq.lexicon import Lexicon
    from parsimax.seq2seq.run import Run

BEAM = 5
_NOTE = (
    "parsimax demo made this run and replaces it when it is called again.\n"
    "Remove this file to keep the run.\n"
)
_THREADS = 1  # the matrices are small: a second thread gains little, and on a busy machine waits

# What to draw: lemma, tags, right form or None. Which side a verb is on is looked up.
_WORDS: tuple[tuple[str, str, str | None], ...] = (
    ("draw", lexicon.PARTICIPLE, "drawn"),
    ("draw", lexicon.PAST, "drew"),
    ("go", lexicon.PAST, "went"),
    ("go", lexicon.PARTICIPLE, "gone"),
)
_INVENTED = (("spling", lexicon.PAST), ("frop", lexicon.GERUND), ("wug", lexicon.PAST))
_UNSEEN = 4  # more verbs from the held-out ones, where the model hesitates most
_IN_DETAIL = 3  # words whose attention and completion are drawn


def config(files: Lexicon, *, minutes: float, seed: int) -> Config:
    """The options of the demo's run."""
    return from_dict(
        {
            "data": {
                "format": "inflection",
                "train": [str(files.train)],
                "validation": [str(files.dev)],
            },
            "model": {
                "kind": "rnn",
                "embedding": 64,
                "hidden": 128,
                "encoder_layers": 1,
                "decoder_layers": 1,
                "dropout": 0.1,
                "attention": "entmax(alpha=1.5)",
                "output": "entmax(alpha=1.5)",
            },
            "optimizer": {"lr": 3e-3, "schedule": {"kind": "halve_on_worse"}},
            "training": {
                "max_epochs": 12,
                "max_minutes": minutes,
                "batch": {"size": 64},
                "validation": {"metric": "loss", "batch": 256},
                "accelerator": "cpu",
                "workers": 0,
            },
            "search": {"beam": BEAM},
            "seed": seed,
        },
        "the demo's options",
    )


def main(out: Path, *, minutes: float, seed: int, reuse: bool) -> Path:
    """Build the data, train, evaluate, draw; return where the report is."""
    import torch

    console = Console(highlight=False)
    began = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, _THREADS))
    try:
        if not reuse:
            _remove_earlier(out / "run")
        files = lexicon.build(out / "data", seed=0)
        console.print(
            f"{files.rows['train']:,} forms of {files.lemmas['train']:,} English verbs to learn, "
            f"{files.rows['test']:,} forms of {files.lemmas['test']:,} others to be asked for."
        )
        run = _trained(out / "run", config(files, minutes=minutes, seed=seed), reuse, console)
        examples = list(readers.read("inflection", [files.test]))
        result = _evaluated(run, examples)
        result.write(out / "evaluation.json")
        result.write_predictions(out / "predictions.jsonl")
        console.print(table(result, title="\nVerbs that it has never seen"))
        page = _report(out / PAGE_NAME, run, files, result, examples)
    finally:
        torch.set_num_threads(threads)
    console.print(f"\nAll of it took {time.perf_counter() - began:.0f} seconds.")
    return page


def _trained(folder: Path, options: Config, reuse: bool, console: Console) -> Run:
    """The model of the folder, trained unless it is there and wanted."""
    from parsimax.seq2seq.training import train

    if reuse:
        if not (folder / "config.yaml").is_file():
            raise TrainingError(f"{folder}: there is no run to reuse yet; leave --reuse away")
        return trained.load(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BY_DEMO).write_text(_NOTE, "utf-8")
    minutes = options.training.max_minutes
    console.print(f"Training a sparse model on the CPU, for at most {minutes:g} minutes:")
    outcome = train(options, folder)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return trained.load(folder)


def _remove_earlier(folder: Path) -> None:
    """Remove the run of an earlier demo, which says that it is one; all else is somebody's."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if (folder / BY_DEMO).is_file():
        if only_a_run(RunFolder(folder)) or len(list(folder.iterdir())) == 1:
            shutil.rmtree(folder)
            return
        why = "files beside the demo's run"
    else:
        why = "what the demo did not make"
    raise TrainingError(
        f"{folder} holds {why}, and it is not touched; give another folder by --out, or move it "
        "away. --reuse reports on a trained run that is there"
    )


def _evaluated(run: Run, examples: Sequence[Example]) -> Evaluation:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("asking", total=len(examples))
        return evaluation.evaluate(
            run.model,
            run.codec,
            examples,
            beam_size=BEAM,
            batch_size=128,
            progress=lambda done: bar.update(task, completed=done),
        )


def _report(
    path: Path, run: Run, files: Lexicon, result: Evaluation, examples: Sequence[Example]
) -> Path:
    records = read_metrics(run.folder / "metrics.jsonl")
    names = lexicon.TAG_NAMES
    wrong = mistakes(run.model, run.codec, result.predictions, examples, names)
    pictures = _pictures(run, result, examples)
    return write_report(
        path, _summary(run, files, result, records), pictures, _panels(records), wrong
    )


def _pictures(run: Run, result: Evaluation, examples: Sequence[Example]) -> list[WordPicture]:
    """The verbs that are named, some held-out ones that are hard, and invented ones."""
    questions = [(lemma, tags, form, _origin(lemma)) for lemma, tags, form in _WORDS]
    shown = {lemma for lemma, _, _ in _WORDS}
    for prediction, example in sorted(
        zip(result.predictions, examples, strict=True), key=lambda pair: pair[0].probability
    ):
        if len(shown) >= 2 + _UNSEEN:
            break
        if prediction.source not in shown and len(prediction.alternatives) < BEAM - 1:
            shown.add(prediction.source)
            tags = ";".join(example.tags)
            questions.append((example.source, tags, example.target, _origin(example.source)))
    questions += [(lemma, tags, None, "invented") for lemma, tags in _INVENTED]
    return [
        word_picture(
            run.model,
            run.codec,
            Example(lemma, form, tuple(tags.split(";")), lexicon.LANGUAGE),
            asked=lexicon.TAG_NAMES[tags],
            origin=origin,
            grid=number < _IN_DETAIL or origin == "invented",
            steps=number < _IN_DETAIL or origin == "invented",
        )
        for number, (lemma, tags, form, origin) in enumerate(questions)
    ]


def _origin(lemma: str) -> str:
    return "seen in training" if lexicon.side_of(lemma) == "train" else "never seen"


def _panels(records: Sequence[dict[str, Any]]) -> list[Panel]:
    """Loss, accuracy and sparsity over the steps."""
    by_event = {
        event: [r for r in records if r.get("event") == event] for event in ("train", "validation")
    }
    train, held_out = by_event["train"], by_event["validation"]
    found = (
        ("loss a symbol", ((train, "loss", "learned verbs"), (held_out, "loss", "others"))),
        ("right symbols, given those before", ((held_out, "accuracy", "others"),)),
        (
            "possible symbols, positions looked at",
            (
                (held_out, "output_support", "symbols"),
                (held_out, "attention_support", "positions"),
            ),
        ),
    )
    panels = []
    for number, (title, lines) in enumerate(found):
        drawn = tuple(c for r, key, label in lines if (c := curve(r, key, label=label)))
        if drawn:
            panels.append(Panel(title, drawn, percent=number == 1, logarithmic=number == 0))
    return panels


def _summary(
    run: Run, files: Lexicon, result: Evaluation, records: Sequence[dict[str, Any]]
) -> Summary:
    proved, forced = result.certificates, result.forced
    last = max(records, key=lambda r: r["step"]) if records else {}
    settings = run.config.model
    assert settings.kind == "rnn"
    return Summary(
        accuracy=result.accuracy.micro,
        right=sum(p.right for p in result.predictions),
        questions=result.sentences,
        single=proved.single,
        exhaustive=proved.exhaustive,
        optimal=proved.optimal,
        support=forced.support,
        vocabulary=forced.vocabulary,
        attended=forced.attended or 0.0,
        attendable=forced.attendable or 0.0,
        zero_gold=forced.zero_gold,
        beam=result.beam,
        train_rows=files.rows["train"],
        train_lemmas=files.lemmas["train"],
        held_out_lemmas=files.lemmas["test"],
        seconds=float(last.get("seconds", 0.0)),
        epochs=float(last.get("epoch", 0)),
        parameters=sum(p.numel() for p in run.model.parameters()),
        model=f"a recurrent network with {settings.hidden} units, attention by "
        f"{settings.attention} and output by {settings.output}",
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs",
        other=tuple((f"{name} ({meaning})", value) for name, value, meaning in table_rows(result)),
    )
