"""The losses as Modules: they store arguments, and everything else is the function's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import parsimax as px

GENERATOR = torch.Generator().manual_seed(0)
Z = torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
TARGET = torch.tensor([0, 1, 2, 3, 7, 0])
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
SETTINGS = {"ignore_index": 7, "reduction": "sum", "label_smoothing": 0.1}


def all_losses(**common: Any) -> list[tuple[Any, Any]]:
    """(module, the function with the same settings)."""
    return [
        (
            px.nn.EntmaxLoss(1.3, **common),
            lambda z, y: px.entmax_loss(z, y, alpha=1.3, **common),
        ),
        (px.nn.SparsemaxLoss(**common), lambda z, y: px.sparsemax_loss(z, y, **common)),
        (
            px.nn.FenchelYoungLoss("sparsegen(lam=0.2)", **common),
            lambda z, y: px.fenchel_young_loss(z, y, px.mappings.Sparsegen(0.2), **common),
        ),
    ]


@pytest.mark.parametrize("which", range(3))
def test_is_the_function(which: int) -> None:
    module, function = all_losses()[which]
    target = TARGET.clamp(max=3)
    torch.testing.assert_close(module(Z, target), function(Z, target))
    module, function = all_losses(weight=WEIGHT, **SETTINGS)[which]
    torch.testing.assert_close(module(Z, TARGET), function(Z, TARGET))
    assert "ignore_index=7, reduction='sum', label_smoothing=0.1" in repr(module)
    assert ("alpha=1.3, ", "(ignore", "mapping=sparsegen(lam=0.2), ")[which] in repr(module)


def test_at_one_it_is_cross_entropy() -> None:
    theirs = nn.CrossEntropyLoss(WEIGHT, **SETTINGS)
    ours = px.nn.EntmaxLoss(1.0, WEIGHT, **SETTINGS)
    torch.testing.assert_close(ours(Z, TARGET), theirs(Z, TARGET))


@pytest.mark.parametrize("which", range(3))
def test_takes_probabilities(which: int) -> None:
    module, function = all_losses(weight=WEIGHT, reduction="none", label_smoothing=0.1)[which]
    target = torch.softmax(Z.flip(0), 1)
    torch.testing.assert_close(module(Z, target), function(Z, target))


@pytest.mark.parametrize("which", range(3))
def test_weight_is_a_buffer_as_in_torch(which: int) -> None:
    theirs = nn.CrossEntropyLoss(WEIGHT)
    module, _ = all_losses(weight=WEIGHT)[which]
    plain, _ = all_losses()[which]
    assert module.state_dict().keys() == theirs.state_dict().keys() == {"weight"}
    assert plain.state_dict().keys() == nn.CrossEntropyLoss().state_dict().keys() == set()
    other, _ = all_losses(weight=torch.ones_like(WEIGHT))[which]
    other.load_state_dict(theirs.state_dict(), strict=True)
    target = TARGET.clamp(max=3)
    for same in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(same(Z, target), module(Z, target))
    assert module.float().weight.dtype == torch.float32


def test_learned_parameters() -> None:
    target = TARGET.clamp(max=3)
    alpha = nn.Parameter(torch.tensor(1.4, dtype=torch.float64))
    lam = nn.Parameter(torch.tensor(0.2, dtype=torch.float64))
    for module, name, parameter in (
        (px.nn.EntmaxLoss(alpha), "alpha", alpha),
        (px.nn.FenchelYoungLoss(px.nn.Sparsegen(lam)), "mapping.lam", lam),
    ):
        assert dict(module.named_parameters()) == {name: parameter}
        (found,) = torch.autograd.grad(module(Z, target), parameter)
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-6
                ends.append(module(Z, target))
                parameter -= sign * 1e-6
        torch.testing.assert_close(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-8)


def test_compiled_training() -> None:
    torch._dynamo.reset()
    losses = nn.ModuleList(
        [
            px.nn.EntmaxLoss(nn.Parameter(torch.tensor(1.4).double()), WEIGHT, **SETTINGS),
            px.nn.FenchelYoungLoss(px.nn.Sparsegen(nn.Parameter(torch.tensor(0.2).double()))),
            px.nn.SparsemaxLoss(),
        ]
    )

    def total(z: Tensor) -> Tensor:
        return sum(loss(z, TARGET if i == 0 else TARGET % 4) for i, loss in enumerate(losses))

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    wanted = [Z.clone().requires_grad_(), *losses.parameters()]
    expected = torch.autograd.grad(total(wanted[0]), wanted)
    for a, b in zip(torch.autograd.grad(compiled(wanted[0]), wanted), expected, strict=True):
        torch.testing.assert_close(a, b)


def linear(**arguments: Any) -> tuple[Any, tuple[Tensor, ...]]:
    hidden = torch.randn(6, 3, generator=GENERATOR, dtype=torch.float64)
    matrix = torch.randn(4, 3, generator=GENERATOR, dtype=torch.float64)
    bias = torch.randn(4, generator=GENERATOR, dtype=torch.float64)
    return px.nn.LinearEntmaxLoss(**arguments), (hidden, matrix, TARGET, bias)


def test_linear_loss_is_the_loss_of_the_product() -> None:
    module, (hidden, matrix, target, bias) = linear(alpha=1.3, class_weight=WEIGHT, **SETTINGS)
    expected = px.entmax_loss(
        hidden @ matrix.T + bias, target, alpha=1.3, weight=WEIGHT, **SETTINGS
    )
    torch.testing.assert_close(module(hidden, matrix, target, bias), expected)
    module, _ = linear(ignore_index=7)
    expected = px.entmax_loss(hidden @ matrix.T, target, ignore_index=7)
    torch.testing.assert_close(module(hidden, matrix, target), expected)
    assert not module.state_dict()


def test_bad_construction() -> None:
    for cls in (px.nn.EntmaxLoss, px.nn.LinearEntmaxLoss):
        with pytest.raises(ValueError, match="alpha must be at least 1"):
            cls(0.5)
    with pytest.raises(TypeError, match=r"mapping Modules of px\.nn, got Softmax"):
        px.nn.FenchelYoungLoss(nn.Softmax(-1))
    with pytest.raises(ValueError, match=r"parsimax\.nn\.Entmax, which registers it"):
        px.nn.FenchelYoungLoss(px.mappings.Entmax(nn.Parameter(torch.tensor(1.5))))
    with pytest.raises(ValueError, match="unknown mapping"):
        px.nn.FenchelYoungLoss("softmux")
