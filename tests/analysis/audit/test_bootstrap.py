"""Intervals: known coverage, exclusions, pairs of columns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from parsimax.analysis.audit.bootstrap import Column, difference, estimates, intervals


def test_means_leave_out_what_is_not_defined():
    column = Column(torch.tensor([1.0, math.nan, 3.0, math.nan]), ("", "a", "", "b"))
    found = estimates({"x": column})["x"]
    assert (found.mean, found.median, found.count) == (2.0, 2.0, 2)
    assert found.excluded == {"a": 1, "b": 1}
    assert 1 <= found.low <= found.high <= 3


def test_interval_is_that_of_a_plain_bootstrap():
    rng = np.random.default_rng(0)
    values = rng.normal(2, 1, 80)
    values[::7] = np.nan
    low, high = intervals(torch.from_numpy(values)[:, None], resamples=4000)
    means = [np.nanmean(rng.choice(values, 80)) for _ in range(4000)]
    expected = np.quantile(means, [0.025, 0.975])
    # two bootstraps of 4,000 draws: quantiles of a mean with s.e. 0.12 vary by about 0.007
    assert low.item() == pytest.approx(expected[0], abs=0.03)
    assert high.item() == pytest.approx(expected[1], abs=0.03)


def test_coverage():
    rng = np.random.default_rng(1)
    tables = torch.from_numpy(rng.normal(0.5, 1, (60, 300)))  # 300 experiments of 60 texts
    low, high = intervals(tables, resamples=500)
    covered = ((low <= 0.5) & (high >= 0.5)).double().mean().item()
    assert 0.89 < covered < 0.98  # 95 %, a little less at 60 texts


def test_no_text_and_one_text():
    nothing = Column(torch.tensor([math.nan]), ("why",))
    found = estimates({"none": nothing, "one": Column.of(torch.tensor([2.0]))})
    assert found["none"].count == 0
    assert math.isnan(found["none"].mean)
    assert str(found["none"]) == "not defined for any text"
    assert found["one"].mean == 2.0
    assert math.isnan(found["one"].low)


def test_many_texts_in_blocks(monkeypatch):
    values = torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = intervals(values, resamples=200)
    monkeypatch.setattr("parsimax.analysis.audit.bootstrap._CHUNK", 500)
    parts = intervals(values, resamples=200)
    torch.testing.assert_close(torch.stack(whole), torch.stack(parts), rtol=0, atol=1e-12)


def test_difference_is_undefined_where_either_is():
    a = Column(torch.tensor([3.0, math.nan, 1.0]), ("", "no a", ""))
    b = Column(torch.tensor([1.0, 1.0, math.nan]), ("", "", "no b"))
    assert difference(a, b).reasons == ("", "no a", "no b")
    assert difference(a, b).values[0] == 2


def test_bad_arguments():
    with pytest.raises(ValueError, match="text 1 has value nan"):
        Column(torch.tensor([1.0, math.nan]), ("", ""))
    with pytest.raises(ValueError, match="as many"):
        Column(torch.tensor([1.0]), ())
    with pytest.raises(ValueError, match="level"):
        estimates({}, level=1.0)
    with pytest.raises(ValueError, match="resamples"):
        estimates({}, resamples=0)
