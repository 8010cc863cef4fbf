"""One call that audits a model: importance, agreement, erasure, other weights, a verdict."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from parsimax._core.validation import check_choice
from parsimax.mappings import parse

from .adversarial import Adversarial, Search, search_all
from .auditable import Auditable, Text
from .bootstrap import difference, estimates
from .checked import DEFAULT_MEMORY, HALF, Checked, rounding
from .erasure import FRACTIONS, erasure
from .importance import shares, to_prediction, to_states
from .measures import (
    Columns,
    Measure,
    adversaries,
    agreement,
    contextualisation,
    dispersion,
    erasures,
    exchanges,
)
from .methods import Method, method_of
from .observe import Observed, observe
from .quality import quality
from .result import Audit, Example
from .rows import Progress, generator_of
from .swaps import swaps
from .trained import Comparison
from .verdict import verdict

IMPORTANCES: tuple[tuple[str, str], ...] = (
    ("gradient_norm", "inputs"),
    ("gradient_x_input", "inputs"),
    ("leave_one_out", "inputs"),
    ("gradient_norm", "hidden"),
    ("leave_one_out", "hidden"),
)


def audit(
    auditable: Auditable,
    texts: Sequence[Text],
    *,
    importances: Sequence[tuple[str | Method, str]] = IMPORTANCES,
    states: str | Method | None = "gradient_norm",
    states_per_text: int | None = None,
    top: Sequence[int] = (1, 3, 5),
    fractions: Sequence[float] = FRACTIONS,
    permutations: int = 100,
    searches: Sequence[Search] = (Search(),),
    controls: Sequence[Comparison] = (),
    examples: int = 6,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Audit:
    """Is attention an explanation of what this model predicts on these texts?

    Args:
        auditable: The model's four functions; dropout has to be off.
        texts: What to read. Texts that cannot be audited are counted in ``excluded``.
        importances: Pairs of a method (see :func:`importance`) and "inputs" or "hidden".
        states: The method for the influence of inputs on hidden states, or None to leave it out.
        states_per_text: So many states of each text, drawn at random, are looked at; None for all.
            The cost grows with states times tokens.
        top: Each k of the top-k overlaps.
        fractions: Of tokens removed or kept for comprehensiveness and sufficiency; empty leaves
            that out.
        permutations: Of the weights of each text; 0 leaves permuted and uniform weights out.
        searches: For adversarial attention, one result each; empty leaves it out.
        controls: Results of :func:`seed_control`, :func:`uniform_control`,
            :func:`adversarial_control`, for the verdict and the tables.
        examples: How many texts to show token by token.
        level: Of the bootstrap intervals.
        resamples: Of the bootstrap.
        seed: Of everything that is random here but the searches, which have their own.
        device: Where the model is.
        memory: Bytes that a batch may take.
        progress: Called with stage, done, total.

    Returns:
        A frozen dataclass with tables, intervals, examples, exclusions and a verdict.
    """
    _check_texts(texts)
    if len({tuple(_options(search).items()) for search in searches}) < len(searches):
        raise ValueError(f"searches must differ from each other, got {list(searches)}")
    named = _named(importances)
    _check_counts(top, examples, permutations, states_per_text)
    model = Checked(auditable, device, memory)
    clock = _Clock()
    with clock("predictions and attention"):
        seen = observe(model, texts, progress)
    labels = [texts[i].label for i in seen.kept]
    scores = quality(seen.predictions, labels)
    if model.dtype in HALF:
        note = (
            f"Predictions are in {model.dtype}, and moves of less than {rounding(model.dtype):.2g} "
            "are not told from rounding: audit the model in float32 to see more."
        )
        scores = dataclasses.replace(scores, notes=(*scores.notes, note))
    rows = list(seen.rows)
    columns: Columns = {}
    found: dict[str, list[Tensor]] = {}
    for name, (method, source) in named.items():
        with clock(name):
            values = to_prediction(model, rows, method, source, progress=progress, stage=name)
            found[name] = [shares(value) for value in values]
    with clock("agreement"):
        columns |= agreement(seen.attention, found, top=top, memory=memory)
        columns |= _hidden_less_inputs(columns)
        columns |= dispersion(seen.attention, found)
    if states is not None:
        with clock("inputs to hidden states"):
            method = method_of(states)
            which = _drawn(rows, states_per_text, seed)
            asked = None if states_per_text is None else which
            influence = to_states(model, rows, method, states=asked, progress=progress)
            columns |= contextualisation(influence, which, method.name)
    if fractions:
        with clock("erasure"):
            rankings = {"attention": list(seen.attention)} | {
                name: values for name, values in found.items() if name.endswith(":inputs")
            }
            columns |= erasures(
                erasure(
                    model,
                    rows,
                    seen.predictions,
                    rankings,
                    fractions=fractions,
                    seed=seed,
                    progress=progress,
                )
            )
    if permutations:
        with clock("permutations"):
            columns |= exchanges(
                swaps(model, rows, permutations=permutations, seed=seed, progress=progress)
            )
    rivals: dict[str, Adversarial] = {}
    for search in searches:
        with clock("adversarial attention"):
            subject = _subject(search, rivals)
            rivals[subject] = search_all(model, rows, search, progress=progress)
            columns |= adversaries(rivals[subject], subject, seen.attention)
    with clock("intervals"):
        keyed = {str(key): column for key, column in columns.items()}
        by_text = estimates(keyed, level=level, resamples=resamples, seed=seed)
        summary = {key: by_text[str(key)] for key in columns}
    settings = {
        "importances": {name: repr(method) for name, (method, _) in named.items()},
        "states": None if states is None else repr(method_of(states)),
        "states_per_text": states_per_text,
        "top": list(top),
        "fractions": list(fractions),
        "permutations": permutations,
        "searches": {name: _options(r.search) for name, r in rivals.items()},
        "level": level,
        "resamples": resamples,
        "seed": seed,
    }
    return Audit(
        estimates=summary,
        columns=columns,
        texts=len(texts),
        kept=seen.kept,
        excluded=seen.excluded,
        quality=scores,
        examples=_examples(texts, seen, columns, found, rivals, examples),
        controls=tuple(controls),
        verdict=verdict(summary, scores, controls, {n: r.search for n, r in rivals.items()}),
        settings=settings,
        seconds=clock.seconds,
    )


class _Clock:
    """What took how long."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds[stage] = self.seconds.get(stage, 0.0) + spent


def _check_counts(
    top: Sequence[int], examples: int, permutations: int, states_per_text: int | None
) -> None:
    """Before anything is computed."""
    given = [("examples", examples, 0), ("permutations", permutations, 0)]
    given += [("each k of top", k, 1) for k in top]
    if states_per_text is not None:
        given.append(("states_per_text", states_per_text, 1))
    for name, value, least in given:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an int of at least {least}, got {value!r}")


def _check_texts(texts: Sequence[Text]) -> None:
    if not texts:
        raise ValueError("texts must have at least one text, got none")
    for i, text in enumerate(texts):
        if not isinstance(text, Text):
            raise TypeError(f"texts must be a sequence of Text, got {type(text).__name__} at {i}")
        if len(text.tokens) != len(text.words):
            raise ValueError(
                f"a text must have as many words as tokens, text {i} has {len(text.words)} words "
                f"and {len(text.tokens)} tokens"
            )


def _named(
    importances: Sequence[tuple[str | Method, str]],
) -> dict[str, tuple[Method, str]]:
    """Importances by name: the method's, the source, and options where names would be equal."""
    found: dict[str, tuple[Method, str]] = {}
    for pair in importances:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(
                'importances must be pairs of a method and a source, such as ("gradient_norm", '
                f'"inputs"), got {pair!r}'
            )
        given, source = pair
        method = method_of(given)
        check_choice(source, "the source of an importance", ("inputs", "hidden"))
        plain = method == type(method)()
        options = "" if plain else repr(method).partition("(")[2].rstrip(")")
        name = f"{method.name}({options}):{source}" if options else f"{method.name}:{source}"
        if name in found:
            raise ValueError(f"importances must differ from each other, got {name} twice")
        found[name] = (method, source)
    return found


def _hidden_less_inputs(columns: Columns) -> Columns:
    """τ-b of attention with the importance of hidden states, less that with inputs'."""
    pairs: Columns = {}
    for key, column in columns.items():
        if (key.name, key.subject) != ("tau_b", "attention"):
            continue
        method, _, source = key.reference.partition(":")
        other = Measure("tau_b", "attention", f"{method}:hidden")
        if source == "inputs" and other in columns:
            name = Measure("tau_b_difference", other.reference, key.reference)
            pairs[name] = difference(columns[other], column)
    return pairs


def _drawn(rows: Sequence[Tensor] | Sequence[object], count: int | None, seed: int) -> list[Tensor]:
    """Which hidden states of each text are looked at."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"states_per_text must be a positive int or None, got {count!r}")
    drawn = []
    for i, row in enumerate(rows):
        n = len(row)  # type: ignore[arg-type]
        if count is None or n <= count:
            drawn.append(torch.arange(n, device="cpu"))
        else:
            every = torch.randperm(n, generator=generator_of(seed, i), device="cpu")
            drawn.append(every[:count].sort().values)
    return drawn


def _options(search: Search) -> dict[str, object]:
    """Fields by name, with the mapping as a config has it: asdict would lose its name."""
    whole = {field.name: getattr(search, field.name) for field in dataclasses.fields(search)}
    return whole | {"mapping": str(parse(search.mapping))}


def _subject(search: Search, taken: Mapping[str, Adversarial]) -> str:
    name = f"adversarial {parse(search.mapping)}" + (" on the support" if search.on_support else "")
    name = "adversarial attention" if name == "adversarial softmax" else name
    if name not in taken:
        return name
    # those that are told apart by name from here on: the options that differ, and no others
    first = taken[name].search
    for option in ("epsilon", "count", "steps", "lr", "penalty", "seed"):
        value = getattr(search, option)
        if value != getattr(first, option):
            name += f", {option} {value!r}"
    return name


def _examples(
    texts: Sequence[Text],
    seen: Observed,
    columns: Columns,
    found: Mapping[str, Sequence[Tensor]],
    rivals: Mapping[str, Adversarial],
    count: int,
) -> tuple[Example, ...]:
    """Texts from all over the range of agreement, not only striking ones."""
    key = next(
        (
            m
            for m, column in columns.items()
            if m[:2] == ("tau_b", "attention") and not bool(column.values.isnan().all())
        ),
        None,
    )
    if key is None:
        ranked = list(range(len(seen.kept)))
        what = "one of the texts"
    else:
        values = columns[key].values
        ranked = [i for i in values.argsort().tolist() if not bool(values[i].isnan())]
        what = f"τ-b with {key.reference} "
    count = min(count, len(ranked))
    places = [round(k * (len(ranked) - 1) / max(count - 1, 1)) for k in range(count)]
    shown = []
    for place in reversed(places):
        i = ranked[place]
        quantile = "" if key is None else f"{float(columns[key].values[i]):.2f}, "
        quantile += "" if key is None else f"rank {len(ranked) - place} of {len(ranked)}"
        text = texts[seen.kept[i]]
        shown.append(
            Example(
                index=seen.kept[i],
                chosen_for=what + quantile,
                words=tuple(text.words),
                label=text.label,
                prediction=tuple(seen.predictions[i].tolist()),
                attention=tuple(seen.attention[i].tolist()),
                importance={name: tuple(v[i].tolist()) for name, v in found.items()},
                adversarial={
                    name: tuple(r.attention[i].tolist())
                    if bool(r.found[i])
                    else (math.nan,) * len(text.words)
                    for name, r in rivals.items()
                },
                jsd={
                    name: float(r.jsd[i]) if bool(r.found[i]) else math.nan
                    for name, r in rivals.items()
                },
            )
        )
    return tuple(shown)
