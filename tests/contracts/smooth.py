"""Scores at which a mapping is smooth although its output is sparse: nothing is near a kink."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from .members import Member

MARGIN = 0.02  # how far any one score, or the parameter, may move without a change of support


def _pattern(member: Member, z: np.ndarray, **arguments: float) -> bytes:
    return member.pattern(member.oracle(z, **arguments))


def _is_smooth(member: Member, z: np.ndarray) -> bool:
    here = _pattern(member, z)
    steps = np.vstack([np.eye(z.size), -np.eye(z.size)]) * MARGIN
    if any(_pattern(member, z + step) != here for step in steps):
        return False
    if member.family.parameter is None:
        return True
    value, name = member.parameter, member.family.parameter
    near = (value - MARGIN, value + MARGIN)
    return all(_pattern(member, z, **{name: x}) == here for x in near)


@cache
def _rows(member: Member, rows: int, d: int) -> torch.Tensor:
    rng = np.random.default_rng(11)
    found = []
    for _ in range(600):
        z = rng.normal(0, rng.choice([0.5, 1.5, 3.0]), d)
        if _is_smooth(member, z):
            p = member.oracle(z)
            several = np.unique(p[p > 0]).size > 1  # more than one that can move
            found.append(((p == 0).any() and several, z))
        if sum(sparse for sparse, _ in found) == rows:
            break
    found.sort(key=lambda item: not item[0])  # sparse ones first; a dense mapping has none
    assert len(found) >= rows
    return torch.tensor(np.stack([z for _, z in found[:rows]]))


def smooth_scores(member: Member, rows: int = 2, d: int = 5) -> torch.Tensor:
    """``rows`` rows of float64 scores, with zeros in the output wherever the mapping has any."""
    return _rows(member, rows, d).clone()
