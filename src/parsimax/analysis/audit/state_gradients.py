"""Gradients of the norm of every hidden state in every input, without a loop over tokens.

A text of n tokens has n hidden states, and each needs a backward of its own. Backwards of small
models are bound by the overhead of each operation, so they are taken many at a time: one forward
of a batch of texts, in which backward number s asks for the s-th state of every text at once. If
there are few texts, each is copied, and the copies share its states. The cost above that of the
backwards themselves is one forward a row.

A model that knows the way back from single states (:class:`Pull`) is asked for it instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .checked import Checked
from .gradients import GradientMethod, attribute, path
from .methods import IntegratedGradients

# Enough rows for a backward to be bound by arithmetic; fewer waste time, more waste memory.
ROWS_ON_CPU = 32
ROWS_ON_GPU = 1024
# States of short texts that go back together, and of a long one.
STATES_TOGETHER = 128


def copies_for(texts: int, length: int, device: torch.device) -> int:
    """How many copies of each text go into one forward."""
    rows = ROWS_ON_CPU if device.type == "cpu" else ROWS_ON_GPU
    return max(1, min(length, math.ceil(rows / texts)))


def texts_together(length: int) -> int:
    """How many texts of a length go through a model together, if it knows the way back."""
    return math.ceil(STATES_TOGETHER / length)


def pulled_gradients(
    model: Checked, tokens: Tensor, at: Tensor, method: GradientMethod, most: int
) -> Tensor:
    """Influence (B, P, n) of inputs on the norms of states ``at`` (P,) of texts of one length.

    Args:
        most: States of all texts that memory has room for at once.
    """
    nodes, weights = _path(method)
    portion = max(1, min(most, STATES_TOGETHER) // len(tokens))
    with torch.no_grad():
        x = model.embed(tokens)
        inputs = x.unsqueeze(1)
        total = x.new_zeros(len(x), len(at), x.shape[1])
        for node, weight in zip(nodes, weights, strict=True):
            way = model.pull(node * x)
            units = torch.nn.functional.normalize(way.states, dim=-1, eps=0.0).nan_to_num(0.0)
            for first in range(0, len(at), portion):
                asked = at[first : first + portion]
                grads = model.pull_back(way, asked, units[:, asked], x)
                value = _value(grads, inputs, method)
                total[:, first : first + portion] += weight * value
    return total.abs()


def state_gradients(
    model: Checked,
    tokens: Tensor,
    mask: Tensor,
    method: GradientMethod,
    states: Sequence[Tensor] | None = None,
    copies: int | None = None,
) -> Tensor:
    """Influence (B, P, L) of input i on ‖h_p‖₂ (Meister et al. 2021, Eq. 5).

    Args:
        states: For each text the states p to look at, in order, as a tensor; None for all.
        copies: Of each text in one forward; chosen from the batch if it is not given.
    """
    with torch.no_grad():
        x = model.embed(tokens)
    wanted = _table(mask, states)  # (B, P), and -1 where there is none
    texts, count = wanted.shape
    copies = copies_for(texts, count, model.device) if copies is None else min(copies, count)
    rounds = math.ceil(count / copies)
    # State s of a text is looked at by its copy s % copies in round s // copies: the states of a
    # round are neighbours, and a recurrent encoder need not go back from its end to reach them.
    turns = torch.nn.functional.pad(wanted, (0, copies * rounds - count), value=-1)
    turns = turns.view(texts, rounds, copies).transpose(1, 2).reshape(texts * copies, rounds)
    row_mask = mask.repeat_interleave(copies, 0)
    rows = x.repeat_interleave(copies, 0)
    nodes, weights = _path(method)
    total: Tensor | None = None
    for node, weight in zip(nodes, weights, strict=True):
        part = weight * _every_round(model, node * rows, row_mask, turns, method, rows)
        total = part if total is None else total + part
    assert total is not None
    total = total.abs().view(texts, copies, rounds, -1).transpose(1, 2)
    influence = total.reshape(texts, rounds * copies, -1)[:, :count]
    return influence.masked_fill((wanted < 0)[:, :, None], 0.0)


def _every_round(
    model: Checked,
    at: Tensor,
    mask: Tensor,
    turns: Tensor,
    method: GradientMethod,
    inputs: Tensor,
) -> Tensor:
    """One forward and one backward a round; (rows, rounds, L), signed for a path's nodes."""
    found = []
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        norms = torch.linalg.vector_norm(model.encode(leaf, mask), dim=-1)
        if not norms.requires_grad:
            raise ValueError("encode must be differentiable in its first argument")
        last = turns.shape[1] - 1
        for turn in range(turns.shape[1]):
            state = turns[:, turn]
            one = torch.nn.functional.one_hot(state.clamp(min=0), mask.shape[1]).to(norms.dtype)
            one = one * (state >= 0)[:, None]
            (grad,) = torch.autograd.grad(norms, leaf, one, retain_graph=turn < last)
            found.append(_value(grad, inputs, method))
    return torch.stack(found, 1)


def _path(method: GradientMethod) -> tuple[list[float], list[float]]:
    """Where gradients are taken between no inputs and all of them, and with which weights."""
    return path(method.steps) if isinstance(method, IntegratedGradients) else ([1.0], [1.0])


def _value(grad: Tensor, inputs: Tensor, method: GradientMethod) -> Tensor:
    """One number for each gradient in a vector; its sign is kept where a path adds them up."""
    if isinstance(method, IntegratedGradients):
        return (grad * inputs).sum(-1)
    return attribute(grad, inputs, method)


def _table(mask: Tensor, states: Sequence[Tensor] | None) -> Tensor:
    """Which state is wanted, (B, P), filled up with -1."""
    if states is None:
        every = torch.arange(mask.shape[1], device=mask.device)
        return torch.where(mask, every, -1)
    padded = torch.nn.utils.rnn.pad_sequence(list(states), batch_first=True, padding_value=-1)
    return padded.to(mask.device)
