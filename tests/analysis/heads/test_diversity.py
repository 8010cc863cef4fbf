"""Jensen-Shannon diversity: 0 if heads are alike, 1 if no two look at the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from tests.analysis.heads.made import looks_at, record, uniform

import parsimax as px
from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import diversity, jensen_shannon


def test_heads_that_are_alike_have_none() -> None:
    found = diversity([record(uniform(5), uniform(5)), record(looks_at(1, 4), looks_at(1, 4))])
    assert found["encoder"].diversity.tolist() == pytest.approx([0.0], abs=1e-12)


@pytest.mark.parametrize("heads", [2, 3, 5])
def test_heads_that_never_meet_have_all_of_it(heads: int) -> None:
    size = heads + 1
    made = []
    for head in range(heads):  # each looks at a token of its own
        weights = torch.zeros(size, size)
        weights[:, head] = 1.0
        made.append(weights)
    found = diversity([record(*made)])["encoder"]
    assert found.diversity.item() == pytest.approx(1.0, abs=1e-12)


def test_half_of_the_queries() -> None:
    one = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    two = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert diversity([record(one, two)])["encoder"].diversity.item() == pytest.approx(0.5)


def test_against_scipy() -> None:
    torch.manual_seed(1)
    weights = px.entmax(2 * torch.randn(3, 4, 6, 7, dtype=torch.float64), 1.5)
    given = AttentionRecord(tuple("abcdefg"), weights, "context", queries=tuple("abcdef"))
    found = diversity([given])["context"].diversity
    for layer in range(3):
        p = weights[layer].numpy()
        each = [
            entropy(p[:, query].mean(0), base=4) - np.mean(entropy(p[:, query], base=4, axis=1))
            for query in range(6)
        ]
        assert found[layer].item() == pytest.approx(np.mean(each), abs=1e-12)
    two = weights[0, :2, 0]
    assert jensen_shannon(two).item() == pytest.approx(jensenshannon(*two.numpy(), base=2) ** 2)
    assert jensen_shannon(two, normalise=False).item() == pytest.approx(
        jensenshannon(*two.numpy()) ** 2
    )


def test_one_head_has_nothing_to_differ_from() -> None:
    found = diversity([record(uniform(3))])["encoder"]
    assert math.isnan(found.diversity.item())
    assert math.isnan(found.low.item())


def test_queries_without_weight_are_counted() -> None:
    dead = looks_at(0, 3)
    dead[1] = 0.0
    found = diversity([record(dead, looks_at(0, 3))])["encoder"]
    assert found.queries.tolist() == [2]
    assert found.excluded.tolist() == [1]
    assert found.diversity.item() == pytest.approx(0.0, abs=1e-12)


def test_interval() -> None:
    torch.manual_seed(0)
    given = [record(*px.sparsemax(3 * torch.randn(4, 6, 6))) for _ in range(12)]
    found = diversity(given)["encoder"]
    assert found.low.item() < found.diversity.item() < found.high.item()
    same = diversity(given)["encoder"]
    assert torch.equal(found.low, same.low)
