"""Bad records are refused by name; good ones pass unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.analysis.heads.made import record, uniform

from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import density
from parsimax.analysis.heads.checking import check


def made(weights: Any, tokens: tuple[str, ...] = ("a", "b"), **more: Any) -> AttentionRecord:
    return AttentionRecord(tokens, weights, "encoder", **more)


GOOD = torch.full((1, 2, 2, 2), 0.5)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (made(None), "floating-point tensor .* got NoneType; a model that returns no attention"),
        (made(torch.ones(1, 1, 2, 2).long()), "got a tensor of torch.int64"),
        (made(GOOD[0]), r"must be \(layer, head, 2 queries, 2 keys\).* got \(2, 2, 2\)"),
        (made(GOOD, ("a", "b", "c")), "3 queries, 3 keys"),
        (made(torch.zeros(1, 1, 0, 0), ()), "at least one of each"),
        (made(GOOD * float("nan")), "must be finite, got NaN or infinity in layer 1, head 1"),
        (made(GOOD - 1), "negative, got -0.5 in layer 1, head 1; these look like scores"),
        (made(torch.tensor([[[[0.5, 0.5], [1.0, 0.5]]]])), "sums from 1 to 1.5; .*model.eval"),
        (made(GOOD / 2), "sum to 1 .*got sums from 0.5"),
        (made(GOOD, allowed=torch.eye(2)), "allowed must be bool"),
        (made(GOOD, allowed=torch.eye(2).bool()), "layer 1, head 1 gives weight to a key"),
    ],
)
def test_bad_records_are_named(bad: AttentionRecord, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        density([record(uniform(2), uniform(2)), bad])
    assert "record 2 (module 'encoder')" in str(raised.value)


def test_nan_is_found_where_it_is() -> None:
    weights = torch.full((3, 4, 2, 2), 0.5)
    weights[2, 1, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"layer 3, head 2"):
        check(made(weights))


def test_all_records_of_a_module_have_one_shape() -> None:
    records = [record(uniform(2)), record(uniform(2), uniform(2))]
    with pytest.raises(ValueError, match=r"record 2: expected 1 layers of 1 heads.* got 1 of 2"):
        density(records)
    other = [records[0], record(uniform(2), uniform(2), module="decoder")]
    assert set(density(other)) == {"encoder", "decoder"}


def test_no_records() -> None:
    with pytest.raises(ValueError, match=r"at least one record, got none"):
        density([])


def test_budgets_and_half_precision_pass() -> None:
    twice = check(made(GOOD * 2)).weights  # a budget of two: rows are read as shares
    assert torch.equal(twice, GOOD.double())
    many = torch.softmax(torch.randn(2, 3, 40, 40), -1).bfloat16()
    assert check(made(many, tuple(map(str, range(40))))).live.all()


def test_one_token_is_a_sentence() -> None:
    assert density([record(torch.ones(1, 1))])["encoder"].density.item() == 1.0


def test_weights_above_one_are_no_budget() -> None:
    doubled = torch.tensor([[1.8, 0.2], [1.0, 1.0]]).expand(1, 2, 2, 2)
    with pytest.raises(ValueError, match=r"weights must be at most 1, got 1\.8 in layer 1, head 1"):
        check(made(doubled))
