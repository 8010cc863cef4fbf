"""``parsimax audit``: is the attention of a classifier an explanation? A page, JSON and CSV."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from parsimax.cli.runs import Device, check_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from parsimax.analysis.audit import Audit, Auditable, Comparison, Search, Text
    from parsimax.classify.run import Run

_QUICK = {"texts": 200, "steps": 100, "permutations": 20, "states": 16}
_MIB = 2**20


def audit(
    run: Annotated[Path, Parameter(help="Folder of a text classifier's run.")],
    /,
    *,
    data: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Files, folders or globs of texts; labels may be missing. The run's test data by "
            "default, or its validation data.",
        ),
    ] = (),
    out: Annotated[
        Path | None, Parameter(help="Folder for the files; audit/ in the run by default.")
    ] = None,
    quick: Annotated[
        bool,
        Parameter(
            negative=(),
            help="A look in seconds: 200 texts, 100 steps of search, 20 permutations, 16 hidden "
            "states a text, where these are not given.",
        ),
    ] = False,
    texts: Annotated[
        int | None, Parameter(help="How many to audit, drawn at random; all by default.")
    ] = None,
    states: Annotated[
        int | None,
        Parameter(help="Hidden states of each text to look into, drawn at random; 0 for none."),
    ] = None,
    adversaries: Annotated[
        int, Parameter(help="Adversarial distributions to look for in each text; 0 for none.")
    ] = 5,
    steps: Annotated[int | None, Parameter(help="Of that search; 500 by default.")] = None,
    epsilon: Annotated[
        float, Parameter(help="How far an adversarial prediction may move, from 0 to 1.")
    ] = 0.01,
    sparse: Annotated[
        bool,
        Parameter(negative=(), help="Also search among sparse weights, and on attended words."),
    ] = False,
    permutations: Annotated[
        int | None, Parameter(help="Of each text's weights; 100 by default, 0 for none.")
    ] = None,
    erasure: Annotated[
        bool, Parameter(help="Whether to remove words, for comprehensiveness and sufficiency.")
    ] = True,
    integrated_gradients: Annotated[
        bool, Parameter(negative=(), help="Also measure importance by integrated gradients.")
    ] = False,
    seeds: Annotated[
        tuple[int, ...],
        Parameter(
            consume_multiple=True, negative=(), help="Train controls with these other seeds."
        ),
    ] = (),
    uniform: Annotated[
        bool, Parameter(negative=(), help="Train a control with uniform attention.")
    ] = False,
    adversarial: Annotated[
        tuple[float, ...],
        Parameter(
            consume_multiple=True,
            negative=(),
            help="Train models that decide alike and attend elsewhere, one for each lambda, such "
            "as 0.1 1.",
        ),
    ] = (),
    examples: Annotated[int, Parameter(help="Texts to show word by word.")] = 6,
    level: Annotated[float, Parameter(help="Of the intervals.")] = 0.95,
    seed: Annotated[int, Parameter(help="Of everything random in the audit.")] = 0,
    memory: Annotated[int, Parameter(help="MiB that a batch may take.")] = 512,
    threads: Annotated[
        int,
        Parameter(
            help="Of the CPU. One is fastest for small recurrent models, and by far where other "
            "programs run."
        ),
    ] = 1,
    checkpoint: Annotated[str, Parameter(help="best, last, or a file.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool, Parameter(negative=(), help="Leave bad rows out and count them.")
    ] = False,
    quiet: Annotated[bool, Parameter(negative=(), help="Show no progress.")] = False,
) -> int:
    """Test whether the attention of a text classifier explains its predictions.

    Writes audit.html, a page that needs nothing else and no knowledge of code, and audit.json,
    audit.csv (a row a measure) and texts.csv (a row a text). Controls are trained on the run's own
    data into controls/ beside them, and are not trained again if they are there.
    """
    wanted = _Wanted(
        texts=_least("texts", texts, 1, _QUICK["texts"] if quick else None),
        states=_least("states", states, 0, _QUICK["states"] if quick else None),
        steps=_least("steps", steps, 0, _QUICK["steps"] if quick else 500) or 0,
        permutations=_least(
            "permutations", permutations, 0, _QUICK["permutations"] if quick else 100
        )
        or 0,
    )
    for name, value, least in (
        ("adversaries", adversaries, 0),
        ("examples", examples, 0),
        ("memory", memory, 1),
        ("threads", threads, 1),
        ("seed", seed, 0),
    ):
        _least(name, value, least, None)
    check_seeds(seeds)
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level:g}")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon: expected a number from 0 to 1, got {epsilon:g}")
    for lam in adversarial:
        if not 0 <= lam < math.inf:
            raise ValueError(f"adversarial: expected finite numbers from 0, got {lam:g}")
    _check_classifier(run)

    from parsimax.analysis.audit import Search
    from parsimax.analysis.audit import audit as measure
    from parsimax.analysis.audit.erasure import FRACTIONS
    from parsimax.analysis.audit.run import IMPORTANCES
    from parsimax.classify import run as runs
    from parsimax.classify.auditing import auditable
    from parsimax.cli.runs import place

    where = place(device)
    loaded = runs.load(run, checkpoint, where)
    found, paths, left_out = read_texts(loaded, run, data, skip_bad=skip_bad, quiet=quiet)
    drawn = sample(found, wanted.texts, seed)
    model = auditable(loaded)
    folder = run / "audit" if out is None else out
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out: expected a folder, got the file {folder}")
    with using_threads(threads):
        compared = _controls(
            loaded,
            model,
            drawn,
            folder / "controls",
            seeds=seeds,
            uniform=uniform,
            lambdas=adversarial,
            device=where,
            quiet=quiet,
        )
    searches: list[Search] = []
    if adversaries:
        plain = {"count": adversaries, "steps": wanted.steps, "epsilon": epsilon, "seed": seed}
        searches.append(Search(**plain))  # type: ignore[arg-type]
        if sparse:
            searches.append(Search(mapping="entmax(alpha=1.5)", **plain))  # type: ignore[arg-type]
            searches.append(Search(on_support=True, **plain))  # type: ignore[arg-type]
    more = (("integrated_gradients", "inputs"),) if integrated_gradients else ()
    with using_threads(threads), progress_bar(quiet) as progress:
        result = measure(
            model,
            drawn,
            importances=(*IMPORTANCES, *more),
            states=None if wanted.states == 0 else "gradient_norm",
            states_per_text=wanted.states or None,
            fractions=FRACTIONS if erasure else (),
            permutations=wanted.permutations,
            searches=searches,
            controls=compared,
            examples=examples,
            level=level,
            seed=seed,
            device=where,
            memory=memory * _MIB,
            progress=progress,
        )
    note = _quick_note(wanted) if quick else ""
    page = write(result, folder, loaded, run, paths, left_out, drawn_from=len(found), note=note)
    if not quiet:
        print(result.verdict)
        print()
        print(f"written to {page}, with audit.json, audit.csv and texts.csv beside it")
    return 0


@dataclass(frozen=True)
class _Wanted:
    texts: int | None
    states: int | None
    steps: int
    permutations: int


def _quick_note(wanted: _Wanted) -> str:
    return (
        f"This is a quick look: at most {wanted.texts:,} texts, {wanted.steps} steps of search, "
        f"{wanted.permutations} permutations and {wanted.states} hidden states a text. A whole "
        "audit may say otherwise."
    )


def _least(name: str, value: int | None, least: int, default: int | None) -> int | None:
    if value is not None and value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
    return default if value is None else value


def _check_classifier(run: Path) -> None:
    from parsimax._runs.task import is_classifier

    if not run.exists():
        raise ValueError(
            f"{run}: there is no such run; a run is a folder that parsimax train wrote"
        )
    if run.is_file():
        raise ValueError(f"{run} is a file: texts are given by --data {run}, and a run is a folder")
    if (run / "config.yaml").is_file() and not is_classifier(run):
        raise ValueError(
            f"{run} is the run of a sequence-to-sequence model, and an audit needs a text "
            f"classifier; what its attention heads do, parsimax heads {run} shows"
        )


def read_texts(
    loaded: Run, run: Path, data: Sequence[str], *, skip_bad: bool = False, quiet: bool = True
) -> tuple[list[Text], list[str], str]:
    """Texts to audit, the files they are from, and what was left out of those in words."""
    from parsimax.classify.auditing import usable
    from parsimax.classify.examples import check_some

    given = loaded.config.data
    paths = list(data) or list(given.test or given.validation)
    try:
        read = loaded.read(paths, labelled=False, skip_bad=skip_bad or None)
    except FileNotFoundError as error:
        if data:
            raise
        raise ValueError(
            f"{run}: its data are not where they were ({error}); give texts by --data FILE"
        ) from error
    skip = skip_bad or given.skip_bad
    texts, read = usable(read, loaded.vocabulary, skip_bad=skip)
    check_some(read, ", ".join(paths))
    if read.remarks() and not quiet:
        print(f"parsimax: left out: {read.remarks()}", file=sys.stderr)
    return texts, paths, read.remarks()


def sample(texts: list[Text], count: int | None, seed: int) -> list[Text]:
    """So many texts at random, in their order."""
    if count is None or count >= len(texts):
        return texts
    import torch

    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    return [texts[i] for i in sorted(order[:count].tolist())]


def _controls(
    loaded: Run,
    model: Auditable,
    texts: list[Text],
    folder: Path,
    *,
    seeds: Sequence[int],
    uniform: bool,
    lambdas: Sequence[float],
    device: torch.device,
    quiet: bool,
) -> list[Comparison]:
    """Train what was asked for, and compare."""
    from parsimax.analysis.audit import adversarial_control, seed_control, uniform_control
    from parsimax.classify import controls

    same = [seed for seed in seeds if seed == loaded.config.seed]
    if same:
        raise ValueError(f"seeds: {same[0]} is the run's own seed; a control needs another")
    found: list[Comparison] = []
    if seeds:
        train = _told(controls.seeds(loaded, folder, quiet=quiet), "seed {}", quiet)
        found += seed_control(model, texts, train, seeds, device=device)
    if uniform:
        train = _told(controls.uniform(loaded, folder, quiet=quiet), "uniform attention", quiet)
        found.append(uniform_control(model, texts, train, device=device))
    if lambdas:
        # at the audited model itself the gradient of the distance is zero: begin elsewhere
        other = _reseeded(loaded)
        train = _told(controls.adversaries(other, folder, quiet=quiet), "an adversary", quiet)
        found += adversarial_control(model, texts, train, lambdas, device=device)
    return found


def _reseeded(loaded: Run) -> Run:
    from dataclasses import replace

    return replace(loaded, config=replace(loaded.config, seed=loaded.config.seed + 1000))


def _told(train: Callable[..., Auditable], what: str, quiet: bool) -> Callable[..., Auditable]:
    """The same function, which says what it trains."""

    def told(given: Any) -> Auditable:
        if not quiet:
            print(f"control: {what.format(given)}", file=sys.stderr)
        return train(given)

    return told


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage on a terminal; gives the function that is told."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<40}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=console, disable=hidden) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage.replace("_", " "), total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield tell


def write(
    result: Audit,
    folder: Path,
    loaded: Run,
    run: Path,
    paths: Sequence[str],
    left_out: str,
    *,
    drawn_from: int,
    note: str = "",
) -> Path:
    """The page and the files beside it."""
    from parsimax._runs.facts import replace, versions
    from parsimax.viz.audit import Facts, audit_page
    from parsimax.viz.audit.page import PAGE_NAME

    when = time.strftime("%Y-%m-%d %H:%M")
    model = describe(loaded)
    sampled = (
        "" if drawn_from == result.texts else f" (a random sample of {drawn_from:,} that are there)"
    )
    facts = Facts(
        name=run.resolve().name,
        model=model,
        data=", ".join(Path(path).name for path in paths) + sampled,
        labels=loaded.vocabulary.labels,
        left_out=left_out,
        origin=f"Measured on {when} with torch {versions().get('torch', '')}; the model is that of "
        f"epoch {loaded.epoch} of {run}.",
        note=note,
    )
    about = {
        "run": str(run),
        "model": model,
        "epoch": loaded.epoch,
        "data": list(paths),
        "data_texts": drawn_from,
        "note": note,
        "left_out": left_out,
        "labels": list(loaded.vocabulary.labels),
        "date": when,
        "versions": versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, **result.as_dict()}, ensure_ascii=False, allow_nan=False)
    replace(folder / PAGE_NAME, audit_page(result, facts))
    replace(folder / "audit.json", text + "\n")
    replace(folder / "audit.csv", result.to_csv())
    replace(folder / "texts.csv", result.texts_to_csv())
    return folder / PAGE_NAME


def describe(loaded: Run) -> str:
    """The model in a few words."""
    settings = loaded.config.model
    encoder = {"bilstm": "BiLSTM", "transformer": "Transformer"}[settings.encoder.kind]
    attention = settings.attention
    if attention.kind == "uniform":
        return f"{encoder}, uniform attention"
    return f"{encoder}, {attention.kind} attention, {attention.mapping}"
