"""Next symbols and forced runs against the rule's own rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.search.tables import (
    EOS,
    SOURCES,
    Row,
    Symbols,
    TableStepper,
    random_rule,
    sources,
)

from parsimax.seq2seq.search import NextSymbol, complete, next_symbols

seeds = st.integers(0, 10**6)
few = settings(max_examples=30, deadline=None)


def listed(row: Row) -> tuple[NextSymbol, ...]:
    order = sorted((s for s in row if row[s] > 0), key=lambda s: (-row[s], s))
    return tuple(NextSymbol(s, row[s]) for s in order)


@few
@given(seed=seeds, ties=st.booleans(), leaks=st.booleans(), most=st.integers(0, 4), data=st.data())
def test_next_and_forced_are_read_off_the_rows(
    seed: int, ties: bool, leaks: bool, most: int, data: st.DataObject
) -> None:
    rule = random_rule(seed, ties=ties, leaks=leaks, letters=2)
    letters = st.lists(st.integers(3, 4), max_size=4)
    prefixes = [tuple(data.draw(letters)) for _ in SOURCES]
    stepper = TableStepper(rule)
    results = complete(stepper, *sources(*SOURCES), prefixes, max_forced=most)
    assert next_symbols(stepper, *sources(*SOURCES), prefixes) == [r.next for r in results]
    for source, prefix, got in zip(SOURCES, prefixes, results, strict=True):
        assert got.next == listed(rule(source, prefix))
        zeros = [i for i, s in enumerate(prefix) if rule(source, prefix[:i]).get(s, 0) == 0]
        assert got.first_zero == (zeros[0] if zeros else None)
        assert got.possible == (not zeros)
        product = math.prod(rule(source, prefix[:i]).get(s, 0.0) for i, s in enumerate(prefix))
        assert math.exp(got.log_probability) == pytest.approx(product, abs=1e-12)
        run: Symbols = ()
        while len(row := rule(source, prefix + run)) == 1 and EOS not in row and len(run) < most:
            run += tuple(row)
        assert got.forced == run
        assert got.ended == (list(row) == [EOS])
        assert got.after == (() if got.ended else listed(row))


def test_a_word_with_one_choice() -> None:
    """3 4 (5 6 | 6) and the end: what is typed, what is certain, what is open."""
    rows: dict[Symbols, Row] = {
        (): {3: 1.0},
        (3,): {4: 1.0},
        (3, 4): {5: 0.75, 6: 0.25},
        (3, 4, 5): {6: 1.0},
    }
    rule = lambda s, p: rows.get(p, {EOS: 1.0})  # noqa: E731
    stepper = TableStepper(rule)
    start, choice, after, wrong = complete(
        stepper, *sources(*[(3,)] * 4), [(), (3, 4), (3, 4, 5), (4,)]
    )
    assert start.next == (NextSymbol(3, 1.0),)
    assert start.forced == (3, 4)
    assert start.after == choice.next == (NextSymbol(5, 0.75), NextSymbol(6, 0.25))
    assert not start.ended
    assert choice.forced == ()
    assert choice.after == choice.next
    assert after.forced == (6,)
    assert after.ended
    assert after.after == ()
    assert not wrong.possible
    assert wrong.first_zero == 0
    assert wrong.log_probability == -math.inf
    assert wrong.next == (NextSymbol(EOS, 1.0),)
    assert wrong.ended


def test_an_endless_run_is_cut() -> None:
    (got,) = complete(TableStepper(lambda s, p: {3: 1.0}), *sources((3,)), [()], max_forced=5)
    assert got.forced == (3,) * 5
    assert got.after == (NextSymbol(3, 1.0),)
    assert not got.ended


def test_at_most_so_many_are_listed_and_a_choice_stays_a_choice() -> None:
    stepper = TableStepper(lambda s, p: {3: 0.2, 4: 0.3, 5: 0.3, 6: 0.2})
    (got,) = complete(stepper, *sources((3,)), [()], top=1)
    assert got.next == (NextSymbol(4, 0.3),)
    assert got.forced == ()


def test_arguments_that_cannot_be() -> None:
    stepper = TableStepper(random_rule(0))
    with pytest.raises(ValueError, match=r"one a source \(1\), got 2"):
        complete(stepper, *sources((3,)), [(), ()])
    for bad in (EOS, 0, 7):
        with pytest.raises(ValueError, match=f"got {bad} at position 1"):
            complete(stepper, *sources((3,)), [(3, bad)])
    with pytest.raises(ValueError, match="top must be at least 1"):
        complete(stepper, *sources((3,)), [()], top=0)
    with pytest.raises(ValueError, match="NaN"):
        complete(TableStepper(lambda s, p: {3: math.nan}), *sources((3,)), [()])
