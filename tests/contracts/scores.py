"""Rows of scores that break solvers."""

from __future__ import annotations

from functools import cache

import numpy as np
from tests.contracts.members import Member

SIZES = (1, 2, 31, 33, 1000)
LONG = 40_000


def _spike(d: int, height: float) -> np.ndarray:
    row = np.zeros(d)
    row[d // 2] = height
    return row


@cache
def adversarial(d: int) -> dict[str, np.ndarray]:
    """Named rows of length ``d``, every score exact in float32."""
    rng = np.random.default_rng(d)
    found = {f"normal, deviation {s:g}": rng.normal(0, s, d) for s in (1e-3, 0.1, 1, 4, 30, 1e4)}
    heights = (1e-6, 1e-3, 0.1, 0.25, 0.3, 0.5, 0.6, 0.999, 1.9, 4, 30)
    found |= {f"spike of {h:g}": _spike(d, h) for h in heights}
    found |= {
        "all equal": np.full(d, 3.7),
        "ties": rng.integers(0, 3, d) * 0.1,
        "ties on the grid of the thresholds": rng.integers(-8, 1, d) * 0.25,
        "linear ramp": np.linspace(-1, 0, d),
        "long linear ramp": np.linspace(-5, 0, d),
        "linear ramp of 1e4": np.linspace(-1e4, 1e4, d),
        "geometric ramp": -np.geomspace(1e-8, 1e4, d),
        "short geometric ramp": -np.geomspace(1e-3, 5, d),
        "one dominates": np.where(np.arange(d) == d // 2, 1e4, -1e4),
        "plus or minus 1e4": np.where(rng.random(d) < 0.5, 1e4, -1e4),
        "shifted by 1e6": np.round(rng.normal(0, 8, d)) / 8 + 1e6,
        "shifted by -1e4": rng.normal(0, 1, d) - 1e4,
        "heavy tails": rng.standard_cauchy(d),
        "mostly masked": np.where(rng.random(d) < 0.3, rng.normal(0, 1, d), -np.inf),
    }
    for row in found.values():
        row[:] = row.astype(np.float32)
    if not np.isfinite(found["mostly masked"]).any():
        found["mostly masked"][0] = 0.0
    return found


def long_rows() -> dict[str, np.ndarray]:
    """A few rows of a vocabulary's length, where sums lose digits."""
    every = adversarial(LONG)
    names = ("normal, deviation 1", "spike of 0.1", "spike of 0.999", "spike of 30", "all equal")
    return {name: every[name] for name in names}


@cache
def threshold_crowds(member: Member, d: int) -> dict[str, np.ndarray]:
    """A top score, and all others within a hair of where they would first receive something.

    That place is found by bisection on the oracle. A mapping with dense output has none.
    """
    if member.smallest > 1 or d < 3:
        return {}
    low, high = np.float32(-1e5), np.float32(0)
    if member.oracle(np.array([0.0, low]))[1] > 0:
        return {}
    while np.nextafter(low, np.float32(0)) < high:
        middle = np.float32((np.float64(low) + high) / 2)
        if member.oracle(np.array([0.0, middle]))[1] == 0:
            low = middle
        else:
            high = middle
    ulp = float(np.spacing(np.abs(high)))
    rng = np.random.default_rng(7)
    found = {
        "crowd within ulps of the threshold": high + ulp * rng.integers(-4, 5, d),
        "crowd around the threshold": high * (1 + 1e-5 * rng.normal(size=d)),
        "crowd above the threshold": np.minimum(high * (1 - 1e-3 * rng.random(d)), 0),
    }
    for row in found.values():
        row[0] = 0.0
        row[:] = row.astype(np.float32)
    return found
