"""Sorting by bits: the order of a stable sort, for every kind of number."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from parsimax.kernels.cpu.order import sort_descending, sort_room


@pytest.mark.parametrize("lowest", [0, 29])
@pytest.mark.parametrize("count", [0, 1, 2, 47, 48, 49, 500])
def test_it_is_a_stable_sort(count, lowest):
    rng = np.random.default_rng(count)
    rows = [
        rng.normal(0, 1, count),
        rng.integers(-2, 3, count) * 0.5,
        rng.standard_cauchy(count) * 1e30,
        np.where(rng.random(count) < 0.5, 0.0, -0.0),
        -np.geomspace(1e-300 if lowest == 0 else 1e-30, 1e30, count) if count else np.empty(0),
    ]
    for row in rows:
        y = row if lowest == 0 else row.astype(np.float32).astype(np.float64)
        room = sort_room(500)
        for array in room:
            array[:] = 1  # whatever was there before
        sort_descending(y, count, *room, lowest)
        expected = np.argsort(-(y + 0.0), kind="stable")
        np.testing.assert_array_equal(room[0][:count], expected)
