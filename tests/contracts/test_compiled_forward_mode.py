"""Forward mode through torch.compile: operators know none, and have to make way for it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

import parsimax as px

STARTS = torch.tensor([0, 3, 3, 7])
TARGET = torch.arange(7) % 4


def rand(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


WEIGHT = rand(9, 5, 4)
FUNCTIONS = {
    "entmax": px.entmax,
    "alpha": lambda x: px.entmax(x, alpha=1 + x[..., :1].sigmoid()),
    "fusedmax": px.fusedmax,
    "entmax_loss": lambda x: px.entmax_loss(x[:, 0], TARGET),
    "linear_entmax_loss": lambda x: px.linear_entmax_loss(x[:, 0], WEIGHT, TARGET),
    "fenchel_young_loss": lambda x: px.fenchel_young_loss(x[:, 0], TARGET, "sparsegen"),
    "attention": lambda x: px.attention(x, x, x, is_causal=True),
    "packed": lambda x: px.attention.packed(x, x, x, STARTS, window=(1, 2)),
    "packed, one alpha a query": lambda x: px.attention.packed(
        x, x, x, STARTS, is_causal=True, alpha=1 + x[..., 0].sigmoid(), causal_align="bottom-right"
    ),
}


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def tangent(function, x, direction):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, direction))).tangent


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_in_a_direction(name):
    function, x, direction = FUNCTIONS[name], rand(0, 7, 2, 4), rand(1, 7, 2, 4)
    expected = tangent(function, x, direction)
    assert expected.any()
    mine = compiled(function)
    torch.testing.assert_close(mine(x), function(x))  # a graph without tangents is not taken later
    torch.testing.assert_close(tangent(mine, x, direction), expected)

    def within(x, direction):
        return jvp(function, (x,), (direction,))[1]

    torch.testing.assert_close(compiled(within)(x, direction), expected)


def test_packed_sequences_under_transforms_of_torch_func():
    x = rand(0, 3, 7, 2, 4)
    packed = FUNCTIONS["packed"]

    def loss(x):
        return packed(x).square().sum()

    each = torch.stack([grad(loss)(item) for item in x])
    torch.testing.assert_close(compiled(grad(loss))(x[0]), each[0])
    torch.testing.assert_close(compiled(vmap(grad(loss)))(x), each)


@pytest.mark.parametrize("places", [[1, 7], [0, 6], [0, 5, 3, 7]])
def test_packed_sequences_that_cannot_be_are_nan_where_nobody_may_look(places):
    x = rand(0, 7, 2, 4)

    def step(x, starts):
        return jvp(lambda x: px.attention.packed(x, x, x, starts), (x,), (x,))

    assert all(part.isnan().all() for part in compiled(step)(x, torch.tensor(places)))
