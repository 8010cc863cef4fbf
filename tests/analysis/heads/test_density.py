"""Density counts exactly the nonzeros that a mapping produced."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.heads.made import looks_at, record, uniform

import parsimax as px
from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import density


def test_by_hand() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.2, 0.6, 0], [0.25] * 4])
    found = density([record(weights, looks_at(-1, 4), uniform(4))])["encoder"]
    assert found.density.tolist() == [[(1 + 2 + 3 + 4) / 16, 0.25, 1.0]]
    assert found.attended.tolist() == [[2.5, 1.0, 4.0]]
    assert found.nonzeros.tolist() == [[10, 4, 16]]
    assert found.visible == 16


def test_causal_attention_is_counted_against_what_it_sees() -> None:
    found = density([record(uniform(5, causal=True), module="decoder", causal=True)])["decoder"]
    assert found.density.item() == pytest.approx(1.0, abs=1e-15)
    assert found.visible == 15
    assert found.attended.item() == 3.0
    # without `allowed` every key counts as visible
    found = density([record(uniform(5, causal=True), module="decoder")])["decoder"]
    assert found.density.item() == pytest.approx(15 / 25)


def test_queries_weigh_alike_whatever_their_sentence() -> None:
    found = density([record(looks_at(0, 2)), record(uniform(6))])["encoder"]
    assert found.density.item() == pytest.approx((2 * 0.5 + 6 * 1.0) / 8)
    assert found.per_sentence.flatten().tolist() == [0.5, 1.0]
    assert found.histogram(4).tolist() == [0, 0, 1, 1]


def test_the_smallest_weight_counts() -> None:
    tiny = 5e-324
    weights = torch.tensor([[1.0, tiny], [1.0, 0.0]], dtype=torch.float64)
    assert density([record(weights)])["encoder"].nonzeros.item() == 3


def test_rows_without_weight_are_left_out_and_counted() -> None:
    weights = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = density([record(weights, uniform(2))])["encoder"]
    assert found.density.tolist() == [[0.5, 1.0]]
    assert found.queries.tolist() == [[1, 2]]
    assert found.excluded.tolist() == [[1, 0]]
    nothing = density([record(torch.zeros(2, 2))])["encoder"]
    assert math.isnan(nothing.density.item())
    assert nothing.histogram().sum() == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.sampled_from(["softmax", "sparsemax", "entmax(alpha=1.5)", "sparsegen(lam=0.5)"]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_against_a_loop_over_every_weight(
    sizes: list[int], mapping: str, causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    made = []
    for size in sizes:
        seen = torch.ones(size, size, dtype=torch.bool)
        seen = seen.tril() if causal else seen
        scores = 2 * torch.randn(2, 3, size, size)
        weights = px.mappings.parse(mapping)(scores, mask=seen.expand_as(scores))
        tokens = tuple(map(str, range(size)))
        made.append(AttentionRecord(tokens, weights, "m", allowed=seen if causal else None))
    found = density(made)["m"]
    for layer in range(2):
        for head in range(3):
            nonzeros, shares = 0, []
            for each in made:
                for query, row in enumerate(each.weights[layer, head].tolist()):
                    visible = query + 1 if causal else len(row)
                    count = sum(value != 0 for value in row)
                    nonzeros += count
                    shares.append(count / visible)
            assert found.nonzeros[layer, head] == nonzeros
            assert found.density[layer, head].item() == pytest.approx(sum(shares) / len(shares))
    if mapping == "softmax":
        assert found.overall() == 1.0


def test_the_interval_holds_the_mean_and_shrinks() -> None:
    torch.manual_seed(0)
    # long sentences are sparser, so that a mean over sentences is not the mean over queries
    few = [record(px.sparsemax(2 * torch.randn(size, size))) for size in [3] * 8 + [30] * 8]
    many = few * 20
    low, high = density(few)["encoder"].interval()
    assert low < density(few)["encoder"].overall() < high
    narrow_low, narrow_high = density(many)["encoder"].interval()
    assert 0 < narrow_high - narrow_low < (high - low) / 2
