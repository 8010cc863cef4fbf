"""What takes a GPU to show: every row length, masked and not, and a million rows."""

from __future__ import annotations

import os
import time

import pytest
import torch
from tests.contracts.gpu.device import DEVICE, with_gradient
from tests.contracts.members import MEMBERS, ON_GPU, PARAMETERS_ON_GPU

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# New numbers in every run; a failure shows the seed, and PARSIMAX_SEED repeats it.
SEED = int(os.environ.get("PARSIMAX_SEED", time.time_ns() % 2**31))
LENGTHS = (1, 2, 31, 33, 4095, 4097, 50257, 128256, 262144)
every_member = pytest.mark.parametrize("member", ON_GPU, ids=str)
every_length = pytest.mark.parametrize("d", LENGTHS)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def _new_numbers(_seeded):
    torch.manual_seed(SEED)
    print("PARSIMAX_SEED", SEED)


def _scores(rows: int, d: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of several widths."""
    scale = torch.tensor([0.1, 1.0, 2.0, 8.0, 30.0], device=DEVICE).repeat(rows // 5 + 1)[:rows]
    return (torch.randn(rows, d, device=DEVICE) * scale.unsqueeze(1)).to(dtype)


def _check(member, z, dtype, **options):
    """Forward and backward against float64 in plain torch."""
    weights = torch.randn(z.shape, device=DEVICE).to(dtype)
    p, gradient, *change = with_gradient(member, z, weights, **options)
    q = member.function(z.double(), backend="torch", **options)
    eps = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert (p - q).abs().max() <= _single(member, options) + eps / 2 * member.mass
    if dtype == torch.float32:
        assert (p.double().sum(-1) - q.sum(-1)).abs().max() <= 1e-6 * max(1.0, member.mass)
    # what the kernel's own output says the gradient is: it may round its support differently
    exact = _backward_of(member, p, weights, **options)
    scale = exact[0].abs().amax(-1, keepdim=True).clamp(min=1.0)
    held = exact[0].abs() < torch.finfo(dtype).max / 2  # the slopes of normmax go beyond float16
    error = torch.where(held, (gradient - exact[0]).abs() / scale, 0.0)
    assert error.max() <= 2e-5 + 4 * eps
    for found in change:  # a long sum whose terms cancel: relative to their size, too
        terms = exact[1]
        wanted = terms.sum(-1, keepdim=True)
        limit = 1e-4 * wanted.abs() + 2e-5 * terms.abs().sum(-1, keepdim=True) + 1e-6
        assert ((found - wanted).abs() <= limit).all()


def _single(member, options):
    """What float32 may be off for the largest parameter that is used."""
    name = member.family.parameter
    values = options.get(name) if name else None
    arguments = {} if values is None else {name: float(values.max())}
    return member.family.single(**{**member.arguments, **arguments})


def _backward_of(member, p, weights, **options):
    """The gradient in float64, by plain torch, from the output; the parameter's by its terms."""
    rowmap = member.mapping.rowmap
    name = member.family.parameter
    tensor = options.get(name) if name else None
    parameter = member.mapping.parameter if tensor is None else tensor.detach().double()
    gz = rowmap.jacobian(p.double(), weights.double(), parameter)
    if tensor is None:
        return (gz,)
    return gz, rowmap.sensitivity(p.double(), parameter) * weights.double()


@every_dtype
@every_length
@every_member
def test_every_length(member, d, dtype):
    if d >= member.smallest:
        _check(member, _scores(5, d, dtype), dtype)


@pytest.mark.parametrize("member", [m for m in MEMBERS if m.family.triton], ids=str)
def test_every_example(member):
    """All parameters of the suite on a batch of a vocabulary's length."""
    z = _scores(10, 32000, torch.float32)
    p = member.function(z, backend="triton")
    q = member.function(z.double(), backend="torch")
    assert (p - q).abs().max() <= member.family.single(**member.arguments)


@every_length
@pytest.mark.parametrize("member", PARAMETERS_ON_GPU, ids=str)
def test_a_tensor_parameter_and_its_gradient(member, d):
    if d < member.smallest + 1:
        return
    value = member.parameter
    values = value + 0.1 * torch.rand(5, 1, device=DEVICE) * member.family.room(**member.arguments)
    _check(member, _scores(5, d, torch.float32), torch.float32, **{member.family.parameter: values})


@every_length
@every_member
def test_masks(member, d):
    z = _scores(5, d, torch.float32)
    mask = torch.rand(5, d, device=DEVICE) < 0.7
    mask[:, : member.smallest] = True
    mask[3] = False
    if d < member.smallest:
        return
    weights = torch.randn(5, d, device=DEVICE)
    p, gradient = with_gradient(member, z, weights, mask=mask)
    q, other = with_gradient(member, z.masked_fill(~mask, -torch.inf), weights)
    assert torch.equal(p, q)
    assert torch.equal(gradient, other)
    assert (p[~mask] == 0).all()
    expected = member.function(z.double(), mask=mask, backend="torch")
    assert (p - expected).abs().max() <= member.family.single(**member.arguments)
    assert (p[3] == 0).all()
    assert (gradient[3] == 0).all()


@every_member
@pytest.mark.parametrize("d", [3, 17, 64])
def test_a_million_short_rows(member, d):
    _check(member, _scores(1_000_003, d, torch.float32), torch.float32)


@every_member
def test_more_elements_than_32_bits_count(member):
    """The last rows of a matrix of more than 2^31 elements are those that they are alone."""
    z = torch.zeros(66_000, 32_768, dtype=torch.bfloat16, device=DEVICE)
    z[-8:] = torch.randn(8, 32_768, device=DEVICE)
    p = member.function(z, backend="triton")
    assert torch.equal(p[-8:], member.function(z[-8:].clone(), backend="triton"))
    assert torch.equal(p[0], p[40_000])
