"""Samples follow the model's distribution, stay in its support and do not depend on the batch."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.search.tables import (
    EOS,
    SOURCES,
    Row,
    Rule,
    Symbols,
    TableStepper,
    all_sequences,
    random_rule,
    sources,
)

from parsimax.seq2seq.search import Hypothesis, sample

seeds = st.integers(0, 10**6)
few = settings(max_examples=20, deadline=None)
MANY = 4000


def distance_allowed(expected: dict[Symbols, float], count: int) -> float:
    """Five deviations of the sum of |frequency - p|, which the sum of their deviations bounds."""
    return 5 * sum(math.sqrt(p * (1 - p) / count) for p in expected.values()) + 1e-9


def check(hypotheses: tuple[Hypothesis, ...], expected: dict[Symbols, float]) -> None:
    counts = Counter(h.symbols for h in hypotheses)
    assert set(counts) <= set(expected)
    distance = sum(abs(counts[s] / len(hypotheses) - p) for s, p in expected.items())
    assert distance <= distance_allowed(expected, len(hypotheses))


def changed(rule: Rule, change: object) -> Rule:
    """The rule with its rows changed and normalised."""

    def new(source: Symbols, prefix: Symbols) -> Row:
        row = change(rule(source, prefix))  # type: ignore[operator]
        return {s: p / sum(row.values()) for s, p in row.items()}

    return new


def first(row: Row, count: int) -> Row:
    return dict(sorted(row.items(), key=lambda item: (-item[1], item[0]))[:count])


def nucleus(row: Row, mass: float) -> Row:
    kept: Row = {}
    for symbol, p in first(row, len(row)).items():
        if sum(kept.values()) < mass:
            kept[symbol] = p
    return kept


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, lambda row: row),
        ({"temperature": 0.5}, lambda row: {s: p**2 for s, p in row.items()}),
        ({"temperature": 2.0}, lambda row: {s: p**0.5 for s, p in row.items()}),
        ({"top_k": 2}, lambda row: first(row, 2)),
        ({"top_p": 0.6}, lambda row: nucleus(row, 0.6)),
        ({"top_p": 0.8, "top_k": 1}, lambda row: first(row, 1)),
    ],
)
def test_frequencies_are_probabilities(options: dict[str, float], change: object) -> None:
    rule = random_rule(3, depth=3)
    got = sample(TableStepper(rule), *sources(*SOURCES), MANY // 4, seed=1, **options)  # type: ignore[arg-type]
    for source, hypotheses in zip(SOURCES, got, strict=True):
        check(hypotheses, all_sequences(changed(rule, change), source))
        truth = all_sequences(rule, source)  # what is reported is the model's own probability
        for h in hypotheses:
            assert h.probability == pytest.approx(truth[h.symbols], abs=1e-12)
            assert h.score == h.log_probability
            assert h.finished


@few
@given(seed=seeds, draw=seeds, extra=st.integers(0, 3))
def test_a_sentence_has_its_samples_in_any_batch(seed: int, draw: int, extra: int) -> None:
    rule = random_rule(seed)
    together = sample(TableStepper(rule), *sources(*SOURCES, extra=extra), 3, seed=draw)
    for i, source in enumerate(SOURCES):
        alone = sample(TableStepper(rule), *sources(source), 3, seed=draw, index=[i])
        assert alone == [together[i]]
    # ... and its first samples, if more are asked for
    more = sample(TableStepper(rule), *sources(*SOURCES), 7, seed=draw)
    assert [tuple(hypotheses[:3]) for hypotheses in more] == together


def test_seeds_sentences_and_samples_differ() -> None:
    rule = lambda s, p: dict.fromkeys(range(3, 35), 1 / 32) if len(p) < 8 else {EOS: 1.0}  # noqa: E731
    one, other = (
        sample(TableStepper(rule, 40), *sources(*[(3,)] * 20), 20, seed=seed) for seed in (0, 1)
    )
    # 32^8 sequences: that two of 800 are equal has a chance of one in three million.
    assert len({h.symbols for batch in (one, other) for row in batch for h in row}) == 800


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**70 + 5])
def test_uniforms_are_uniform_whatever_the_seed(seed: int) -> None:
    rule = lambda s, p: {3: 0.25, 4: 0.75} if len(p) < 4 else {EOS: 1.0}  # noqa: E731
    (got,) = sample(TableStepper(rule), *sources((3,)), MANY, seed=seed)
    said = np.array([h.symbols for h in got]) == 3
    assert np.abs(said.mean(0) - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / MANY)
    # Steps are independent, and so are neighbouring samples.
    together = np.corrcoef(np.concatenate([said[1:].T, said[:-1].T]).astype(float))
    assert np.abs(together - np.eye(8)).max() < 5 / math.sqrt(MANY)


def test_the_length_limit_and_rows_without_a_way_on() -> None:
    (endless,) = sample(TableStepper(lambda s, p: {3: 1.0}), *sources((3,)), 2, max_length=3)
    assert endless == (Hypothesis((3, 3, 3), 0.0, 0.0, finished=False),) * 2
    (dead,) = sample(TableStepper(lambda s, p: {} if p else {4: 0.5, 3: 0.0}), *sources((3,)))
    assert dead == (Hypothesis((4,), math.log(0.5), math.log(0.5), finished=False),)
    (none,) = sample(TableStepper(lambda s, p: {3: 1.0}), *sources((3,)), max_length=0)
    assert none == (Hypothesis((), 0.0, 0.0, finished=False),)


def test_a_least_length() -> None:
    rule = lambda s, p: {EOS: 0.9, 3: 0.1}  # noqa: E731
    (got,) = sample(TableStepper(rule), *sources((3,)), 50, min_length=3)
    assert min(len(h.symbols) for h in got) == 3
    for h in got:
        assert h.probability == pytest.approx(0.9 * 0.1 ** len(h.symbols))


def test_float32_tables_whose_sums_round() -> None:
    rule = lambda s, p: dict.fromkeys(range(3, 3 + 7), 1 / 7) if not p else {EOS: 1.0}  # noqa: E731
    (got,) = sample(TableStepper(rule, 400, torch.float32), *sources((3,)), 500)
    assert {h.symbols for h in got} == {(s,) for s in range(3, 10)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0}, "temperature must be positive and finite, got 0"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"n": 0}, "n must be at least 1"),
        ({"index": [1, 2]}, r"one entry a source \(1\), got 2"),
    ],
)
def test_arguments_out_of_range(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sample(TableStepper(random_rule(0)), *sources((3,)), **options)  # type: ignore[arg-type]


def test_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match="NaN"):
        sample(TableStepper(lambda s, p: {3: math.nan}), *sources((3,)))
