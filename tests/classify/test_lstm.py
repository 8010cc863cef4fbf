"""Gradients of inputs alone are those of torch's own LSTM."""

from __future__ import annotations

import pytest
import torch

from parsimax.classify.lstm import LSTM


def frozen(inputs: int = 5, hidden: int = 4, dtype: torch.dtype = torch.float64) -> LSTM:
    torch.manual_seed(0)
    return LSTM(inputs, hidden).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("asked", ["all", "first", "middle", "none"])
def test_states_and_gradients_are_torchs(steps: int, asked: str) -> None:
    lstm = frozen()
    x = torch.randn(20, steps, 5, dtype=torch.float64, requires_grad=True)
    states = lstm.states(x)
    assert "InputGradients" in type(states.grad_fn).__name__
    theirs = torch.nn.LSTM.forward(lstm, x)[0]
    torch.testing.assert_close(states, theirs, rtol=0, atol=1e-12)
    weight = torch.randn_like(theirs)
    if asked == "first":
        weight[:, 1:] = 0
    elif asked == "middle":  # another state in each row
        keep = torch.arange(20) % steps
        weight *= torch.nn.functional.one_hot(keep, steps)[..., None]
    elif asked == "none":
        weight *= 0
    for _ in range(2):  # many backwards of one forward
        (ours,) = torch.autograd.grad(states, x, weight, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs, x, weight, retain_graph=True)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_training_and_small_batches_take_torchs_own() -> None:
    lstm = frozen()
    few = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert "InputGradients" not in type(lstm.states(few).grad_fn).__name__
    lstm.requires_grad_(True)
    many = torch.randn(40, 4, 5, dtype=torch.float64, requires_grad=True)
    states = lstm.states(many)
    states.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in lstm.parameters())


def test_second_derivatives_are_refused_not_wrong() -> None:
    x = torch.randn(20, 3, 5, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(frozen().states(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
