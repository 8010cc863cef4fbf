"""Line 7 of the contract: bad input is refused, by name, with what was expected and what came."""

from __future__ import annotations

import re

import pytest
import torch
from tests.contracts.members import FAMILIES, TYPICAL, WITH_PARAMETER, Member

import parsimax as px

every_member = pytest.mark.parametrize("member", TYPICAL, ids=str)
every_parameter = pytest.mark.parametrize("member", WITH_PARAMETER, ids=str)
REFUSED = [
    pytest.param(name, arguments, message, id=f"{name}{arguments}")
    for name, family in FAMILIES.items()
    for arguments, message in family.refuses
]


def _both(member):
    """The function and the object, which must check alike."""
    return member.function, member.mapping


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_a_bad_number(name, arguments, message):
    (argument,) = arguments
    with pytest.raises(ValueError, match=f"^{argument} must be .*{message}"):
        getattr(px, name)(torch.randn(3), **arguments)
    with pytest.raises(ValueError, match=f"^{argument} must be .*{message}"):
        px.mappings.registry()[name](**arguments)


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_a_bad_value_in_a_tensor(name, arguments, message):
    (argument,) = arguments
    good = float(FAMILIES[name].examples[0][argument])
    values = torch.tensor([[good], [arguments[argument]], [good]])
    shown = re.escape(f"{float(values[1]):g}"[:5])
    with pytest.raises(ValueError, match=rf"{argument}.* must .*got .*{shown}"):
        getattr(px, name)(torch.randn(3, 4), **{argument: values})


@every_parameter
@pytest.mark.parametrize("value", ["1.5", None, True, [1.5], 1.5j], ids=repr)
def test_a_parameter_that_is_no_number(member, value):
    name = member.family.parameter
    expected = rf"^{name} must be a number or a tensor, got {re.escape(repr(value))}"
    with pytest.raises(TypeError, match=expected):
        member.function(torch.randn(3), **{name: value})
    with pytest.raises(TypeError, match=expected):
        type(member.mapping)(**{name: value})


@every_parameter
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1), (2, 3, 1), (1, 3)], ids=str)
def test_a_tensor_parameter_of_a_wrong_shape(member, shape):
    name = member.family.parameter
    values = torch.full(shape, member.parameter)
    came = re.escape(str(shape))
    expected = rf"{name} must broadcast to .*\(3, 4\).*size 1 along dim 1.*got shape {came}"
    with pytest.raises(ValueError, match=expected):
        member.function(torch.randn(3, 4), **{name: values})


@every_parameter
def test_a_tensor_parameter_of_a_wrong_dtype(member):
    name = member.family.parameter
    values = torch.ones(3, 1, dtype=torch.bool)
    with pytest.raises(
        TypeError, match=rf"{name} must have a floating-point dtype, got torch\.bool"
    ):
        member.function(torch.randn(3, 4), **{name: values})


@every_member
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64], ids=str)
def test_scores_of_a_wrong_dtype(member, dtype):
    for call in _both(member):
        with pytest.raises(TypeError, match=f"^z must have a floating-point dtype, got {dtype}"):
            call(torch.ones(3, 4).to(dtype))


@every_member
def test_scores_that_are_no_rows(member):
    for call in _both(member):
        with pytest.raises(TypeError, match=r"^z must be a torch\.Tensor of scores, got list"):
            call([1.0, 2.0])
        with pytest.raises(TypeError, match=r"^z must be a torch\.Tensor of scores, got NoneType"):
            call(None)
        with pytest.raises(ValueError, match=r"^z must have at least one dimension, got a scalar"):
            call(torch.tensor(1.0))


@every_member
def test_a_dim_out_of_range(member):
    for call in _both(member):
        for dim in (2, -3, 100):
            with pytest.raises(ValueError, match=rf"^dim must lie in \[-2, 1\].*got {dim}"):
                call(torch.randn(3, 4), dim=dim)
        for dim, kind in ((1.0, "float"), ("1", "str"), (None, "NoneType"), (True, "bool")):
            with pytest.raises(TypeError, match=f"^dim must be an int, got {kind}"):
                call(torch.randn(3, 4), dim=dim)


@every_member
def test_a_bad_mask(member):
    z = torch.randn(3, 4)
    for call in _both(member):
        with pytest.raises(
            TypeError, match=r"^mask must have dtype torch\.bool.*got torch\.float32"
        ):
            call(z, mask=torch.ones(3, 4))
        with pytest.raises(TypeError, match=r"^mask must have dtype torch\.bool.*got torch\.uint8"):
            call(z, mask=torch.ones(3, 4, dtype=torch.uint8))
        with pytest.raises(TypeError, match=r"^mask must be a bool tensor or None, got list"):
            call(z, mask=[True] * 4)
        for shape in ((3,), (4, 3), (3, 5), (2, 3, 4), (1, 3, 4)):
            mask = torch.ones(shape, dtype=torch.bool)
            message = rf"^mask must broadcast to .*\(3, 4\), got shape {re.escape(str(shape))}"
            with pytest.raises(ValueError, match=message):
                call(z, mask=mask)


@every_member
def test_an_unknown_backend(member):
    for call in _both(member):
        message = "^backend must be one of .*torch.*got 'numpa'; did you mean 'numba'"
        with pytest.raises(ValueError, match=message):
            call(torch.randn(3, 4), backend="numpa")
        with pytest.raises(ValueError, match=r"^backend must be one of .*got None"):
            call(torch.randn(3, 4), backend=None)


@every_member
def test_numbers_are_checked_under_transforms_and_compile_too(member):
    """A Python number is known there, unlike the values in a tensor."""
    for arguments, message in member.family.refuses:
        bad = Member(member.name, arguments)
        with pytest.raises(ValueError, match=message):
            torch.func.vmap(bad.function)(torch.randn(2, 6))
