"""Distances against scipy, and at zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from parsimax.analysis.audit import (
    jensen_shannon,
    normalised_entropy,
    smoothed_kl,
    total_variation,
)

weights = st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any)


@given(weights, weights)
def test_against_scipy(u, v):
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (u, v))
    expected = jensenshannon(p.numpy(), q.numpy()) ** 2
    assert jensen_shannon(p, q).item() == pytest.approx(np.nan_to_num(expected), abs=1e-12)
    assert total_variation(p, q).item() == pytest.approx((p - q).abs().sum().item() / 2)
    assert normalised_entropy(p).item() == pytest.approx(
        scipy_entropy(p.numpy()) / math.log(4), abs=1e-12
    )
    assert math.isfinite(smoothed_kl(p, q).item())


def test_smoothed_kl_is_kl_where_that_is_finite():
    p, q = (torch.tensor(v, dtype=torch.float64) for v in ([0.2, 0.8], [0.5, 0.5]))
    assert smoothed_kl(p, q).item() == pytest.approx(scipy_entropy(p, q), abs=1e-5)


def test_smoothed_kl_of_padded_rows():
    p = torch.tensor([0.2, 0.8, 0.0], dtype=torch.float64)
    q = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    mask = torch.tensor([True, True, False])
    assert smoothed_kl(p, q, mask).item() == pytest.approx(smoothed_kl(p[:2], q[:2]).item())


def test_entropy_that_is_not_defined():
    assert normalised_entropy(torch.zeros(3)).isnan()
    assert normalised_entropy(torch.ones(1)).isnan()
    assert normalised_entropy(torch.ones(7)).item() == pytest.approx(1)
