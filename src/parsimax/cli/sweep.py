"""``parsimax sweep``: train and audit a grid of sparsity and seeds, beside the paper's figures."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from parsimax.cli.runs import Device, check_seeds

if TYPE_CHECKING:
    import torch

    from parsimax.analysis.audit.sweep import Point, Sweep
    from parsimax.classify.config import Config
    from parsimax.classify.run import Run

LAMBDAS = (-32.0, -8.0, -2.0, 0.0, 0.5, 0.75, 0.9)
_MIB = 2**20
_FORMAT = 2  # of the audit that a run of a sweep holds


def sweep(
    *configs: Annotated[
        str,
        Parameter(
            name="CONFIG",
            allow_leading_hyphen=True,
            help="YAML files of text classifiers, then options for all of them by dotted name, "
            "such as --training.max_epochs 4.",
        ),
    ],
    lam: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Values of sparsegen's lambda, below 1; -32 -8 -2 0 0.5 0.75 0.9 if neither "
            "lambdas nor alphas are given. 0 is sparsemax.",
        ),
    ] = (),
    alpha: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True, negative=(), help="Values of entmax's alpha, from 1, instead."
        ),
    ] = (),
    softmax: Annotated[bool, Parameter(help="Whether softmax takes part, too.")] = True,
    seeds: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())] = (1,),
    texts: Annotated[
        int, Parameter(help="Test texts to audit, drawn at random; 0 for all of them.")
    ] = 500,
    states: Annotated[
        int, Parameter(help="Hidden states of each text to look into; 0 for all.")
    ] = 32,
    adversaries: Annotated[
        int, Parameter(help="Adversarial distributions to look for in each text.")
    ] = 0,
    steps: Annotated[int, Parameter(help="Of that search.")] = 500,
    out: Annotated[Path, Parameter(help="Folder for runs, audits and the page.")] = Path(
        "runs/sweep"
    ),
    only_trained: Annotated[
        bool,
        Parameter(
            negative=(), help="Train nothing: audit the runs that are there, and draw the page."
        ),
    ] = False,
    memory: Annotated[int, Parameter(help="MiB that a batch may take.")] = 512,
    threads: Annotated[
        int, Parameter(help="Of the CPU; one is fastest for small recurrent models.")
    ] = 1,
    device: Annotated[Device, Parameter(help="Where to audit; auto takes a GPU.")] = "auto",
    quiet: Annotated[bool, Parameter(negative=(), help="Show no progress.")] = False,
) -> int:
    """Train and audit classifiers over a grid of sparsity and seeds.

    Writes sweep.html with Figures 1 to 4 and Tables 1 and 2 of Meister et al. (2021), their figures
    beside ours, and sweep.json, models.csv and tables.md. What is trained or audited already is
    not done again: a sweep that was stopped goes on with the same command. Configs whose names
    begin with sst, imdb or 20news are set beside the published figures of those data sets.
    """
    if lam and alpha:
        raise ValueError("lam, alpha: expected one of them, got both")
    for name, value, least in (
        ("texts", texts, 0),
        ("states", states, 0),
        ("adversaries", adversaries, 0),
        ("steps", steps, 0),
        ("memory", memory, 1),
        ("threads", threads, 1),
    ):
        if value < least:
            raise ValueError(f"{name}: expected at least {least}, got {value}")
    check_seeds(seeds)
    if not seeds:
        raise ValueError("seeds: expected at least one, got none")
    mappings = _mappings(lam, alpha, softmax)
    options = _Options(texts, states, adversaries, steps, memory * _MIB)
    jobs = _jobs(configs, mappings, seeds, out)
    from parsimax.cli.audit import using_threads
    from parsimax.cli.runs import place

    for job in jobs:  # before any is trained
        _check_same(job)
    where = place(device)
    points: list[Point] = []
    made_with: list[Any] = []
    missing = 0
    for number, job in enumerate(jobs, start=1):
        if not quiet:
            print(f"[{number}/{len(jobs)}] {job.name}", file=sys.stderr, flush=True)
        if only_trained and not _is_trained(job):
            missing += 1
            continue
        with using_threads(threads):
            found, point = _point(job, options, where, train=not only_trained, quiet=quiet)
        points.append(point)
        if found["versions"] not in made_with:
            made_with.append(found["versions"])
    if not points:
        raise ValueError(f"{out}: none of the {len(jobs)} runs of this sweep is trained")
    page = _write(points, out, jobs, options, made_with)
    if not quiet:
        if missing:
            print(f"not trained, and left out: {missing} of {len(jobs)}")
        print(f"written to {page}, with sweep.json, models.csv and tables.md beside it")
    return 0


@dataclass(frozen=True)
class _Options:
    """How each model is audited."""

    texts: int
    states: int
    adversaries: int
    steps: int
    memory: int

    def key(self) -> dict[str, int]:
        """What an audit's numbers depend on."""
        steps = self.steps if self.adversaries else 0
        return {
            "format": _FORMAT,
            "texts": self.texts,
            "states": self.states,
            "adversaries": self.adversaries,
            "steps": steps,
        }


@dataclass(frozen=True)
class _Job:
    """One model of the grid."""

    setting: str
    config: Config
    folder: Path
    data: str

    @property
    def audit(self) -> Path:
        """Where the audit of its run is."""
        return self.folder / "sweep-audit.json"

    @property
    def name(self) -> str:
        return f"{self.setting}, {self.config.model.attention.mapping}, seed {self.config.seed}"


def _mappings(lam: Sequence[float], alpha: Sequence[float], softmax: bool) -> dict[str, str]:
    """Mappings by the name of their folders."""
    for value in lam:
        if not value < 1 or not math.isfinite(value):
            raise ValueError(f"lam: expected finite numbers below 1, got {_short(value)}")
    for value in alpha:
        if not 1 <= value < math.inf:
            raise ValueError(f"alpha: expected numbers from 1, got {_short(value)}")
    for name, values in (("lam", lam), ("alpha", alpha)):
        twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
        if twice is not None:
            raise ValueError(f"{name}: expected different numbers, got {_short(twice)} twice")
    found = {"softmax": "softmax"} if softmax else {}
    if alpha:
        return found | {f"alpha={_short(a)}": f"entmax(alpha={_short(a)})" for a in alpha}
    return found | {
        f"lam={_short(value)}": f"sparsegen(lam={_short(value)})" for value in lam or LAMBDAS
    }


def _short(value: float) -> str:
    """A number without loss, and without ".0"."""
    value += 0.0  # -0 is 0
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _jobs(
    given: Sequence[str], mappings: dict[str, str], seeds: Sequence[int], out: Path
) -> list[_Job]:
    from parsimax.classify import config as configs

    first = next((i for i, a in enumerate(given) if a.startswith("-")), len(given))
    paths, overrides = [Path(path) for path in given[:first]], list(given[first:])
    if not paths:
        raise ValueError("CONFIG: expected the YAML file of a text classifier, got nothing")
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"CONFIG: expected files of different names, got {', '.join(names)}")
    found = []
    for path in paths:
        _check_task(path)
        options = configs.load(path, overrides)
        if options.model.attention.kind == "uniform":
            raise ValueError(f"{path}: uniform attention has no mapping to vary")
        data = _data(options)
        for seed in seeds:
            for folder, mapping in mappings.items():
                attention = replace(options.model.attention, mapping=mapping)
                model = replace(options.model, attention=attention)
                whole = replace(options, model=model, seed=seed)
                place = out / path.stem / f"{folder}_seed={seed}"
                found.append(_Job(path.stem, whole, place, data))
    return found


def _data(config: Config) -> str:
    """A fingerprint of all files that a config names; empty if they are not there any more."""
    from parsimax._runs import files

    data = config.data
    paths = [*data.train, *data.validation, *data.test]
    if data.vectors is not None:
        paths.append(str(data.vectors))
    try:
        return files.fingerprint(files.find(paths))
    except FileNotFoundError:  # training and auditing say so; what is audited can still be drawn
        return ""


def _check_same(job: _Job) -> None:
    """Refuse a run or an audit that was made with other options or from other data."""
    from parsimax._runs import checkpoint
    from parsimax.classify.folder import NO_MATTER, RunFolder, changed, changes

    folder = RunFolder(job.folder)
    differ: dict[str, str] = {}
    if folder.checkpoint(checkpoint.LAST).exists():
        differ |= changed(folder, job.config)
    found = _read(job.audit)
    if found is not None and found.get("options", {}).get("format") == _FORMAT:
        # through JSON, as the other one went: tuples become lists
        differ |= changes(found["config"], json.loads(json.dumps(job.config.flat(), default=str)))
        if job.data and found["fingerprint"] != job.data:
            differ["data"] = "the contents of its data files"
    words = [text for key, text in differ.items() if key not in NO_MATTER]
    if words:
        raise ValueError(
            f"{job.folder} was made with other values of {', '.join(words)}; give another folder "
            "by --out, or remove that one"
        )


def _check_task(path: Path) -> None:
    from parsimax._runs.task import task_of

    if task_of(path) is None:
        raise ValueError(
            f"{path} is the config of a sequence-to-sequence model; a sweep needs one with "
            "task: classification"
        )


def _point(
    job: _Job, options: _Options, device: torch.device, *, train: bool, quiet: bool
) -> tuple[dict[str, Any], Point]:
    """Train and audit one model, or read what is there."""
    from parsimax.analysis.audit.published import data_set
    from parsimax.analysis.audit.sweep import Point

    found = _read(job.audit)
    if found is not None and found.get("options") != options.key():
        found = None
    if found is None:
        if train:
            _train(job, quiet)
        found = _audit(job, options, device, quiet)
        from parsimax._runs.facts import replace as rewrite

        text = json.dumps(found, ensure_ascii=False, allow_nan=False, default=str)
        rewrite(job.audit, text + "\n")
    tested = found["tested"]
    return found, Point.read(
        found,
        config=job.setting,
        data=data_set(job.setting),
        encoder=job.config.model.encoder.kind,
        mapping=job.config.model.attention.mapping,
        seed=job.config.seed,
        accuracy=_number(tested["accuracy"]),
        auc=_number(tested["auc"]),
    )


def _is_trained(job: _Job) -> bool:
    """Whether training has ended: then, and not before, the test data are measured."""
    from parsimax._runs.metrics_file import read_metrics

    if not (job.folder / "checkpoints" / "best.ckpt").exists():
        return False
    lines = read_metrics(job.folder / "metrics.jsonl")
    return not job.config.data.test or bool(lines and lines[-1].get("event") == "test")


def _read(path: Path) -> dict[str, Any] | None:
    """The audit of a run, if there is one."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, and it is made again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no audit of a sweep; remove it, and it is made again")
    return found


def _train(job: _Job, quiet: bool) -> None:
    from parsimax._runs import checkpoint
    from parsimax.classify.folder import RunFolder
    from parsimax.classify.training import train

    resume = RunFolder(job.folder).checkpoint(checkpoint.LAST).exists()
    train(job.config, job.folder, resume=resume, quiet=quiet)


def _audit(job: _Job, options: _Options, device: torch.device, quiet: bool) -> dict[str, Any]:
    from parsimax._runs.facts import versions
    from parsimax.analysis.audit import Search
    from parsimax.analysis.audit import audit as measure
    from parsimax.classify import run as runs
    from parsimax.classify.auditing import auditable
    from parsimax.cli.audit import progress_bar, read_texts, sample

    loaded = runs.load(job.folder, "best", device)
    every, paths, left_out = read_texts(loaded, job.folder, ())
    tested = _tested(loaded, paths)
    # the same texts for all models, so that they can be compared text by text
    texts = sample(every, options.texts or None, seed=0)
    searches = (
        [Search(count=options.adversaries, steps=options.steps)] if options.adversaries else []
    )
    with progress_bar(quiet) as progress:
        result = measure(
            auditable(loaded),
            texts,
            states_per_text=options.states or None,
            fractions=(),
            permutations=0,
            searches=searches,
            examples=0,
            device=device,
            memory=options.memory,
            progress=progress,
        )
    return {
        "options": options.key(),
        "config": job.config.flat(),
        "fingerprint": job.data,
        "tested": tested,
        "data": paths,
        "left_out": left_out,
        "epoch": loaded.epoch,
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        **result.as_dict(),
    }


def _tested(loaded: Run, paths: Sequence[str]) -> dict[str, Any]:
    """Accuracy and AUC on all test texts: as training measured them, or measured now."""
    from parsimax._runs.metrics_file import read_metrics
    from parsimax.classify import evaluation
    from parsimax.classify.batches import encode

    assert loaded.folder is not None
    lines = read_metrics(loaded.folder / "metrics.jsonl")
    if lines and lines[-1].get("event") == "test":
        return {name: lines[-1][name] for name in ("accuracy", "auc")}
    examples = loaded.read(paths).examples
    scores, _ = evaluation.evaluate(
        loaded.model, encode(examples, loaded.vocabulary), loaded.vocabulary.labels
    )
    return {name: scores.to_dict()[name] for name in ("accuracy", "auc")}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _write(
    points: list[Point],
    out: Path,
    jobs: Sequence[_Job],
    options: _Options,
    made_with: list[Any],
) -> Path:
    """The page and the files beside it."""
    from parsimax._runs.facts import replace as rewrite
    from parsimax._runs.facts import versions
    from parsimax.analysis.audit.sweep import Sweep
    from parsimax.viz.sweep import sweep_page

    found = Sweep(tuple(points))
    when = time.strftime("%Y-%m-%d %H:%M")
    about = {
        "date": when,
        "versions": versions(),
        "audited_with": made_with,  # on another machine, maybe
        "audit": options.key(),
        "configs": _configs(jobs),
    }
    rewrite(
        out / "sweep.json",
        json.dumps({**about, **found.as_dict()}, ensure_ascii=False, allow_nan=False, indent=1)
        + "\n",
    )
    rewrite(out / "models.csv", _csv(found.rows()))
    rewrite(out / "tables.md", _tables(found))
    page = out / "sweep.html"
    texts = f"{options.texts:,} texts each" if options.texts else "all texts"
    rewrite(page, sweep_page(found, origin=f"Audited on {texts}, {when}."))
    return page


def _configs(jobs: Sequence[_Job]) -> dict[str, Any]:
    """The options of each setting; those that its models differ in as lists of all values."""
    found: dict[str, Any] = {}
    for setting in dict.fromkeys(job.setting for job in jobs):
        flat = [job.config.flat() for job in jobs if job.setting == setting]
        found[setting] = dict(flat[0])
        for key in ("model.attention.mapping", "seed"):
            found[setting][key] = list(dict.fromkeys(values[key] for values in flat))
    return found


def _tables(found: Sweep) -> str:
    from parsimax.viz.sweep import tables

    parts = [
        ("Table 1: entropy of the influence of inputs on hidden states", tables.HEAD_1,
         tables.rows_1(found)),
        ("Table 2: correlation of the parameter with the entropy of the importance of inputs",
         tables.HEAD_2, tables.rows_2(found)),
        ("Jain & Wallace's figures, softmax", tables.HEAD_3, tables.rows_jain_wallace(found)),
        ("Every mapping", tables.HEAD_4, tables.rows_cells(found)),
    ]  # fmt: skip
    return "\n".join(
        f"## {title}\n\n{tables.markdown(head, rows)}\n" for title, head, rows in parts if rows
    )


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: "" if v != v else v for k, v in row.items()})
    return text.getvalue()
