"""Scores against products; zeros, prefixes, several targets a source."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.search.tables import (
    EOS,
    SOURCES,
    TableStepper,
    all_sequences,
    random_rule,
    sources,
)

from parsimax.seq2seq.search import beam, sample, score

seeds = st.integers(0, 10**6)
few = settings(max_examples=20, deadline=None)


@few
@given(seed=seeds, data=st.data())
def test_any_target_has_its_product(seed: int, data: st.DataObject) -> None:
    rule = random_rule(seed)
    letters = st.lists(st.integers(3, 6), max_size=5)
    targets = [data.draw(letters) for _ in SOURCES]
    for source, target, got in zip(
        SOURCES, targets, score(TableStepper(rule), *sources(*SOURCES), targets), strict=True
    ):
        whole = [*target, EOS]
        values = [rule(source, tuple(whole[:i])).get(s, 0.0) for i, s in enumerate(whole)]
        assert got.symbols == tuple(whole)
        assert got.probabilities == tuple(values)
        assert got.probability == pytest.approx(math.prod(values), abs=1e-12)
        assert got.first_zero == (values.index(0.0) if 0.0 in values else None)
        assert (got.log_probability == -math.inf) == (0.0 in values)


@few
@given(seed=seeds)
def test_what_was_found_has_the_score_it_was_found_with(seed: int) -> None:
    """To the last bit: every search adds up from left to right."""
    rule = random_rule(seed)
    batch = sources(*SOURCES)
    found = [d.hypotheses for d in beam(TableStepper(rule), *batch, 4, 4)]
    found += sample(TableStepper(rule), *batch, 2)
    owner = [i % len(SOURCES) for i, several in enumerate(found) for _ in several]
    flat = [h for several in found for h in several]
    got = score(TableStepper(rule), *batch, [h.symbols for h in flat], of=owner)
    assert [g.log_probability for g in got] == [h.log_probability for h in flat]


def test_tensors_with_padding_and_prefixes() -> None:
    rule = random_rule(1)
    stepper = TableStepper(rule)
    batch = sources((3,), (4, 3))
    best = [max(t := all_sequences(rule, s), key=t.__getitem__) for s in ((3,), (4, 3))]
    width = max(map(len, best)) + 3
    padded = torch.tensor([[*s, EOS, *[0] * (width - len(s) - 1)] for s in best])
    assert score(stepper, *batch, padded) == score(stepper, *batch, best)
    prefixes = score(stepper, *batch, [best[0][:1], []], finished=False)
    assert prefixes[0].probabilities == tuple(rule((3,), ())[s] for s in best[0][:1])
    assert (prefixes[1].symbols, prefixes[1].log_probability) == ((), 0.0)


def test_rows_leave_when_their_target_ends() -> None:
    stepper = TableStepper(random_rule(1))
    score(stepper, *sources((3,), (4,), (5,)), [[3], [3, 4, 5], []])
    assert stepper.steps == [3, 2, 1, 1]


def test_targets_that_cannot_be() -> None:
    stepper = TableStepper(random_rule(1))
    for bad in ([3, 1, 3], [3, EOS, 3], [7], [-1], [3, 0, 3]):
        with pytest.raises(ValueError, match="target 1 has"):
            score(stepper, *sources((3,), (4,)), [[3], bad])
    with pytest.raises(ValueError, match=r"sources \(1\), got 2"):
        score(stepper, *sources((3,)), [[3], [4]])
    with pytest.raises(ValueError, match="numbers of sources, 0 to 0"):
        score(stepper, *sources((3,)), [[3], [4]], of=[0, 1])
    with pytest.raises(ValueError, match="NaN"):
        score(TableStepper(lambda s, p: {3: math.nan}), *sources((3,)), [[3]])


def test_no_targets() -> None:
    assert score(TableStepper(random_rule(1)), *sources((3,)), [], of=[]) == []
