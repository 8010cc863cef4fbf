"""Positional heads: the offset they look at, and how surely."""

from __future__ import annotations

import math

import pytest
import torch
from tests.analysis.heads.made import looks_at, record, uniform

from parsimax.analysis.heads import Head, positional


@pytest.mark.parametrize("offset", [-3, -1, 0, 1, 2])
def test_each_offset_is_found(offset: int) -> None:
    records = [record(looks_at(offset, size), uniform(size)) for size in (6, 7)]
    found = positional(records)["encoder"]
    assert found.at(offset)[0, 0] == 1.0
    best, confidence = found.best()
    assert best[0, 0] == offset
    assert confidence[0, 0] == 1.0
    assert found.ranking(offset)[0] == (Head("encoder", 0, 0), 1.0)
    assert found.heads() == [(Head("encoder", 0, 0), offset, 1.0)]


def test_confidence_is_the_mean_weight_over_queries_that_have_such_a_key() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.3, 0.4, 0.3]])
    found = positional([record(weights)], offsets=(-2, -1, 0, 1, 9))["encoder"]
    expected = [0.3, (0.8 + 0.4) / 2, (0.5 + 0.1 + 0.3) / 3, (0.5 + 0.1) / 2]
    assert found.confidence[0, 0, :4].tolist() == pytest.approx(expected, abs=1e-7)
    assert math.isnan(found.confidence[0, 0, 4])  # no sentence is as long
    assert found.queries.tolist() == [1, 2, 3, 2, 0]
    # the first row's maximum is shared by two keys, each of which has half of it
    assert found.top[0, 0, :4].tolist() == pytest.approx([0.0, 1.0, 0.5 / 3, 0.25])


def test_a_decoder_cannot_look_ahead() -> None:
    found = positional([record(uniform(4, causal=True), module="decoder", causal=True)])["decoder"]
    assert math.isnan(found.at(1).item())
    assert found.at(0).item() == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert found.ranking(1) == []


def test_queries_without_weight_do_not_count() -> None:
    weights = looks_at(-1, 4)
    weights[2] = 0.0
    assert positional([record(weights)])["encoder"].at(-1).item() == 1.0


def test_attention_to_another_sentence_has_no_offsets() -> None:
    across = record(uniform(3), module="context", queries=("a", "b", "c"))
    with pytest.raises(ValueError, match=r"expected self-attention"):
        positional([across])
    assert set(positional([across, record(uniform(3))])) == {"encoder"}


def test_bad_offsets() -> None:
    with pytest.raises(ValueError, match=r"offsets: expected different .* got \(1, 1\)"):
        positional([record(uniform(3))], offsets=(1, 1))
    with pytest.raises(ValueError, match=r"offset: expected one of .*, got 7"):
        positional([record(uniform(3))])["encoder"].at(7)
