"""A sweep put together: cells, trends with a known sign, and published figures."""

from __future__ import annotations

import json
import math

import pytest
import torch
from scipy.stats import kendalltau

from parsimax.analysis.audit.published import TABLE_1, TABLE_2, data_set
from parsimax.analysis.audit.sweep import (
    TABLE_1_KEY,
    TABLE_2_KEY,
    Point,
    Sweep,
    place_of,
    published_cells,
)


def point(mapping: str, seed: int, values: list[float], config: str = "sst-bilstm-tanh") -> Point:
    numbers = torch.tensor(values, dtype=torch.float64)
    return Point(
        config, data_set(config), "bilstm", mapping, seed, 0.8, 0.9,
        {TABLE_1_KEY: numbers, TABLE_2_KEY: numbers},
    )  # fmt: skip


def falling(noise: float = 0.0) -> Sweep:
    torch.manual_seed(0)
    base = torch.rand(50, dtype=torch.float64)
    points = [point("softmax", 1, base.tolist())]
    for lam in (0.9, -8.0, 0.0, 0.5):
        for seed in (1, 2):
            moved = base - 0.1 * place_of(f"sparsegen(lam={lam})").strength
            moved = moved + noise * torch.randn(50, dtype=torch.float64)
            points.append(point(f"sparsegen(lam={lam:g})", seed, moved.tolist()))
    return Sweep(tuple(points))


def test_mappings_are_ordered_by_sparsity() -> None:
    names = [cell.name for cell in falling().cells("sst-bilstm-tanh")]
    assert names == [
        "softmax", "sparsegen(lam=-8)", "sparsemax", "sparsegen(lam=0.5)", "sparsegen(lam=0.9)",
    ]  # fmt: skip
    for lam in (-32.0, 0.0, 0.9):  # −log(1 − λ) multiplies the scores
        assert math.exp(place_of(f"sparsegen(lam={lam})").strength) == pytest.approx(1 / (1 - lam))
    assert place_of("entmax(alpha=1.25)").strength == 1.25


def test_trend_has_the_sign_of_the_data_and_is_scipys() -> None:
    sweep = falling(noise=0.5)
    trend = sweep.trend("sst-bilstm-tanh", resamples=200)
    assert trend is not None
    models = [p for p in sweep.points if p.mapping != "softmax"]
    means = [float(p.values[TABLE_2_KEY].mean()) for p in models]
    expected = kendalltau([p.place.value for p in models], means).statistic
    assert trend.correlation == pytest.approx(expected)
    assert trend.models == 8
    assert trend.low <= trend.correlation <= trend.high
    for seed in (1, 2):
        own = [(p.place.value, m) for p, m in zip(models, means, strict=True) if p.seed == seed]
        alone = kendalltau(*zip(*own, strict=True)).statistic
        assert trend.by_seed[seed] == pytest.approx(alone)
    sure = falling().trend("sst-bilstm-tanh", resamples=50)
    assert sure is not None
    # seeds are equal here, and so tied: the largest τ-b of 4 pairs of ties among 8
    assert sure.correlation == pytest.approx(-1.0)
    assert sure.sign_share == 1.0
    assert sure.same_for_all_seeds


def test_seeds_that_disagree_are_told() -> None:
    points = [
        point(f"sparsegen(lam={lam:g})", seed, [level + 0.01 * lam * (1 if seed == 2 else -2)] * 3)
        for lam in (-2.0, 0.0, 0.5)
        for seed, level in ((1, 0.5), (2, 0.6), (3, 0.7))
    ]
    trend = Sweep((*points, point("sparsegen(lam=0.9)", 4, [0.1] * 3))).trend("sst-bilstm-tanh")
    assert trend is not None
    assert trend.by_seed == {1: -1.0, 2: 1.0, 3: -1.0}  # seed 4 has one degree only
    assert not trend.same_for_all_seeds


def test_two_degrees_of_sparsity_are_no_trend() -> None:
    two = Sweep((point("sparsemax", 1, [0.1, 0.2]), point("sparsegen(lam=0.5)", 1, [0.3, 0.2])))
    assert two.trend("sst-bilstm-tanh") is None


def test_seeds_are_averaged_text_by_text_and_undefined_ones_counted() -> None:
    nan = math.nan
    sweep = Sweep((point("softmax", 1, [0.2, 0.4, nan]), point("softmax", 2, [0.4, nan, nan])))
    cell = sweep.cell("sst-bilstm-tanh", "softmax")
    assert cell is not None
    found = cell.estimate(TABLE_1_KEY)
    assert found is not None
    assert found.mean == pytest.approx((0.3 + 0.4) / 2)
    assert (found.count, sum(found.excluded.values())) == (2, 1)
    assert cell.by_seed(TABLE_1_KEY) == pytest.approx({1: 0.3, 2: 0.4})
    assert cell.estimate("not measured") is None


def test_excluded_texts_keep_their_place() -> None:
    audit = {
        "texts": 4,
        "kept": [0, 2, 3],
        "columns": {TABLE_2_KEY: {"values": [0.5, None, 0.25], "excluded": {"1": "why"}}},
    }
    read = Point.read(
        audit, config="x", data=None, encoder="bilstm", mapping="softmax", seed=1, accuracy=0.5,
        auc=0.5,
    )  # fmt: skip
    values = read.values[TABLE_2_KEY].tolist()
    assert values[0] == 0.5
    assert math.isnan(values[1])
    assert math.isnan(values[2])
    assert values[3] == 0.25


def test_published_figures_are_whole() -> None:
    assert len(TABLE_1) == 12
    assert len(TABLE_2) == 6
    assert all(value < 0 for value in TABLE_2.values())
    assert [cell.name for _, cell in published_cells(falling())] == ["softmax", "sparsemax"]


def test_json_has_no_nan() -> None:
    text = json.dumps(falling().as_dict(), allow_nan=False)
    found = json.loads(text)["settings"][0]
    assert found["trend"]["correlation"] == pytest.approx(-1.0)
    assert found["cells"][0]["measures"][TABLE_1_KEY]["texts"] == 50
