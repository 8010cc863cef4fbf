"""The support against enumeration, its tree against its list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seq2seq.search.tables import (
    EOS,
    SOURCES,
    TableStepper,
    all_sequences,
    longest_prefix,
    random_rule,
    sources,
)

from parsimax.seq2seq.search import SupportNode, support

CLOSE = 1e-12
seeds = st.integers(0, 10**6)
few = settings(max_examples=25, deadline=None)


def leaves(
    node: SupportNode, prefix: tuple[int, ...] = (), mass: float = 1.0
) -> dict[tuple[int, ...], float]:
    """Sequences of a tree, their probabilities multiplied on the way; checks what nodes say."""
    assert node.mass == pytest.approx(mass * node.probability, abs=CLOSE)
    assert node.finished == (node.symbol == EOS)
    if node.finished:
        assert node.children == ()
        return {prefix: node.mass}
    assert list(node.children) == sorted(node.children, key=lambda c: -c.mass)
    found: dict[tuple[int, ...], float] = {}
    for child in node.children:
        below = prefix if child.symbol == EOS else (*prefix, child.symbol)
        found |= leaves(child, below, node.mass)
    return found


@few
@given(seed=seeds, ties=st.booleans(), leaks=st.booleans(), width=st.sampled_from([1, 2, 32]))
def test_it_is_all_sequences(seed: int, ties: bool, leaks: bool, width: int) -> None:
    rule = random_rule(seed, ties=ties, leaks=leaks)
    for source, got in zip(
        SOURCES, support(TableStepper(rule), *sources(*SOURCES), width=width), strict=True
    ):
        truth = all_sequences(rule, source)
        assert got.complete
        assert got.remaining == 0
        assert got.bound == -math.inf
        assert {h.symbols: h.probability for h in got.sequences} == pytest.approx(truth, abs=CLOSE)
        order = [h.probability for h in got.sequences]
        assert order == sorted(order, reverse=True)
        assert got.covered == pytest.approx(sum(truth.values()), abs=CLOSE)
        assert got.covered == math.fsum(order)
        if truth:
            assert leaves(got.tree) == pytest.approx(truth, abs=CLOSE)
        else:
            assert got.tree == SupportNode(1, 1.0, 1.0, (), finished=False)


@few
@given(
    seed=seeds,
    limit=st.integers(1, 8),
    max_length=st.integers(0, 5),
    mass=st.sampled_from([0.3, 0.9, 1.0]),
    queue=st.sampled_from([1, 3, 1000]),
    expansions=st.sampled_from([1, 5, 1000]),
)
def test_what_a_limit_leaves_out_is_accounted_for(
    seed: int, limit: int, max_length: int, mass: float, queue: int, expansions: int
) -> None:
    rule = random_rule(seed)
    results = support(
        TableStepper(rule),
        *sources(*SOURCES),
        limit=limit,
        max_length=max_length,
        mass=mass,
        queue=queue,
        max_expansions=expansions,
        width=2,
    )
    for source, got in zip(SOURCES, results, strict=True):
        truth = all_sequences(rule, source)
        said = {h.symbols: h.probability for h in got.sequences}
        assert len(said) <= limit
        assert said == pytest.approx({s: truth[s] for s in said}, abs=CLOSE)
        assert got.complete == (said.keys() == truth.keys())
        # This rule loses no mass, so what is not there is in what was not followed.
        assert got.covered + got.remaining == pytest.approx(1, abs=1e-9)
        missing = [p for s, p in truth.items() if s not in said]
        assert math.exp(got.bound) >= max(missing, default=0) - CLOSE
        if max_length < longest_prefix(rule, source, 9):
            assert not got.complete


def test_half_the_mass_takes_few_sequences() -> None:
    rule = lambda s, p: {EOS: 0.5, 3: 0.5}  # noqa: E731
    got = support(TableStepper(rule), *sources((3,)), mass=0.7, max_length=1000)[0]
    assert [h.symbols for h in got.sequences] == [(), (3,)]
    assert got.covered == pytest.approx(0.75)
    assert got.remaining == pytest.approx(0.25)
    assert not got.complete


def test_the_whole_is_known_by_its_structure() -> None:
    """Ten tenths sum to less than 1, and are all there is."""
    rule = lambda s, p: dict.fromkeys(range(3, 13), 0.1) if not p else {EOS: 1.0}  # noqa: E731
    got = support(TableStepper(rule, 20), *sources((3,)))[0]
    assert got.complete
    assert len(got.sequences) == 10


def test_figure_1() -> None:
    """Three forms of draw: drawed, drawn and draw share their beginning."""
    d, r, a, w, e, n = range(3, 9)
    rows = {
        (d, r, a, w): {e: 0.664, n: 0.32, EOS: 0.016},
        (d, r, a, w, e): {d: 1.0},
        (d, r, a, w, e, d): {EOS: 1.0},
        (d, r, a, w, n): {EOS: 1.0},
    }
    rule = lambda s, p: rows.get(p) or {(d, r, a, w)[len(p)]: 1.0}  # noqa: E731
    got = support(TableStepper(rule, 9), *sources((3,)))[0]
    assert [(h.symbols[4:], round(h.probability, 6)) for h in got.sequences] == [
        ((e, d), 0.664),
        ((n,), 0.32),
        ((), 0.016),
    ]
    node = got.tree
    for symbol in (d, r, a, w):
        (node,) = node.children
        assert (node.symbol, node.probability) == (symbol, 1.0)
    assert [(c.symbol, c.probability) for c in node.children] == [
        (e, 0.664),
        (n, 0.32),
        (EOS, 0.016),
    ]


def test_long_sequences_do_not_recurse() -> None:
    rule = lambda s, p: {3: 1.0} if len(p) < 1500 else {EOS: 1.0}  # noqa: E731
    got = support(TableStepper(rule), *sources((3,)), max_length=2000)[0]
    assert got.complete
    assert len(got.sequences[0].symbols) == 1500


def test_arguments_out_of_range() -> None:
    stepper = TableStepper(random_rule(0))
    with pytest.raises(ValueError, match="mass must be above 0 and at most 1, got 0"):
        support(stepper, *sources((3,)), mass=0)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        support(stepper, *sources((3,)), limit=0)
