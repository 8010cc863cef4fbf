"""The table of the suite covers the registry, and a mapping is a value."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.contracts.backends import AVAILABLE
from tests.contracts.members import FAMILIES, MEMBERS, TYPICAL, WITH_PARAMETER

import parsimax as px
from parsimax._core.backend import choose


def test_every_registered_mapping_is_under_the_contract():
    assert set(FAMILIES) == set(px.mappings.registry())


def test_every_registered_mapping_is_a_public_function():
    assert set(px.mappings.registry()) <= set(px.__all__)


def test_the_backends_under_test():
    assert "torch" in AVAILABLE
    pytest.importorskip("numba")
    assert "numba" in AVAILABLE, "numba is installed and must run on this CPU"


@pytest.mark.parametrize("member", TYPICAL, ids=str)
def test_auto_is_the_backend_that_it_chooses(member):
    chosen = choose("auto", torch.zeros(1))
    assert chosen in AVAILABLE
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        results = []
        for backend in ("auto", chosen):
            z = torch.linspace(-3, 3, 120).reshape(3, 40).to(dtype).requires_grad_()
            p = member.mapping(z, backend=backend)
            (p * torch.linspace(-1, 1, 40).to(dtype)).sum().backward()
            results.append((p.detach(), z.grad))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_text_pickle_copy_and_hash(member):
    mapping = member.mapping
    assert px.mappings.parse(str(mapping)) == mapping
    assert px.mappings.parse(mapping) is mapping
    assert pickle.loads(pickle.dumps(mapping)) == mapping
    assert copy.deepcopy(mapping) == mapping
    assert len({mapping, px.mappings.parse(str(mapping))}) == 1
    with pytest.raises(AttributeError):
        mapping.alpha = 3.0


@pytest.mark.parametrize("member", TYPICAL, ids=str)
def test_object_and_function_are_one_mapping(member):
    z = torch.randn(3, 4, 5)
    mask = torch.rand(3, 4, 5) < 0.8
    mask[..., :2] = True
    for dim in (-1, 1):
        expected = member.function(z, dim=dim, mask=mask.movedim(-1, dim).reshape(3, 4, 5))
        found = member.mapping(z, dim=dim, mask=mask.movedim(-1, dim).reshape(3, 4, 5))
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
@pytest.mark.parametrize("backend", AVAILABLE)
def test_a_tensor_parameter_means_the_same_as_a_number(member, backend):
    """One value for all rows, and one value a row, in any shape that broadcasts."""
    z = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = member.function(z, backend=backend)
    name, value = member.family.parameter, member.parameter
    for shape in ((), (1,), (2, 1, 1), (3, 1), (2, 3, 1), (1, 1, 1)):
        tensor = torch.full(shape, value, dtype=torch.float64)
        found = member.function(z, backend=backend, **{name: tensor})
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    along = member.function(
        z, dim=1, backend=backend, **{name: torch.full((2, 1, 6), value, dtype=torch.float64)}
    )
    torch.testing.assert_close(
        along, member.function(z, dim=1, backend=backend), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
def test_a_mapping_with_a_tensor_parameter_is_pickled_with_it(member):
    tensor = torch.tensor(member.parameter, dtype=torch.float64)
    mapping = type(member.mapping)(**{member.family.parameter: tensor})
    again = pickle.loads(pickle.dumps(mapping))
    z = torch.randn(2, 6, dtype=torch.float64)
    assert torch.equal(again(z), mapping(z))
