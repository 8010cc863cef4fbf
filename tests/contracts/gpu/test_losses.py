"""The losses on the Triton kernels, against float64 in plain torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.contracts.gpu.device import on_device

import parsimax as px

TEXTS = ["softmax", "entmax(alpha=1.2)", "entmax(alpha=1.5)", "sparsemax", "entmax(alpha=3.0)"]
TEXTS += ["sparsegen(lam=0.5)", "normmax(alpha=1.5)", "budget(k=1)", "budget(k=2.5)"]
every_mapping = pytest.mark.parametrize("text", TEXTS)
ON_SIMPLEX = [text for text in TEXTS if text != "budget(k=2.5)"]
every_on_simplex = pytest.mark.parametrize("text", ON_SIMPLEX)


def _scores(rows: int = 12, classes: int = 33) -> torch.Tensor:
    return on_device(2 * torch.randn(rows, classes))


def _with_gradient(z, target, mapping, dtype, backend, **options):
    z = z.detach().to(dtype).requires_grad_()
    options = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    target = target.to(dtype) if target.is_floating_point() else target
    loss = px.fenchel_young_loss(z, target, mapping, backend=backend, **options)
    weights = torch.linspace(1, 2, loss.numel()).to(loss).reshape(loss.shape)
    return loss.detach(), torch.autograd.grad(loss, z, weights)[0]


def _compare(z, target, mapping, dtype=torch.float32, **options):
    loss, gradient = _with_gradient(z, target, mapping, dtype, "triton", **options)
    expected, wanted = _with_gradient(z, target, mapping, torch.float64, "torch", **options)
    assert loss.dtype == gradient.dtype == dtype
    eps = max(torch.finfo(dtype).eps, 2e-6)
    torch.testing.assert_close(loss.double(), expected, rtol=eps, atol=eps)
    torch.testing.assert_close(gradient.double(), wanted, rtol=4 * eps, atol=4 * eps)


@every_on_simplex
def test_class_indices(text):
    z, index = _scores(), on_device(torch.arange(12) * 5 % 33)
    _compare(z, index, text)
    _compare(z, index, text, reduction="none")
    index[3] = -100
    weight = on_device(torch.linspace(0.5, 2, 33))
    _compare(z, index, text, weight=weight, label_smoothing=0.2)


@every_mapping
def test_probabilities(text):
    z = _scores()
    target = px.mappings.parse(text)(_scores(), backend="torch")
    _compare(z, target, text, reduction="none")
    _compare(z, target, text, label_smoothing=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_on_simplex
def test_half_precision_is_rounded_once(text, dtype):
    z = _scores().to(dtype)
    _compare(z, on_device(torch.arange(12)), text, dtype, reduction="none")


@every_on_simplex
def test_long_rows_other_layouts_and_shifts(text):
    z = on_device((torch.randn(2, 9001) * 8).round() / 8)
    _compare(z, on_device(torch.tensor([5, 9000])), text, reduction="none")
    z = on_device(torch.randn(3, 20, 4))  # (N, C, d1)
    _compare(z, on_device(torch.arange(12).reshape(3, 4)), text, reduction="none")
    z, index = on_device((torch.randn(6, 20) * 8).round() / 8), on_device(torch.arange(6))
    plain = px.fenchel_young_loss(z, index, text, reduction="none", backend="triton")
    moved = px.fenchel_young_loss(z + 2**18, index, text, reduction="none", backend="triton")
    torch.testing.assert_close(moved, plain, rtol=1e-6, atol=2e-6)


@every_on_simplex
def test_special_rows(text):
    """A class of score -inf, one that is the target, a row of them, NaN, an ignored NaN."""
    z = _scores(6, 9)
    z[1, 3] = -torch.inf
    z[2, 2] = -torch.inf
    z[3] = -torch.inf
    z[4, 1] = torch.nan
    z[5, 1] = torch.nan
    index = on_device(torch.tensor([0, 1, 2, 3, 4, -100]))
    x = z.clone().requires_grad_()
    loss = px.fenchel_young_loss(x, index, text, reduction="none", backend="triton")
    (gradient,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    assert loss[:2].isfinite().all()
    assert loss[2] == torch.inf
    assert loss[4].isnan()
    assert loss[5] == 0
    assert gradient[:4].isfinite().all()
    assert gradient[1, 3] == 0
    assert gradient[4].isnan().any()
    assert (gradient[5] == 0).all()


@every_on_simplex
def test_a_row_does_not_know_its_neighbours(text):
    z, index = _scores(), on_device(torch.arange(12))
    together = px.fenchel_young_loss(z, index, text, reduction="none", backend="triton")
    for i in (0, 7):
        alone = px.fenchel_young_loss(z[i], index[i], text, backend="triton")
        assert alone.equal(together[i])


@pytest.mark.parametrize("text", [text for text in TEXTS if "=" in text])
def test_gradient_in_the_parameter(text):
    """One value a row, next to one another: entmax from 1 over 2 up."""
    mapping = px.mappings.parse(text)
    (field,) = dataclasses.fields(mapping)
    steps = torch.linspace(0, 0.2, 12).unsqueeze(1)
    values = float(mapping.parameter) + (steps if "budget" not in text else 0 * steps)
    if text == "entmax(alpha=1.5)":
        values = torch.linspace(1, 3, 12).unsqueeze(1)
    z = _scores()
    target = px.mappings.parse("budget(k=2.5)")(_scores()) if text == "budget(k=2.5)" else None
    target = on_device(torch.arange(12)) if target is None else target
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        parameter = on_device(values).double().requires_grad_()
        given = dataclasses.replace(mapping, **{field.name: parameter})
        y = target.to(dtype) if target.is_floating_point() else target
        loss = px.fenchel_young_loss(z.to(dtype), y, given, reduction="sum", backend=backend)
        results.append((loss.detach().double(), torch.autograd.grad(loss, parameter)[0]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 3.0])
def test_linear_layer(alpha):
    """Whatever computes it, it takes the backend by name."""
    hidden, weight = torch.randn(7, 8), torch.randn(40, 8)
    target = on_device(torch.arange(7) * 3)
    target[2] = -100
    results = []
    for backend, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        h, w = (on_device(x, dtype).requires_grad_() for x in (hidden, weight))
        loss = px.linear_entmax_loss(h, w, target, alpha=alpha, backend=backend)
        results.append((loss.detach(), *torch.autograd.grad(loss, (h, w))))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
