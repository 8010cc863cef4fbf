"""Scores against counting by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parsimax.classify.metrics import auc, measure


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=2))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[float, bool]]) -> None:
    scores, positive = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[positive] for n in scores[~positive]]
    found = auc(scores, positive)
    if pairs:
        assert found == pytest.approx(float(np.mean(pairs)), abs=1e-12)
    else:
        assert math.isnan(found)


def test_scores_of_three_classes() -> None:
    p = torch.tensor(
        [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]
    )
    y = torch.tensor([0, 1, 1, 0, 2])
    scores = measure(p, y, ("a", "b", "c"), loss=0.5)
    assert scores.accuracy == pytest.approx(3 / 5)
    a, b, c = scores.classes
    assert (a.precision, a.recall, a.f1) == pytest.approx((2 / 3, 1.0, 0.8))
    assert (b.precision, b.recall, b.f1) == pytest.approx((1 / 2, 1 / 2, 1 / 2))
    assert (c.precision, c.recall, c.f1) == (0.0, 0.0, 0.0)
    assert scores.f1 == pytest.approx((0.8 + 0.5 + 0) / 3)
    # a against the rest: all 6 pairs right; b: of 6 pairs 4, and a tie; c: all 4
    assert scores.auc == pytest.approx((1.0 + 4.5 / 6 + 1.0) / 3)
    whole = scores.to_dict()
    assert whole["classes"]["a"] == {
        "texts": 2,
        "precision": a.precision,
        "recall": 1.0,
        "f1": a.f1,
    }
    assert (whole["texts"], whole["loss"]) == (5, 0.5)


def test_one_class_has_no_auc() -> None:
    scores = measure(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]), ("0", "1"))
    assert math.isnan(scores.auc)
    assert scores.to_dict()["auc"] is None
    assert scores.accuracy == 0.5


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [
        ((2, 3), [0, 1], r"probabilities must have shape \(N, 2\)"),
        ((2, 2), [0], r"labels must have shape \(2,\)"),
        ((0, 2), [], "with at least one text"),
        ((2, 2), [0, 2], r"labels must lie in \[0, 1\], got 0 to 2"),
        ((2, 2), [0, -1], r"labels must lie in \[0, 1\], got -1 to 0"),
    ],
)
def test_wrong_arguments(shape: tuple[int, int], labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure(torch.full(shape, 0.5), torch.tensor(labels, dtype=torch.long), ("0", "1"))
