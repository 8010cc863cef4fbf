"""An ensemble is the mean of its members' probabilities, and a stepper like any other."""

from __future__ import annotations

import pytest
import torch
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

from parsimax.seq2seq.search import Ensemble, beam, exact, support


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6), weights=st.sampled_from([None, (1.0, 1.0, 1.0), (3.0, 0.5, 0.5)])
)
def test_it_searches_the_mean_of_the_members(seed: int, weights: tuple[float, ...] | None) -> None:
    rules = [random_rule(seed + i, depth=3) for i in range(3)]
    shares = [w / sum(weights) for w in weights] if weights else [1 / 3] * 3

    def mean(source: Symbols, prefix: Symbols) -> Row:
        row: Row = {}
        for rule, share in zip(rules, shares, strict=True):
            for symbol, p in rule(source, prefix).items():
                row[symbol] = row.get(symbol, 0.0) + share * p
        return row

    ensemble = Ensemble([TableStepper(rule) for rule in rules], weights)
    batch = sources(*SOURCES)
    for source, all_, best, found in zip(
        SOURCES,
        support(ensemble, *batch),
        exact(ensemble, *batch),
        beam(ensemble, *batch, 3),
        strict=True,
    ):
        truth = all_sequences(mean, source)
        said = {h.symbols: h.probability for h in all_.sequences}
        assert said == pytest.approx(truth, abs=1e-12)
        assert best.hypothesis is not None
        assert best.hypothesis.probability == pytest.approx(max(truth.values()), abs=1e-12)
        assert found.best is not None
        assert found.best.probability == pytest.approx(truth[found.best.symbols], abs=1e-12)


def test_what_all_are_sure_of_stays_certain() -> None:
    one = TableStepper(lambda s, p: {EOS: 1.0}, dtype=torch.float32)
    for count in range(1, 12):
        (got,) = beam(Ensemble([one] * count), *sources((3,)))
        assert got.hypotheses[0].probability == 1.0
        assert got.single


def test_members_that_do_not_fit() -> None:
    one, other = TableStepper(random_rule(0), 7), TableStepper(random_rule(0), 8)
    with pytest.raises(ValueError, match=r"one vocabulary_size, got \[7, 8\]"):
        Ensemble([one, other])
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])
    for weights in ((1.0,), (1.0, 0.0), (1.0, float("nan"))):
        with pytest.raises(ValueError, match="2 positive numbers"):
            Ensemble([one, one], weights)
