"""The mappings as Modules: they store arguments, and everything else is the function's."""

from __future__ import annotations

import copy
import io
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import parsimax as px

Z = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = torch.ones(5, 1, dtype=torch.bool)
MASK[1] = False

# name, its argument, a value that is not the default, one that is refused
PARAMETERS = [
    ("Entmax", "alpha", 1.3, 0.5),
    ("Sparsegen", "lam", 0.4, 1.0),
    ("Normmax", "alpha", 3.0, 1.0),
    ("Budget", "k", 1.5, -1.0),
    ("Fusedmax", "lam", 0.3, -1.0),
    ("Oscarmax", "lam", 0.3, -1.0),
]


def function(name: str) -> Any:
    return getattr(px, registered(name))


def registered(name: str) -> str:
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def test_every_mapping_has_a_module() -> None:
    assert {registered(name) for name in px.nn.__all__} >= set(px.mappings.registry())


@pytest.mark.parametrize("name", ["Softmax", "Sparsemax", *(row[0] for row in PARAMETERS)])
def test_defaults_are_the_functions(name: str) -> None:
    module = getattr(px.nn, name)()
    assert torch.equal(module(Z), function(name)(Z))
    assert module.mapping == px.mappings.registry()[registered(name)]()
    assert not module.state_dict()


@pytest.mark.parametrize("name", ["Softmax", "Sparsemax"])
def test_dim_and_mask(name: str) -> None:
    module = getattr(px.nn, name)(dim=1)
    assert torch.equal(module(Z, MASK), function(name)(Z, dim=1, mask=MASK))
    assert repr(module) == f"{name}(dim=1)"


@pytest.mark.parametrize(("name", "argument", "value", "refused"), PARAMETERS)
def test_argument_dim_and_mask(name: str, argument: str, value: float, refused: float) -> None:
    cls = getattr(px.nn, name)
    module = cls(value, dim=1)
    expected = function(name)(Z, **{argument: value}, dim=1, mask=MASK)
    assert torch.equal(module(Z, MASK), expected)
    assert torch.equal(cls(**{argument: value}, dim=1)(Z, mask=MASK), expected)
    assert not torch.equal(module(Z), module(Z, MASK))
    assert repr(module) == f"{name}({argument}={value}, dim=1)"
    with pytest.raises(ValueError, match=f"{argument} must be .* got {refused}"):
        cls(refused)
    with pytest.raises(TypeError, match=r"dim must be an int, got float 0\.5"):
        cls(value, dim=0.5)


@pytest.mark.parametrize(("name", "argument", "value", "_refused"), PARAMETERS)
@pytest.mark.parametrize("shape", [(), (5, 1)])
def test_a_parameter_is_learned_and_saved(
    name: str, argument: str, value: float, _refused: float, shape: tuple[int, ...]
) -> None:
    parameter = nn.Parameter(torch.full(shape, value, dtype=torch.float64))
    module = getattr(px.nn, name)(parameter)
    assert dict(module.named_parameters()) == {argument: parameter}
    weights = torch.randn(Z.shape, generator=torch.Generator().manual_seed(1)).double()

    def total() -> Tensor:
        return (module(Z) * weights).sum()

    (found,) = torch.autograd.grad(total(), parameter)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * 1e-6
            ends.append(total())
            parameter -= sign * 1e-6
    torch.testing.assert_close(found.sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-6)

    other = getattr(px.nn, name)(nn.Parameter(torch.full(shape, value + 0.1).double()))
    assert not torch.equal(other(Z), module(Z))
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert torch.equal(other(Z), module(Z))


def test_a_plain_tensor_moves_but_is_not_state() -> None:
    module = px.nn.Entmax(torch.full((5, 1), 1.25))
    assert not module.state_dict()
    assert not list(module.parameters())
    assert module.double().alpha.dtype == torch.float64
    assert module.to("meta").alpha.device.type == "meta"


@pytest.mark.parametrize("value", [1.3, nn.Parameter(torch.tensor(1.3))], ids=["number", "learned"])
def test_copies(value: Any) -> None:
    module = px.nn.Entmax(value, dim=0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(Z), module(Z))
        assert repr(other) == repr(module)
    assert module.bfloat16()(Z.bfloat16()).dtype == torch.bfloat16


class Model(nn.Module):
    """What a user builds: a linear layer, entmax inside, and one learned alpha."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)
        self.fixed = px.nn.Entmax(1.3)
        self.learned = px.nn.Entmax(nn.Parameter(torch.tensor(1.7)))
        self.budget = px.nn.Budget(3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return self.fixed(h) + self.learned(h) + self.budget(h)


def test_export_and_compile() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Model(), Z[0].float()
    batch = torch.export.Dim("batch", min=2, max=100)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(x[:3]), model(x[:3]))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.export.load(buffer).module()(x), model(x))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted = list(model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), wanted)
    for a, b in zip(torch.autograd.grad(compiled(x).square().sum(), wanted), expected, strict=True):
        torch.testing.assert_close(a, b)
