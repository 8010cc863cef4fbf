"""torch.compile, torch.export, torch.func, gradcheck: attention inside the rest of torch."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import parsimax as px

BACKEND = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


def rand(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def inputs(lq: int = 4, lk: int = 5) -> tuple[Tensor, ...]:
    shapes = [(2, 4, lq, 3), (2, 2, lk, 3), (2, 2, lk, 2)]
    return tuple(rand(i, *shape) for i, shape in enumerate(shapes))


def rich(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
    """Most arguments at once."""
    return px.attention(
        q,
        k,
        v,
        mask,
        is_causal=True,
        enable_gqa=True,
        alpha=alpha,
        causal_align="bottom-right",
        window=(2, -1),
        key_lengths=lengths,
    )


def rest(lq: int = 4, lk: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    alpha = torch.tensor([1.0, 1.3, 2.0, 2.5], dtype=torch.float64)
    return alpha, torch.tensor([3, 5]), rand(7, lq, lk)


def train_step(function: Any, *args: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in args]
    output = function(*leaves)
    wanted = [x for x in leaves if x.requires_grad]
    return output.detach(), *torch.autograd.grad((output * rand(8, *output.shape)).sum(), wanted)


def same(compiled: Any, eager: Any, *args: Tensor) -> None:
    for a, b in zip(train_step(compiled, *args), train_step(eager, *args), strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_training() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return px.attention(q, k, v, is_causal=True, enable_gqa=True, alpha=alpha)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=BACKEND)
    same(compiled, function, *inputs(), rest()[0])


def test_one_graph_for_every_length_with_every_argument() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(rich, fullgraph=True, backend="aot_eager", dynamic=True)
        for lq, lk in ((7, 9), (10, 11)):
            same(compiled, rich, *inputs(lq, lk), *rest(lq, lk))


def test_dynamic_sizes_beside_constant_ones() -> None:
    """A Parameter has sizes that are numbers, where those of the inputs are symbols."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alpha = px.nn.AdaptiveAlpha(4, init=1.4)
            self.bias = nn.Parameter(rand(9, 4, 1, 1))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen = torch.ones(k.shape[-2], dtype=torch.bool)
            whole = px.attention(q, k, v, self.bias, enable_gqa=True, alpha=self.alpha())
            last = px.attention.decode(
                q[:, :, -1:], k, v, attn_mask=seen, enable_gqa=True, alpha=self.alpha()
            )
            return px.entmax(whole + last, self.alpha().view(-1, 1, 1))

    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for lq, lk in ((7, 9), (10, 11)):
        torch.testing.assert_close(compiled(*inputs(lq, lk)), model(*inputs(lq, lk)))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("early", [False, True])
def test_make_fx_records_operators(mode: str, early: bool) -> None:
    """And not what kernels find in memory that it does not see them write."""

    def step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> tuple[Tensor, ...]:
        out = px.attention(q, k, v, enable_gqa=True, alpha=alpha, is_causal=True)
        if early:  # before autograd
            return (out,)
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v, alpha))

    def leaves(seed: int) -> list[Tensor]:
        tensors = [*inputs(), rest()[0]]
        return [(x + 0.1 * seed).detach().requires_grad_() for x in tensors]

    recorded = make_fx(step, tracing_mode=mode, pre_dispatch=early)
    graph = recorded(*leaves(0))
    for mine, theirs in zip(graph(*leaves(1)), step(*leaves(1)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_tensors_that_wrap_others_are_refused() -> None:
    """Kernels would read memory that they do not have."""
    q, k, v = (TwoTensor(x, x) for x in inputs())
    for refused in (lambda: px.attention(q, k, v, enable_gqa=True), lambda: px.sparsemax(q)):
        with pytest.raises(TypeError, match="plain tensors, got a TwoTensor"):
            refused()
    torch.testing.assert_close(px.sparsemax(q, backend="torch").a, px.sparsemax(q.a))


@pytest.mark.parametrize("mapping", ["sparsegen(lam=0.3)", px.mappings.Entmax(1.2), None])
def test_compiled_with_any_choice_and_autocast(mapping: Any) -> None:
    torch._dynamo.reset()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return px.attention(q, k, v, enable_gqa=True, mapping=mapping)

    q, k, v = (x.float() for x in inputs())
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = compiled(q, k, v)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, function(q, k, v))


def test_impossible_lengths_give_nan_where_they_cannot_be_read() -> None:
    torch._dynamo.reset()

    def function(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        return px.attention(q, k, v, enable_gqa=True, key_lengths=lengths)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for wrong in (-1, 6):
        output = compiled(*inputs(), torch.tensor([wrong, 5]))
        assert output[0].isnan().all()
        torch.testing.assert_close(output[1], function(*inputs(), torch.tensor([5, 5]))[1])


def test_export() -> None:
    class Model(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return px.attention(q, k, v, mask, enable_gqa=True, alpha=1.3)

    keys = torch.export.Dim("keys", min=2, max=64)
    spec = {"q": None, "k": {2: keys}, "v": {2: keys}, "mask": {1: keys}}
    args = (*inputs(), rand(7, 4, 5))
    program = torch.export.export(Model(), args, dynamic_shapes=spec).module()
    more = (*inputs(lk=9), rand(7, 4, 9))
    torch.testing.assert_close(program(*args), Model()(*args))
    torch.testing.assert_close(program(*more), Model()(*more))


def test_vmap_over_everything() -> None:
    q, k, v = inputs()
    alpha = torch.tensor([[1.0, 1.3, 2.0, 2.5], [1.5, 1.5, 1.1, 1.7]], dtype=torch.float64)
    lengths = torch.tensor([3, 5])

    def one(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, length: Tensor) -> Tensor:
        return px.attention(
            q, k, v, is_causal=True, enable_gqa=True, alpha=alpha, key_lengths=length
        )

    expected = torch.stack([one(*args) for args in zip(q, k, v, alpha, lengths, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(q, k, v, alpha, lengths), expected)


def test_forward_and_reverse_derivatives_agree() -> None:
    q, k, v = (x[0] for x in inputs())
    alpha = torch.tensor([1.0, 1.3, 1.6, 2.5], dtype=torch.float64)

    def function(q: Tensor, k: Tensor, alpha: Tensor) -> Tensor:
        return px.attention(q, k, v, enable_gqa=True, is_causal=True, alpha=alpha)

    wanted = (0, 1, 2)
    forward = torch.func.jacfwd(function, wanted)(q, k, alpha)
    backward = torch.func.jacrev(function, wanted)(q, k, alpha)
    for a, b in zip(forward, backward, strict=True):
        assert a.any()
        torch.testing.assert_close(a, b)


def test_gradcheck_with_sparse_weights_and_a_blind_query() -> None:
    q, k, v = (x[:1, :2].clone().requires_grad_() for x in inputs())
    alpha = torch.tensor([1.3, 2.2], dtype=torch.float64, requires_grad=True)
    mask = rand(7, 4, 5)
    mask[1] = -torch.inf
    mask[2, :3] = -torch.inf

    def function(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return px.attention(4 * q, k, v, mask, alpha=alpha)

    weights = px.attention(4 * q, k, torch.eye(5, dtype=torch.float64), mask, alpha=alpha)
    assert (weights == 0).sum() > 2 * (5 + 3)  # more zeros than the mask makes
    assert torch.autograd.gradcheck(function, (q, k, v, alpha))
    assert torch.autograd.gradgradcheck(function, (q, k, v, alpha))
