"""Line 1 and 2 of the contract: every value, against the oracle, on rows that break solvers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import MEMBERS, TYPICAL, Member
from tests.contracts.scores import LONG, SIZES, adversarial, long_rows, threshold_crowds

every_member = pytest.mark.parametrize("member", MEMBERS, ids=str)
every_backend = pytest.mark.parametrize("backend", AVAILABLE)


@cache
def _rows(member: Member, d: int) -> tuple[list[str], torch.Tensor, np.ndarray]:
    """(names, scores in float64, what the oracle says)."""
    found = long_rows() if d == LONG else adversarial(d) | threshold_crowds(member, d)
    found = {name: z for name, z in found.items() if (z > -np.inf).sum() >= member.smallest}
    z = np.stack(list(found.values()))
    return list(found), torch.from_numpy(z), member.oracle_rows(z)


def _sizes(member: Member) -> list[int]:
    return [d for d in (*SIZES, LONG) if d >= member.smallest]


def _check_simplex(p: torch.Tensor, member: Member, slack: np.ndarray, names: list[str]) -> None:
    """p >= 0 and the sum, in float64. One part in 1e6 of what is distributed, if that is over 1."""
    assert (p >= 0).all()
    off = np.abs(p.double().sum(-1).numpy() - member.mass)
    limit = 1e-6 * max(1.0, member.mass) + slack
    worst = int((off - limit).argmax())
    assert (off <= limit).all(), f"{names[worst]}: the sum is off by {off[worst]:.3g}"


def _check_error(error: np.ndarray, limit: np.ndarray | float, names: list[str]) -> None:
    error = np.where(np.isnan(error), np.inf, error)
    over = error / limit
    worst = np.unravel_index(over.argmax(), over.shape)
    assert over.max() <= 1, f"{names[worst[0]]}: off by {error[worst]:.3g} in entry {worst[1]}"


@every_backend
@every_member
def test_float32(member, backend):
    for d in _sizes(member):
        names, z, expected = _rows(member, d)
        p = member.mapping(z.float(), backend=backend)
        assert p.dtype == torch.float32
        _check_error(np.abs(p.numpy() - expected), member.family.single(**member.arguments), names)
        _check_simplex(p, member, np.zeros(len(names)), names)


@every_backend
@every_member
def test_float64(member, backend):
    """1e-12, plus the ulp of a difference of two scores where all of the row's range counts.

    A mapping with mass above one, or with bounds, or with means over groups, reaches down the row,
    past the scores next to the largest, and z_i - z_j of scores 1e4 apart is itself known to 2e-12
    only.
    """
    for d in _sizes(member):
        names, z, expected = _rows(member, d)
        p = member.mapping(z, backend=backend)
        assert p.dtype == torch.float64
        finite = np.where(np.isfinite(z.numpy()), z.numpy(), np.nan)
        spread = np.nanmax(finite, -1, keepdims=True) - np.nanmin(finite, -1, keepdims=True)
        limit = 1e-12 + np.finfo(float).eps * spread * member.family.reaches
        error = member.family.double(p.numpy(), expected, **member.arguments)
        _check_error(error, limit, names)
        _check_simplex(p, member, np.zeros(len(names)), names)


@every_backend
@every_member
def test_exact_zeros_off_the_support(member, backend):
    """What the oracle gives nothing gets exactly nothing.

    This can only be asked of scores that are further below the threshold than rounding reaches.
    """
    names, z, expected = _rows(member, 31)
    for scores in (z, z.float()):
        p = member.mapping(scores, backend=backend)
        # an entry that stays at zero when its score alone rises by a thousand ulps
        eps = torch.finfo(scores.dtype).eps
        for row, name in enumerate(names):
            values = z[row].numpy()
            for i in np.flatnonzero(expected[row] == 0):
                raised = values.copy()
                raised[i] += 1000 * eps * max(1.0, np.abs(values[np.isfinite(values)]).max())
                if member.oracle(raised)[i] == 0:
                    assert p[row, i] == 0, f"{name}: entry {i} is {p[row, i]}"


HALF = (torch.float16, torch.bfloat16)


@every_backend
@pytest.mark.parametrize("dtype", HALF, ids=str)
@every_member
def test_half_precision_is_float32_rounded_once(member, dtype, backend):
    for d in (31, 1000):
        if d < member.smallest:
            continue
        names, z, _ = _rows(member, d)
        half = z.to(dtype)
        good = ~(half == torch.inf).any(-1)  # 1e6 is beyond float16
        half, names = half[good], [name for name, ok in zip(names, good, strict=True) if ok]
        p = member.mapping(half, backend=backend)
        assert p.dtype == dtype
        exact = member.mapping(half.float(), backend=backend)
        rounded = exact.to(dtype)
        # Once, so at most the one ulp by which a float64 inside could differ from float32.
        steps = p.view(torch.int16).int() - rounded.view(torch.int16).int()
        assert steps.abs().max() <= 1
        # Every entry may be half an ulp off: that, and no more, is what the sum may miss.
        above = (rounded.view(torch.int16) + 1).view(dtype).double()
        slack = (above - rounded.double()).sum(-1) / 2
        _check_simplex(p, member, slack.numpy(), names)


@every_backend
@pytest.mark.parametrize("member", TYPICAL, ids=str)
def test_invariances(member, backend):
    torch.manual_seed(3)
    z = torch.round(torch.randn(6, 40, dtype=torch.float64) * 64) / 64
    p = member.mapping(z, backend=backend)
    for shift in (1e6, -1e4, 0.25):  # exact in float64 and, for these scores, in float32
        torch.testing.assert_close(
            member.mapping(z + shift, backend=backend), p, atol=1e-12, rtol=0
        )
        torch.testing.assert_close(
            member.mapping((z + shift).float(), backend=backend),
            member.mapping((z + shift).float().double() - shift, backend=backend).float(),
            atol=member.family.single(**member.arguments),
            rtol=0,
        )
    if member.family.permutes:
        order = torch.randperm(40)
        torch.testing.assert_close(
            member.mapping(z[:, order], backend=backend), p[:, order], atol=1e-12, rtol=0
        )
    if member.family.orders:
        for dtype in (torch.float64, torch.float32, *HALF):
            q = member.mapping(z.to(dtype), backend=backend)
            sorted_scores, order = z.to(dtype).sort(-1)
            steps = q.gather(-1, order).diff(dim=-1)
            assert (steps >= 0).all()
            assert (steps[sorted_scores.diff(dim=-1) == 0] == 0).all(), "ties must stay ties"
