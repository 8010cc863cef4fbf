"""Gradients of a prediction in its inputs or hidden states: one backward for a whole batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .checked import Checked
from .methods import GradientNorm, GradientTimesInput, IntegratedGradients

GradientMethod = GradientNorm | GradientTimesInput | IntegratedGradients


def prediction_gradients(
    model: Checked, tokens: Tensor, mask: Tensor, method: GradientMethod, source: str
) -> Tensor:
    """Importance (B, L) of each input or hidden state for the probability of the predicted class.

    Texts of a batch do not depend on each other, so the gradient of the sum over the batch holds
    the gradient of each.
    """
    with torch.no_grad():
        x = model.embed(tokens)
        h = model.encode(x, mask)
        weights = model.attend(h, mask)
        predicted = model.decode(h, weights, mask).argmax(-1)
    held = weights if method.detach_attention else None

    def from_hidden(h: Tensor, mask: Tensor, held: Tensor | None, predicted: Tensor) -> Tensor:
        a = model.attend(h, mask) if held is None else held
        return model.decode(h, a, mask).gather(-1, predicted[:, None]).sum()

    def from_inputs(x: Tensor, mask: Tensor, held: Tensor | None, predicted: Tensor) -> Tensor:
        return from_hidden(model.encode(x, mask), mask, held, predicted)

    point, function = (x, from_inputs) if source == "inputs" else (h, from_hidden)
    if isinstance(method, IntegratedGradients):
        nodes, path_weights = path(method.steps)

        def along(node: float) -> Tensor:
            return gradient(lambda z: function(z, mask, held, predicted), node * point)

        total = torch.zeros_like(point)
        for node, weight in zip(nodes, path_weights, strict=True):
            total += weight * along(node)
        return attribute(total, point, method)
    return attribute(gradient(lambda z: function(z, mask, held, predicted), point), point, method)


def gradient(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """The gradient of a scalar at a point; zero where the scalar does not depend on it."""
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        value = function(leaf)
        if not value.requires_grad:
            return torch.zeros_like(point)
        (grad,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return torch.zeros_like(point) if grad is None else grad


def attribute(grad: Tensor, point: Tensor, method: GradientMethod) -> Tensor:
    """From gradients in vectors to one number a token."""
    if isinstance(method, GradientNorm):
        norm: Tensor = torch.linalg.vector_norm(grad, dim=-1)
        return norm
    return (grad * point).sum(-1).abs()


def path(steps: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of the Gauss–Legendre rule on [0, 1], exact to degree 2·steps − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
