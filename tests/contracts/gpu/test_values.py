"""Lines 1, 2 and 4 of the contract for the Triton kernels: values, against the oracle."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tests.contracts.gpu.device import numpy, on_device, triton_rows
from tests.contracts.members import FAMILIES, MEMBERS, ON_GPU, Member
from tests.contracts.scores import LONG, adversarial, long_rows, threshold_crowds

every_member = pytest.mark.parametrize(
    "member", [member for member in MEMBERS if member.family.triton], ids=str
)
every_typical = pytest.mark.parametrize("member", ON_GPU, ids=str)


@cache
def _rows(member: Member, d: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(names, scores, what the oracle says)."""
    crowds = threshold_crowds(member, d) if d < LONG else {}
    found = long_rows() if d == LONG else adversarial(d) | crowds
    found = {name: z for name, z in found.items() if (z > -np.inf).sum() >= member.smallest}
    if d > 100 and not torch.cuda.is_available():  # the interpreter has no time for all of them
        kept = list(found)[:: 4 if d < LONG else 2] + list(crowds)
        found = {name: found[name] for name in kept}
    z = np.stack(list(found.values()))
    return list(found), z, member.oracle_rows(z)


def _check(p: torch.Tensor, member: Member, expected: np.ndarray, names: list[str]) -> None:
    assert (p >= 0).all()
    error = np.nan_to_num(np.abs(numpy(p) - expected), nan=np.inf).max(-1)
    limit = member.family.single(**member.arguments)
    worst = int(error.argmax())
    assert error[worst] <= limit, f"{names[worst]}: off by {error[worst]:.3g}"
    off = np.abs(numpy(p).sum(-1) - member.mass)
    worst = int(off.argmax())
    limit = 1e-6 * max(1.0, member.mass)
    assert off[worst] <= limit, f"{names[worst]}: the sum is off by {off[worst]:.3g}"


def test_unwritten_memory_is_poisoned():
    assert torch.empty(3).isnan().all()


@pytest.mark.parametrize("d", [33, 300])
@every_member
def test_float32(member, d):
    names, z, expected = _rows(member, d)
    p = triton_rows(member, on_device(z, torch.float32))
    assert p.dtype == torch.float32
    assert p.is_contiguous()
    _check(p, member, expected, names)


@every_typical
def test_short_rows(member):
    for d in (1, 2, 31):
        if d >= member.smallest:
            names, z, expected = _rows(member, d)
            _check(triton_rows(member, on_device(z, torch.float32)), member, expected, names)


@every_typical
def test_rows_that_are_streamed(member):
    names, z, expected = _rows(member, LONG)
    _check(triton_rows(member, on_device(z, torch.float32)), member, expected, names)


@pytest.mark.parametrize(
    "name", [name for name, family in FAMILIES.items() if family.parameter and family.triton]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_parameter_for_every_row(name, dtype):
    """All examples at once; a parameter is not rounded with the scores."""
    family = FAMILIES[name]
    members = [Member(name, arguments) for arguments in family.examples]
    rows = [z for z in adversarial(33).values() if np.isfinite(z).all()][::3]
    z = on_device(np.stack(rows), torch.float32)
    values = torch.tensor([float(m.parameter) for m in members], dtype=dtype)
    p = triton_rows(
        members[0],
        z.expand(len(members), *z.shape),
        **{family.parameter: on_device(values).reshape(-1, 1, 1)},
    )
    for i, value in enumerate(values.tolist()):
        member = Member(name, {family.parameter: value})
        names = [f"{member}, row {row}" for row in range(len(rows))]
        _check(p[i], member, member.oracle_rows(np.stack(rows)), names)


@every_typical
def test_exact_zeros_off_the_support(member):
    """What the oracle gives nothing gets exactly nothing, unless rounding could reach it."""
    names, z, expected = _rows(member, 31)
    p = numpy(triton_rows(member, on_device(z, torch.float32)))
    for row, name in enumerate(names):
        step = 1000 * 2**-23 * max(1.0, np.abs(z[row][np.isfinite(z[row])]).max())
        for i in np.flatnonzero(expected[row] == 0):
            raised = z[row].copy()
            raised[i] += step
            if member.oracle(raised)[i] == 0:
                assert p[row, i] == 0, f"{name}: entry {i} is {p[row, i]}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_typical
def test_half_precision_is_float32_rounded_once(member, dtype):
    _, z, _ = _rows(member, 33)
    half = on_device(z, dtype)
    half = half[~(half == torch.inf).any(-1)]  # 1e6 is beyond float16
    p = triton_rows(member, half)
    assert p.dtype == dtype
    exact = triton_rows(member, half.float())
    # once, so half an ulp: of a small number as large as what float32 may be off
    eps = torch.finfo(dtype).eps
    if dtype == torch.bfloat16 and not torch.cuda.is_available():
        eps *= 2  # the interpreter cuts digits off instead of rounding
    limit = member.family.single(**member.arguments)
    assert ((p.float() - exact).abs() <= 0.51 * eps * exact + limit).all()


@every_typical
def test_invariances(member):
    z = torch.round(torch.randn(6, 40) * 64) / 64
    order = torch.randperm(40)
    moved = torch.cat([z, z + 2**16, z - 2**12, z[:, order]])  # all exact in float32
    p, up, down, permuted = triton_rows(member, on_device(moved)).reshape(4, 6, 40)
    limit = member.family.single(**member.arguments)
    for q in (up, down):
        torch.testing.assert_close(q, p, atol=limit, rtol=0)
    torch.testing.assert_close(permuted, p[:, on_device(order)], atol=limit, rtol=0)
    for dtype in (torch.float32, torch.bfloat16):
        scores = on_device(z, dtype)
        q = triton_rows(member, scores)
        scores, order = scores.sort(-1)
        steps = q.gather(-1, order).diff(dim=-1)
        assert (steps >= 0).all()
        assert (steps[scores.diff(dim=-1) == 0] == 0).all(), "ties must stay ties"
