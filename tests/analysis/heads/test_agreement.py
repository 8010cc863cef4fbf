"""Heads of two models are matched whatever their numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import jensenshannon
from tests.analysis.heads.made import looks_at, record, uniform

import parsimax as px
from parsimax._core.records import AttentionRecord
from parsimax.analysis.heads import agreement
from parsimax.analysis.heads.assignment import assign


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10_000), st.booleans())
def test_assignment_against_scipy(size: int, seed: int, whole: bool) -> None:
    torch.manual_seed(seed)
    cost = torch.randint(0, 4, (size, size)).double() if whole else torch.randn(size, size).double()
    columns = assign(cost.tolist())
    assert sorted(columns) == list(range(size))
    rows, best = linear_sum_assignment(cost.numpy())
    mine = sum(cost[row, column].item() for row, column in enumerate(columns))
    assert mine == pytest.approx(cost.numpy()[rows, best].sum())


def test_assignment_needs_a_square() -> None:
    with pytest.raises(ValueError, match=r"expected 2 columns"):
        assign([[1.0], [2.0]])


def sentences(order: tuple[int, ...], count: int = 4) -> list[AttentionRecord]:
    made = []
    for size in range(4, 4 + count):
        heads = [looks_at(-1, size), looks_at(0, size), looks_at(1, size), uniform(size)]
        made.append(record(*(heads[head] for head in order)))
    return made


def test_the_same_heads_under_other_numbers_agree_fully() -> None:
    (found,) = agreement([sentences((0, 1, 2, 3)), sentences((2, 0, 3, 1))])
    assert [(one.head, two.head) for one, two, _ in found.pairs] == [(0, 1), (1, 3), (2, 0), (3, 2)]
    assert found.matched == pytest.approx(1.0)
    assert found.any_pair < 0.7
    assert (found.first, found.second, found.sentences, found.held_out) == (0, 1, 2, True)


def test_likeness_against_scipy() -> None:
    torch.manual_seed(3)
    models = [
        [
            AttentionRecord(tuple("abcd"), px.sparsemax(torch.randn(2, 2, 4, 4).double()), "m")
            for _ in range(2)
        ]
        for _ in range(2)
    ]
    (found,) = agreement(models)
    one, two = models[0][1].weights, models[1][1].weights  # the second sentence is held out
    for a in range(4):
        for b in range(4):
            p, q = one[a // 2, a % 2].numpy(), two[b // 2, b % 2].numpy()
            each = [1 - jensenshannon(p[i], q[i], base=2) ** 2 for i in range(4)]
            assert found.likeness[a, b].item() == pytest.approx(sum(each) / 4, abs=1e-9)


def test_noise_does_not_agree_because_it_was_matched() -> None:
    torch.manual_seed(0)

    def noise() -> list[AttentionRecord]:
        return [record(*px.sparsemax(3 * torch.randn(8, 6, 6))) for _ in range(8)]

    (found,) = agreement([noise(), noise()])
    assert abs(found.matched - found.any_pair) < 0.06


def test_layers() -> None:
    def made(first: torch.Tensor, second: torch.Tensor) -> list[AttentionRecord]:
        weights = torch.stack([first[None], second[None]])
        return [AttentionRecord(tuple("abcd"), weights, "encoder")] * 2

    swapped = [made(looks_at(-1, 4), looks_at(1, 4)), made(looks_at(1, 4), looks_at(-1, 4))]
    (by_layer,) = agreement(swapped)
    (anywhere,) = agreement(swapped, within="module")
    assert by_layer.matched == pytest.approx(0.0)
    assert anywhere.matched == pytest.approx(1.0)
    assert all(one.layer != two.layer for one, two, _ in anywhere.pairs)


def test_three_models_make_three_pairs() -> None:
    order = (0, 1, 2, 3)
    found = agreement([sentences(order), sentences(order), sentences((1, 0, 3, 2))])
    assert [(each.first, each.second) for each in found] == [(0, 1), (0, 2), (1, 2)]
    (alone,) = agreement([sentences(order, 1), sentences(order, 1)])
    assert not alone.held_out


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match=r"at least two, got 1"):
        agreement([[record(uniform(3))]])
    other = [record(uniform(3), tokens=("x", "y", "z"))]
    with pytest.raises(ValueError, match=r"same sentences, cut into the same tokens"):
        agreement([[record(uniform(3))], other])
    with pytest.raises(ValueError, match=r"as many layers and heads"):
        agreement([[record(uniform(3))], [record(uniform(3), uniform(3))]])
    with pytest.raises(ValueError, match=r"same sentences"):
        agreement([[record(uniform(3))], [record(uniform(3), module="decoder")]])
