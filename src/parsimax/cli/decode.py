"""``parsimax decode``: sources in, targets out, one line each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from parsimax.cli import runs
from parsimax.cli.runs import Device, Line, Models

if TYPE_CHECKING:
    from parsimax.seq2seq.search import Hypothesis

_POOL = 16  # batches of a file that are sorted by length together

_CUT = "an output that the length limit cut; --max-length allows more"

# What was found for one source, best first, and what can be said of it beside.
Found = tuple[tuple["Hypothesis", ...], dict[str, Any]]


def decode(
    *paths: Annotated[
        Path,
        Parameter(
            name="RUN [INPUT]",
            help="Folder of a run; of several, the probabilities are averaged. A last path that is "
            "a file is the input, one source a line; standard input without one.",
        ),
    ],
    beam: Annotated[
        int | None, Parameter(help="Prefixes a source may have at a time; 1 is greedy.")
    ] = None,
    n_best: Annotated[int | None, Parameter(help="Hypotheses to print for each source.")] = None,
    exact: Annotated[
        bool, Parameter(negative=(), help="Search for the provably most probable sequence.")
    ] = False,
    sample: Annotated[
        int | None, Parameter(help="Draw this many sequences for each source instead.")
    ] = None,
    format: Annotated[
        Literal["text", "jsonl"],
        Parameter(help="Lines of text, or JSON objects with probabilities and certificates."),
    ] = "text",
    attention: Annotated[
        bool, Parameter(negative=(), help="Add attention weights of the best one to the JSON.")
    ] = False,
    length_penalty: Annotated[
        float | None, Parameter(help="Above 0, longer outputs gain and nothing is certified.")
    ] = None,
    max_length: Annotated[int | None, Parameter(help=runs.MAX_LENGTH)] = None,
    temperature: Annotated[float | None, Parameter(help="Of samples; 1 by default.")] = None,
    top_k: Annotated[int | None, Parameter(help="Sample from the k most probable symbols.")] = None,
    top_p: Annotated[
        float | None, Parameter(help="Sample from the most probable symbols with this share.")
    ] = None,
    seed: Annotated[int, Parameter(help="Of samples.")] = 0,
    batch: Annotated[
        int | None,
        Parameter(help="Sources at a time; 64, or 1 where they are typed. Results do not change."),
    ] = None,
    checkpoint: Annotated[str, Parameter(help="best, last, average, or a name.")] = "best",
    device: Annotated[Device, Parameter(help="Where to compute; auto takes a GPU.")] = "auto",
    skip_bad: Annotated[
        bool,
        Parameter(negative=(), help="Leave bad lines empty and go on, as JSON does with an error."),
    ] = False,
) -> int:
    """Translate, inflect, transliterate: one source a line in, one target a line out.

    A source of an inflection model is "lemma TAB TAG;TAG", with the language in a third column if
    the model knows several. With more than one hypothesis a source, a line of text is
    "line TAB probability TAB text"; the JSON has everything.
    """
    folders, source = runs.split_paths(paths)
    _check(exact=exact, sample=sample, attention=attention, format=format, beam=beam)
    _check_used(
        sampling={"temperature": temperature, "top-k": top_k, "top-p": top_p},
        ranking={"n-best": n_best, "length-penalty": length_penalty},
        beam=beam,
        exact=exact,
        sample=sample,
    )
    models = runs.load(folders, checkpoint=checkpoint, device=device)
    if attention and len(models.runs) > 1:
        raise ValueError("attention: expected one run, because each has its own; got an ensemble")
    search = models.runs[0].config.search
    size = search.beam if beam is None else beam
    count = search.n_best if n_best is None else n_best
    if sample is None and not exact and count > size:
        raise ValueError(
            f"n-best: a beam of {size} has at most {size} hypotheses, got {count}; give it more "
            f"by --beam {count}"
        )
    longest = search.max_length if max_length is None else max_length
    penalty = search.length_penalty if length_penalty is None else length_penalty
    if sample is not None:
        find = _sampler(
            models, sample, max_length=longest, seed=seed, top_k=top_k,
            temperature=1.0 if temperature is None else temperature,
            top_p=1.0 if top_p is None else top_p,
        )  # fmt: skip
    elif exact:
        find = _exact(models, size, longest)
    else:
        find = _beam(models, size, count, length_penalty=penalty, max_length=longest)
    several = sample is not None or (count > 1 and not exact)
    typed = source == runs.STDIN and sys.stdin.isatty()
    at_once = (1 if typed else 64) if batch is None else batch
    lines = runs.stop_at_bad(
        runs.encode_lines(models.codec, source), source, skip_bad=skip_bad or format == "jsonl"
    )
    done = bad = cut = 0
    strange: list[int] = []
    piped = source == runs.STDIN or not Path(source).is_file()
    with _progress(shown=not piped and not sys.stdout.isatty()) as advance:
        for pool in runs.in_batches(lines, at_once if piped else at_once * _POOL):
            found = _search(find, pool, at_once)
            for line in pool:
                done, bad = done + 1, bad + bool(line.error)
                if line.strange:
                    strange.append(line.number)
                if line.number in found:
                    cut += any(not h.finished for h in found[line.number][0])
                if format == "jsonl":
                    print(_json(models, line, found.get(line.number), attention))
                else:
                    _print_text(models, line, found.get(line.number), several)
            sys.stdout.flush()
            advance(done)
    if bad:
        print(f"parsimax: {bad} of {done} lines could not be read", file=sys.stderr)
    runs.say_strange(strange)
    if cut:
        print(f"parsimax: {cut} of {done} sources have {_CUT}", file=sys.stderr)
    if not done:
        name = "standard input" if source == runs.STDIN else source
        raise ValueError(f"{name} is empty: give one source a line")
    return 0


def _search(
    find: Callable[..., list[Found]], pool: Sequence[Line], at_once: int
) -> dict[int, Found]:
    """What was found for each line's number; neighbours in length are searched together."""
    good = sorted((line for line in pool if not line.error), key=lambda line: len(line.symbols))
    found: dict[int, Found] = {}
    for part in runs.in_batches(good, at_once):
        found.update(zip((line.number for line in part), find(part), strict=True))
    return found


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[int], object]]:
    """A count of lines on the terminal while the output goes elsewhere."""
    if not shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("decoding", total=None)
        yield lambda done: bar.update(task, completed=done)


def _check(
    *, exact: bool, sample: int | None, attention: bool, format: str, beam: int | None
) -> None:
    if exact and sample is not None:
        raise ValueError("exact, sample: expected one of them, got both")
    if attention and format != "jsonl":
        raise ValueError("attention: expected --format jsonl, which has a place for it")
    for name, value in (("sample", sample), ("beam", beam)):
        if value is not None and value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")


def _check_used(
    *,
    sampling: dict[str, object],
    ranking: dict[str, object],
    beam: int | None,
    exact: bool,
    sample: int | None,
) -> None:
    """Options that would change nothing are a mistake of whoever gave them."""
    if sample is None:
        for name, value in sampling.items():
            if value is not None:
                raise ValueError(f"{name}: expected --sample with it, because only samples use it")
        if not exact:
            return
    why = "--exact finds the one most probable sequence" if exact else "--sample draws its outputs"
    for name, value in (ranking if exact else {**ranking, "beam": beam}).items():
        if value is not None:
            raise ValueError(f"{name}: {why}, and cannot use it; leave --{name} out")


def _beam(models: Models, size: int, n_best: int, **options: Any) -> Callable[..., list[Found]]:
    from parsimax.seq2seq import search

    def find(lines: Sequence[Line]) -> list[Found]:
        batch = runs.to_batch([line.symbols for line in lines], models.device)
        results = search.beam(
            models.stepper, batch.source, batch.source_lengths, size, n_best, **options
        )
        return [
            (
                r.hypotheses,
                {
                    "exhaustive": r.exhaustive,
                    "optimal": r.optimal,
                    "single": r.single,
                    "covered": r.covered,
                },
            )
            for r in results
        ]

    return find


def _exact(models: Models, beam: int, max_length: int | None) -> Callable[..., list[Found]]:
    from parsimax.seq2seq import search

    def find(lines: Sequence[Line]) -> list[Found]:
        batch = runs.to_batch([line.symbols for line in lines], models.device)
        results = search.exact(
            models.stepper, batch.source, batch.source_lengths, beam_size=beam,
            max_length=max_length,
        )  # fmt: skip
        return [
            (
                () if r.hypothesis is None else (r.hypothesis,),
                {"proved": r.proved, "gap": _finite(r.gap), "expansions": r.expansions},
            )
            for r in results
        ]

    return find


def _sampler(
    models: Models,
    count: int,
    **options: Any,
) -> Callable[..., list[Found]]:
    from parsimax.seq2seq import search

    def find(lines: Sequence[Line]) -> list[Found]:
        batch = runs.to_batch([line.symbols for line in lines], models.device)
        drawn = search.sample(
            models.stepper, batch.source, batch.source_lengths, count,
            # The line's number, so that a sample does not depend on the batch it is drawn in.
            index=[line.number for line in lines], **options,
        )  # fmt: skip
        return [(hypotheses, {}) for hypotheses in drawn]

    return find


def _print_text(models: Models, line: Line, found: Found | None, several: bool) -> None:
    hypotheses = found[0] if found else ()
    if not several:
        print(models.codec.decode_target(hypotheses[0].symbols) if hypotheses else "")
        return
    for hypothesis in hypotheses:
        text = models.codec.decode_target(hypothesis.symbols)
        print(f"{line.number}\t{hypothesis.probability:.6g}\t{text}")


def _json(models: Models, line: Line, found: Found | None, attention: bool) -> str:
    import json

    if found is None:
        return json.dumps({"line": line.number, "error": line.error}, ensure_ascii=False)
    hypotheses, facts = found
    value: dict[str, Any] = {
        "line": line.number,
        "source": line.text,
        "hypotheses": [
            {
                "text": models.codec.decode_target(h.symbols),
                "probability": h.probability,
                "log_probability": h.log_probability,
                "score": h.score,
                "finished": h.finished,
            }
            for h in hypotheses
        ],
        **facts,
    }
    if attention and hypotheses:
        value["attention"] = _attention(models, line, hypotheses[0])
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _attention(models: Models, line: Line, hypothesis: Hypothesis) -> dict[str, Any]:
    """Symbols and weights [layer][head][target][source] of what the output looked at."""
    import torch

    from parsimax.seq2seq.data.batching import pad
    from parsimax.seq2seq.data.symbols import EOS

    said = [*hypothesis.symbols, *([EOS] if hypothesis.finished else [])]
    if not said:  # a prefix of nothing that the length limit cut
        return {"source": list(models.codec.source_symbols(line.symbols)), "target": []}
    with torch.no_grad():
        batch = pad([line.symbols], [said]).to(models.device)
        weights = models.runs[0].model.attention(batch)
    return {
        "source": list(models.codec.source_symbols(line.symbols)),
        "target": list(models.codec.target_symbols(said)),
        "weights": weights["context"][0].tolist(),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value - value == 0 else None
