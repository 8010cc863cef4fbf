"""Exact search against enumeration, and how it reports what it could not prove."""

from __future__ import annotations

import math
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.search.tables import (
    EOS,
    SOURCES,
    Row,
    Symbols,
    TableStepper,
    all_sequences,
    random_rule,
    sources,
)

from parsimax.seq2seq.search import Hypothesis, beam, exact

CLOSE = 1e-12
seeds = st.integers(0, 10**6)
few = settings(max_examples=25, deadline=None)


@few
@given(
    seed=seeds,
    ties=st.booleans(),
    leaks=st.booleans(),
    width=st.sampled_from([1, 2, 32]),
    beam_size=st.sampled_from([1, 3]),
)
def test_it_is_the_most_probable_of_all_sequences(
    seed: int, ties: bool, leaks: bool, width: int, beam_size: int
) -> None:
    rule = random_rule(seed, ties=ties, leaks=leaks, depth=5)
    results = exact(TableStepper(rule), *sources(*SOURCES), width=width, beam_size=beam_size)
    for source, got in zip(SOURCES, results, strict=True):
        truth = all_sequences(rule, source)
        assert got.proved
        assert got.gap == 0
        if not truth:
            assert got.hypothesis is None
            assert got.upper_bound == -math.inf
            continue
        assert got.hypothesis is not None
        assert got.hypothesis.finished
        assert got.hypothesis.probability == pytest.approx(max(truth.values()), abs=CLOSE)
        assert truth[got.hypothesis.symbols] == pytest.approx(max(truth.values()), abs=CLOSE)
        assert got.upper_bound == got.hypothesis.log_probability


@few
@given(
    seed=seeds,
    expansions=st.integers(1, 12),
    limit=st.integers(0, 4),
    queue=st.sampled_from([1, 2, 3, 100]),
    width=st.sampled_from([1, 3]),
)
def test_bounds_hold_under_every_limit(
    seed: int, expansions: int, limit: int, queue: int, width: int
) -> None:
    rule = random_rule(seed, depth=6)
    options = {"max_expansions": expansions, "max_length": limit, "queue": queue, "width": width}
    results = exact(TableStepper(rule), *sources(*SOURCES), beam_size=1, **options)
    alone = [exact(TableStepper(rule), *sources(s), beam_size=1, **options)[0] for s in SOURCES]
    assert results == alone  # no limit is shared by a batch
    for source, got in zip(SOURCES, results, strict=True):
        best = max(all_sequences(rule, source).values())
        assert got.expansions < expansions + width
        assert math.exp(got.upper_bound) >= best - CLOSE
        found = got.hypothesis.probability if got.hypothesis else 0.0
        assert found <= best + CLOSE
        assert (got.gap == 0) == got.proved
        if got.proved:
            assert found == pytest.approx(best, abs=CLOSE)
        elif got.hypothesis:
            assert got.gap == got.upper_bound - got.hypothesis.log_probability > 0


def trap(source: Symbols, prefix: Symbols) -> Row:
    """Greedy search goes 3 and ends up with .6 / 4; behind 4 there is .4 whole."""
    if not prefix:
        return {3: 0.6, 4: 0.4}
    if prefix == (3,):
        return dict.fromkeys((EOS, 3, 5, 6), 1 / 4)
    return {EOS: 1.0}


def test_it_finds_what_greedy_search_provably_misses() -> None:
    source = sources((3,))
    missed = beam(TableStepper(trap), *source, 1)[0]
    got = exact(TableStepper(trap), *source, beam_size=1)[0]
    assert missed.best is not None
    assert missed.best.probability == pytest.approx(0.15)
    assert not missed.optimal
    assert got.hypothesis == Hypothesis((4,), math.log(0.4), math.log(0.4))
    assert got.proved
    assert got.expansions == 3  # nothing, 3 and 4: the rest cannot be better


def test_a_certified_beam_is_the_proof() -> None:
    got = exact(TableStepper(trap), *sources((3,)))[0]
    assert got.proved
    assert got.expansions == 0
    assert got.hypothesis is not None
    assert got.hypothesis.symbols == (4,)


def test_a_prefix_at_the_length_limit_leaves_it_open_unless_it_is_too_improbable() -> None:
    def rule(source: Symbols, prefix: Symbols) -> Row:
        going = source[0] / 10
        return {3: going, EOS: 1 - going}

    results = exact(TableStepper(rule, 9), *sources((2,), (8,)), max_length=3)
    assert [r.proved for r in results] == [True, False]
    likely = results[1]
    assert likely.hypothesis is not None
    assert likely.hypothesis.symbols == ()
    assert likely.upper_bound == pytest.approx(4 * math.log(0.8))
    assert likely.gap == pytest.approx(4 * math.log(0.8) - math.log(0.2))


def test_an_endless_model_without_end() -> None:
    got = exact(TableStepper(lambda s, p: {3: 1.0}), *sources((3,)), max_length=4)[0]
    assert got.hypothesis is None
    assert not got.proved
    assert got.gap == math.inf
    assert got.upper_bound == 0.0


def test_sentences_share_steps() -> None:
    rule = random_rule(5, depth=6)
    together, apart = TableStepper(rule), TableStepper(rule)
    exact(together, *sources(*SOURCES), beam_size=1)
    for source in SOURCES:
        exact(apart, *sources(source), beam_size=1)
    assert sum(together.steps) == sum(apart.steps)
    assert len(together.steps) < len(apart.steps) / 2


def test_states_are_given_back() -> None:
    """As many states are alive as blocks wait, not one for every step that was made."""
    alive: weakref.WeakSet[State] = weakref.WeakSet()

    class State:
        def __init__(self, rows: object) -> None:
            self.rows = rows
            alive.add(self)

    class Counting(TableStepper):
        most = 0

        def start(self, *args: object) -> object:
            return State(super().start(*args))  # type: ignore[arg-type]

        def step(self, state, previous):  # type: ignore[no-untyped-def]
            table, rows = super().step(state.rows, previous)
            self.most = max(self.most, len(alive))
            return table, State(rows)

        def select(self, state, rows):  # type: ignore[no-untyped-def]
            return State(super().select(state.rows, rows))

    def long_trap(source: Symbols, prefix: Symbols) -> Row:
        if 0 < len(prefix) < 60:
            return {5: 1.0}
        return trap(source, prefix[:1] if len(prefix) == 60 else prefix)

    stepper = Counting(long_trap)
    got = exact(stepper, *sources((3,)), max_length=80, beam_size=1)[0]
    assert got.proved
    assert got.expansions > 100
    assert stepper.most < 6


@pytest.mark.parametrize("name", ["max_expansions", "queue", "width", "beam_size"])
def test_arguments_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        exact(TableStepper(trap), *sources((3,)), **{name: 0})


def test_nan_is_an_error() -> None:
    stepper = TableStepper(lambda s, p: {3: 0.5, 4: 0.4} if len(p) < 3 else {EOS: math.nan})
    with pytest.raises(ValueError, match="symbol 4 contain NaN"):
        exact(stepper, *sources((3,)), beam_size=1)
