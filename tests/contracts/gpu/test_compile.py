"""torch.compile in training, with the Triton kernels inside its operators."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.gpu.device import on_device
from tests.contracts.members import ON_GPU

import parsimax as px


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _losses(z, target, alpha):
    """Every mapping, with a tensor alpha, and every kind of loss."""
    outputs = [member.function(z, backend="triton") for member in ON_GPU]
    outputs.append(px.entmax(z, alpha, dim=0, backend="triton"))
    losses = [
        px.entmax_loss(z, target, alpha, backend="triton"),
        px.fenchel_young_loss(z, target, "normmax(alpha=1.5)", backend="triton"),
        px.entmax_loss(z, target, 1.3, label_smoothing=0.1, backend="triton"),
    ]
    total = sum(i * p.square().sum() for i, p in enumerate(outputs)) + sum(losses)
    return total, [*outputs, *losses]


def _train(function, z, target):
    z = z.clone().requires_grad_()
    alpha = on_device(torch.tensor(1.3)).requires_grad_()
    total, outputs = function(z, target, alpha)
    total.backward()
    return [p.detach() for p in outputs], [z.grad, alpha.grad]


def test_training_compiled_without_a_graph_break():
    compiled = torch.compile(_losses, fullgraph=True, backend="aot_eager")
    for rows, d in ((4, 9), (6, 40)):
        z, target = on_device(torch.randn(rows, d)), on_device(torch.arange(rows))
        expected, expected_gradients = _train(_losses, z, target)
        found, gradients = _train(compiled, z, target)
        for p, q in zip(found, expected, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
        for p, q in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_parameter", [False, True])
def test_operators_keep_their_promises(with_parameter):
    """Schema, fake tensors, autograd registration and aot dispatch of each custom operator."""
    z = on_device(torch.randn(3, 5))
    alpha = on_device(torch.full((3, 1), 1.3)) if with_parameter else None
    operators = torch.ops.parsimax
    arguments = (alpha, 1.3, "entmax", "triton")
    p = operators.rowmap.default(z, *arguments)
    torch.library.opcheck(operators.rowmap.default, (z.clone().requires_grad_(), *arguments))
    strided = z.T.clone().requires_grad_().T
    torch.library.opcheck(operators.rowmap.default, (strided, *arguments))
    torch.library.opcheck(
        operators.rowmap_backward.default, (p, torch.randn_like(z), *arguments, with_parameter)
    )
    index = on_device(torch.arange(3))
    torch.library.opcheck(
        operators.conjugate.default,
        (z.clone().requires_grad_(), alpha, index, 1.3, "entmax", "triton"),
    )
