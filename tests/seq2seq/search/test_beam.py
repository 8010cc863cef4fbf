"""Beams against lists and enumeration; what their certificates claim is true."""

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
    longest_prefix,
    plain_beam,
    random_rule,
    sources,
)
from torch import nn

from parsimax.seq2seq.search import beam, greedy

seeds = st.integers(0, 10**6)
few = settings(max_examples=25, deadline=None)
# Logarithms are summed, the oracles multiply: a dozen roundings of float64.
CLOSE = 1e-12


@few
@given(seed=seeds, size=st.integers(1, 6), n_best=st.integers(1, 4))
def test_a_beam_keeps_what_a_beam_on_lists_keeps(seed: int, size: int, n_best: int) -> None:
    rule = random_rule(seed)
    for source, got in zip(
        SOURCES, beam(TableStepper(rule), *sources(*SOURCES), size, n_best), strict=True
    ):
        finished, dropped = plain_beam(rule, source, size)
        best = sorted(finished.items(), key=lambda item: -item[1])[:n_best]
        assert [h.symbols for h in got.hypotheses] == [symbols for symbols, _ in best]
        assert [h.probability for h in got.hypotheses] == pytest.approx(
            [p for _, p in best], abs=CLOSE
        )
        assert got.exhaustive == (dropped == 0)
        assert got.optimal == (best[0][1] >= dropped if best else False)


@few
@given(
    seed=seeds,
    size=st.integers(1, 6),
    ties=st.booleans(),
    leaks=st.booleans(),
    early_stop=st.booleans(),
    max_length=st.integers(0, 5),
    min_length=st.integers(0, 2),
)
def test_what_is_certified_is_true_of_all_sequences(
    seed: int,
    size: int,
    ties: bool,
    leaks: bool,
    early_stop: bool,
    max_length: int,
    min_length: int,
) -> None:
    rule = random_rule(seed, ties=ties, leaks=leaks)
    results = beam(
        TableStepper(rule),
        *sources(*SOURCES),
        size,
        3,
        early_stop=early_stop,
        max_length=max(max_length, min_length),
        min_length=min_length,
    )
    for source, got in zip(SOURCES, results, strict=True):
        truth = all_sequences(rule, source)
        order = sorted(truth.values(), reverse=True)
        ended = [h for h in got.hypotheses if h.finished]
        assert len(set(ended)) == len(ended) <= got.finished
        for h in ended:
            assert h.probability == pytest.approx(truth[h.symbols], abs=CLOSE)
            assert min_length <= len(h.symbols) <= max(max_length, min_length)
        if got.exhaustive:
            assert got.finished == len(truth)
            assert got.covered == pytest.approx(sum(truth.values()), abs=CLOSE)
            assert got.dropped == -math.inf
        if got.optimal:
            assert ended[0].probability == pytest.approx(order[0], abs=CLOSE)
        assert [h.probability for h in ended[: got.certified]] == pytest.approx(
            order[: got.certified], abs=CLOSE
        )
        assert bool(got.single) == bool(got.exhaustive and len(truth) == 1)


@few
@given(seed=seeds, limit=st.integers(0, 5), leaks=st.booleans())
def test_a_wide_beam_is_exhaustive_exactly_if_the_length_limit_cuts_nothing(
    seed: int, limit: int, leaks: bool
) -> None:
    rule = random_rule(seed, leaks=leaks)
    results = beam(TableStepper(rule), *sources(*SOURCES), 500, max_length=limit)
    for source, got in zip(SOURCES, results, strict=True):
        assert got.exhaustive == (longest_prefix(rule, source, 9) <= limit)
        assert got.finished == len(all_sequences(rule, source, limit))


@few
@given(
    seed=seeds, ties=st.booleans(), size=st.integers(1, 4), penalty=st.sampled_from([0.0, 1.0, -1])
)
def test_no_result_depends_on_the_batch_or_its_padding(
    seed: int, ties: bool, size: int, penalty: float
) -> None:
    rule = random_rule(seed, ties=ties)
    options = {"size": size, "n_best": 3, "length_penalty": penalty, "max_length": None}
    together = beam(TableStepper(rule), *sources(*SOURCES * 4, extra=3), **options)
    alone = [beam(TableStepper(rule), *sources(s), **options)[0] for s in SOURCES]
    assert together == alone * 4


@few
@given(seed=seeds)
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    rule = random_rule(seed)
    for source, got in zip(SOURCES, greedy(TableStepper(rule), *sources(*SOURCES)), strict=True):
        prefix: tuple[int, ...] = ()
        while (symbol := max((row := rule(source, prefix)), key=row.__getitem__)) != EOS:
            prefix = (*prefix, symbol)
        assert got.best is not None
        assert got.best.symbols == prefix


def trap(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
    """3 is the better beginning, 4 the better whole: .4 against .6 / 3."""
    if not prefix:
        return {3: 0.6, 4: 0.4}
    if prefix == (3,):
        return dict.fromkeys((EOS, 3, 5), 1 / 3)
    return {EOS: 1.0}


def test_a_narrow_beam_falls_into_the_trap_and_says_that_it_may_have() -> None:
    narrow, wide = (beam(TableStepper(trap), *sources((3,)), size)[0] for size in (1, 2))
    assert narrow.best is not None
    assert narrow.best.probability == pytest.approx(0.2)
    assert not narrow.optimal
    assert not narrow.exhaustive
    assert narrow.dropped == math.log(0.4)
    assert wide.best is not None
    assert wide.best.symbols == (4,)
    assert wide.optimal
    assert not wide.exhaustive  # one of four was dropped, and could not have been better


def test_a_model_that_ends_at_once() -> None:
    got = beam(TableStepper(lambda s, p: {EOS: 1.0}), *sources((3,)), n_best=3)[0]
    assert [(h.symbols, h.probability, h.finished) for h in got.hypotheses] == [((), 1.0, True)]
    assert got.exhaustive
    assert got.optimal
    assert got.single
    assert got.covered == 1.0


def test_a_model_whose_rows_are_empty_has_no_sequence() -> None:
    stepper = TableStepper(lambda s, p: {3: 1.0} if not p else {})
    got = beam(stepper, *sources((3,)))[0]
    assert got.hypotheses == ()
    assert got.best is None
    assert got.exhaustive
    assert not got.optimal
    assert not got.single
    assert len(stepper.steps) == 2


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_an_endless_model_is_cut_at_the_length_limit(limit: int) -> None:
    stepper = TableStepper(lambda s, p: {3: 0.75, 4: 0.25})
    got = beam(stepper, *sources((3,)), max_length=limit, n_best=3)[0]
    assert [(h.symbols, h.finished) for h in got.hypotheses] == [((3,) * limit, False)]
    assert got.hypotheses[0].probability == pytest.approx(0.75**limit)
    assert not got.exhaustive
    assert not got.optimal
    assert got.certified == 0
    assert len(stepper.steps) == limit + 1


def test_limits_of_each_source() -> None:
    stepper = TableStepper(lambda s, p: {3: 1.0})
    got = beam(stepper, *sources((3,), (4,), (5,)), max_length=torch.tensor([2, 5, 0]))
    assert [len(d.hypotheses[0].symbols) for d in got] == [2, 5, 0]
    assert stepper.steps == [3, 2, 2, 1, 1, 1]
    lengths = [len(d.hypotheses[0].symbols) for d in beam(stepper, *sources((3,), (4, 4)))]
    assert lengths == [52, 54]  # by default 2 S + 50, of each


def test_rows_are_live_prefixes_and_no_others() -> None:
    def rule(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        if source == (3,):
            return {EOS: 1.0}
        if source == (4,):
            return {3: 1.0} if len(prefix) < 3 else {EOS: 1.0}
        return {3: 0.5, 4: 0.3, EOS: 0.2} if len(prefix) < 2 else {EOS: 1.0}

    stepper = TableStepper(rule)
    got = beam(stepper, *sources((3,), (4,), (5,)), size=6)
    assert stepper.steps == [3, 3, 5, 1]
    assert [d.finished for d in got] == [1, 1, 7]
    assert [d.exhaustive for d in got] == [True, True, True]


def test_it_stops_when_nothing_can_change_and_nothing_can_be_proved() -> None:
    def rule(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        if source == (3,):  # never drops anything from a beam of two: goes on to the limit
            return {EOS: 0.9, 3: 0.1}
        return {EOS: 0.9, 3: 0.05, 4: 0.05}  # drops at the first step

    stepper = TableStepper(rule)
    goes_on, stops = (beam(stepper, *sources(s), 2, max_length=9)[0] for s in ((3,), (4,)))
    assert (goes_on.finished, stops.finished) == (10, 1)
    assert stepper.steps == [1] * 11
    assert goes_on.optimal
    assert stops.optimal
    early = beam(stepper, *sources((3,)), 2, max_length=9, early_stop=True)[0]
    assert early.finished == 1
    assert early.optimal
    assert not early.exhaustive
    assert early.dropped == math.log(0.1)


def penalised(log_probability: float, length: int, a: float) -> float:
    return log_probability / ((5 + length + 1) / 6) ** a


@few
@given(seed=seeds, a=st.sampled_from([0.6, 2.0, -1.0]))
def test_a_length_penalty_ranks_by_score_and_claims_nothing(seed: int, a: float) -> None:
    rule = random_rule(seed)
    results = beam(TableStepper(rule), *sources(*SOURCES), 500, 3, length_penalty=a)
    for source, got in zip(SOURCES, results, strict=True):
        truth = all_sequences(rule, source)
        scores = sorted((penalised(math.log(p), len(s), a) for s, p in truth.items()))[::-1]
        assert [h.score for h in got.hypotheses] == pytest.approx(scores[:3], abs=CLOSE)
        for h in got.hypotheses:
            assert h.probability == pytest.approx(truth[h.symbols], abs=CLOSE)
        assert (got.exhaustive, got.optimal, got.single, got.certified) == (None,) * 4


def test_a_length_penalty_prefers_the_longer() -> None:
    def rule(source: tuple[int, ...], prefix: tuple[int, ...]) -> dict[int, float]:
        return {EOS: 0.55, 3: 0.45} if not prefix else ({3: 1.0} if len(prefix) < 6 else {EOS: 1.0})

    plain, long = (
        beam(TableStepper(rule), *sources((3,)), length_penalty=a)[0].hypotheses[0] for a in (0, 2)
    )
    assert plain.symbols == ()
    assert long.symbols == (3,) * 6
    assert long.score == pytest.approx(math.log(0.45) / 4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_equals_are_kept_in_the_order_of_their_symbols(size: int) -> None:
    rule = lambda s, p: dict.fromkeys(range(20, 2, -1), 1 / 32) if not p else {EOS: 1.0}  # noqa: E731
    got = beam(TableStepper(rule, 40), *sources((3,)), size, n_best=size)[0]
    assert [h.symbols for h in got.hypotheses] == [(3,), (4,), (5,)][:size]


def test_a_sum_above_one_by_rounding_is_certain_and_no_more() -> None:
    rule = lambda s, p: {3: 1.0000002} if len(p) < 9 else {EOS: 1.0}  # noqa: E731
    got = beam(TableStepper(rule, dtype=torch.float32), *sources((3,)))[0]
    assert got.hypotheses[0].log_probability == 0.0
    assert got.exhaustive
    assert got.single


def test_a_sequence_too_improbable_for_a_float_is_still_possible() -> None:
    rule = lambda s, p: {3: 1e-30} if len(p) < 20 else {EOS: 1.0}  # noqa: E731
    got = beam(TableStepper(rule, dtype=torch.float32), *sources((3,)))[0]
    assert got.hypotheses[0].log_probability == pytest.approx(20 * math.log(1e-30))
    assert got.single


@pytest.mark.parametrize(
    ("row", "said"),
    [({3: math.nan}, "symbol 2 contain NaN"), ({3: 3.0}, "exceed 1"), ({0: 0.5}, "PAD or BOS")],
)
def test_what_is_no_probability_is_an_error(row: dict[int, float], said: str) -> None:
    stepper = TableStepper(lambda s, p: row if p else {3: 1.0})
    with pytest.raises(ValueError, match=said):
        beam(stepper, *sources((3,), (4,)))


def test_nan_of_an_end_that_comes_too_early_is_seen() -> None:
    stepper = TableStepper(lambda s, p: {3: 0.5, EOS: math.nan})
    with pytest.raises(ValueError, match="NaN"):
        beam(stepper, *sources((3,)), min_length=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"n_best": 0}, "n_best must be at least 1"),
        ({"max_length": -1}, "max_length must be at least 0"),
        ({"max_length": [3, 4]}, "one a source"),
        ({"max_length": 2, "min_length": 3}, "must not exceed max_length"),
        ({"length_penalty": math.nan}, "length_penalty"),
    ],
)
def test_arguments_out_of_range(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        beam(TableStepper(random_rule(0)), *sources((3,)), **options)  # type: ignore[arg-type]


def test_sources_that_do_not_fit() -> None:
    stepper = TableStepper(random_rule(0))
    with pytest.raises(ValueError, match="one entry a source"):
        beam(stepper, torch.ones(2, 3, dtype=torch.long), torch.ones(3, dtype=torch.long))
    with pytest.raises(ValueError, match="integers"):
        beam(stepper, torch.ones(2, 3), torch.ones(2, dtype=torch.long))
    with pytest.raises(TypeError, match="size must be an int"):
        beam(stepper, *sources((3,)), 2.0)  # type: ignore[arg-type]
    stepper.vocabulary_size = 9
    wrong = TableStepper(random_rule(0))
    wrong.step = lambda state, previous: (torch.zeros(1, 4), state)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"shape \(1, 7\), got \(1, 4\)"):
        beam(wrong, *sources((3,)))


def test_no_sources_no_results() -> None:
    empty = torch.ones(0, 3, dtype=torch.long), torch.ones(0, dtype=torch.long)
    assert beam(TableStepper(random_rule(0)), *empty) == []


class Dropping(nn.Module):
    """A model that ends at once in evaluation, and is unsure and has gradients in training."""

    vocabulary_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.weight = nn.Parameter(torch.ones(1))

    def start(self, source: torch.Tensor, source_lengths: torch.Tensor) -> torch.Tensor:
        return source

    def step(
        self, state: torch.Tensor, previous: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert not torch.is_grad_enabled()
        ending = self.dropout(self.weight.expand(len(previous))) == 1
        return nn.functional.one_hot(torch.where(ending, EOS, 3), 4).double(), state

    def select(self, state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return state[rows]


def test_dropout_is_off_and_training_mode_comes_back() -> None:
    model = Dropping()
    model.dropout.eval()
    model.train()
    model.dropout.train()
    source = torch.full((64, 1), 3), torch.ones(64, dtype=torch.long)
    assert all(d.hypotheses[0].symbols == () for d in beam(model, *source))
    assert model.training
    assert model.dropout.training
    model.eval()
    beam(model, *source)
    assert not model.training
