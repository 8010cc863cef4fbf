"""Attention tile by tile where operations are recorded: one operator, and no matrix of weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attention.test_tiled import HQ, qkv, rand
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import parsimax as px
from parsimax.attention import tiled

LENGTHS = torch.tensor([9, 4])
MASKS: dict[str, Any] = {
    "none": {},
    "bool": {"attn_mask": rand(1, 2, 1, 7, 9) > -0.5},
    "band": {"is_causal": True, "window": (3, 1), "causal_align": "bottom-right"},
    "lengths": {"key_lengths": LENGTHS, "is_causal": True},
}


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setitem(tiled._LARGE, "cpu", -1)
    monkeypatch.setitem(tiled._ROOM, "cpu", 30 // min(8, torch.get_num_threads()))


def compiled(function: Callable[..., Tensor], **how: Any) -> Callable[..., Tensor]:
    made: Callable[..., Tensor] = torch.compile(
        function, fullgraph=True, backend="aot_eager", **how
    )
    return made


def trained(function: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad((out * rand(8, *out.shape)).sum(), leaves)]


def same(one: Callable[..., Tensor], other: Callable[..., Tensor], *tensors: Tensor) -> None:
    for mine, theirs in zip(trained(one, tensors), trained(other, tensors), strict=True):
        torch.testing.assert_close(mine, theirs)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nothing but the default."""
    return px.attention(q, k, v)


def operators(function: Callable[..., Tensor], *tensors: Tensor) -> set[str]:
    """Of ours, in what is recorded."""
    graph = make_fx(function)(*tensors)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return {name for name in names if "parsimax" in name}


@pytest.mark.parametrize("masks", sorted(MASKS))
@pytest.mark.parametrize("alpha", ["number", "head", "query"])
def test_training(masks: str, alpha: str) -> None:
    own = {"head": (1 + rand(3, HQ).sigmoid(),), "query": (1 + rand(3, 2, 1, 7, 1).sigmoid(),)}

    def function(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        more: dict[str, Any] = {"alpha": rest[0]} if rest else {}
        return px.attention(q, k, v, enable_gqa=True, scale=0.7, **MASKS[masks], **more)

    same(compiled(function), function, *qkv(0, kv_heads=2), *own.get(alpha, ()))


def test_numbers_that_are_added_and_are_learned() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return px.attention(q, k, v, bias, is_causal=True, key_lengths=LENGTHS)

    for shape in ((HQ, 7, 9), (2, 1, 1, 9)):
        same(compiled(function), function, *qkv(0), rand(5, *shape))


@pytest.mark.parametrize("mapping", ["softmax", "sparsegen(lam=0.3)", "budget(k=1)", "fusedmax"])
def test_lengths_that_are_symbols_need_one_graph(mapping: str) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return px.attention(
            q, k, v, mapping=mapping, is_causal=True, causal_align="bottom-right", window=5
        )

    graph = compiled(function, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for queries, keys in ((7, 9), (11, 11), (3, 30)):
            same(graph, function, *qkv(queries, lq=queries, lk=keys))


def test_learned_parameters_of_a_mapping_and_heads_that_broadcast() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
        return px.attention(q, k, v, mapping=px.mappings.Sparsegen(lam))

    q, k, v = qkv(0, kv_heads=1)
    same(compiled(function), function, q, k, v, -rand(3, HQ, 1, 1).exp())
    same(compiled(function), function, q[0, 0], k[0, 0], v, -rand(3, 1).exp())


def test_half_precision_and_autocast() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return px.attention(q, k, v)

    tensors = [x.float() for x in qkv(0)]
    found = compiled(function)(*tensors)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, function(*tensors))


def test_what_no_query_sees_and_what_is_no_number_stays_where_it_is() -> None:
    added = torch.zeros(2, HQ, 7, 9, dtype=torch.float64)
    added[0, 0, 2, 2] = torch.nan

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return px.attention(q, k, v, added, is_causal=True, window=(0, 0))

    out, gq, gk, gv = trained(compiled(function), qkv(0))
    assert out[0, 0, 2].isnan().all()
    gone = [x[0, 0].isnan().any(-1).nonzero().flatten().tolist() for x in (out, gq, gk)]
    assert gone == [[2]] * 3
    assert not any(x[0, 1:].isnan().any() or x[1:].isnan().any() for x in (out, gq, gk, gv))
    hidden = compiled(lambda q, k, v: px.attention(q, k, v, key_lengths=torch.tensor([0, 9])))
    out, *gradients = trained(hidden, qkv(0))
    assert all((x[0] == 0).all() for x in (out, *gradients))


def test_an_alpha_that_cannot_be_gives_nan_in_its_head() -> None:
    """As in all that is compiled; eagerly it is an error."""
    q, k, v = qkv(0)
    alpha = torch.tensor([1.5, 0.5, 2.0, 1.0])
    found = compiled(lambda q, k, v, a: px.attention(q, k, v, alpha=a))(q, k, v, alpha)
    assert found[:, 1].isnan().all()
    assert not found[:, [0, 2, 3]].isnan().any()
    with pytest.raises(ValueError, match="every value of alpha must be at least 1"):
        px.attention(q, k, v, alpha=alpha)


def test_dropout_is_that_of_the_backward() -> None:
    """Of values that are 1, the sum of weights that are kept; the gradient of values adds up so."""

    def step(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        ones = torch.ones(1, 2, 30, 1, dtype=torch.float64, requires_grad=True)
        out = graph(rand(0, 1, 2, 20, 3), rand(1, 1, 2, 30, 3), ones)
        (g,) = torch.autograd.grad(out.sum(), ones)
        torch.testing.assert_close(g.sum(), out.sum())
        return out.detach(), g

    graph = compiled(
        lambda q, k, v: px.attention(q, k, v, dropout_p=0.5, mapping="softmax", is_causal=True)
    )
    (first, g), (again, _), (other, _) = step(0), step(0), step(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (g == 0).any()


def test_who_takes_the_operator() -> None:
    q, k, v = qkv(0)
    operator = {"parsimax.tiled_attention.default"}
    assert operators(attend, q, k, v) == operator
    bounds = px.mappings.ConstrainedSparsemax(0.5)
    assert "tiled" not in str(operators(lambda *x: px.attention(*x, mapping=bounds), q, k, v))
    inside = torch.vmap(attend)
    assert "tiled" not in str(operators(inside, q, k, v))
    same(compiled(inside), attend, q, k, v)
    tiled._LARGE["cpu"] = 1 << 20  # set back by the fixture
    assert "tiled" not in str(operators(attend, q, k, v))


def test_what_is_recorded_may_be_differentiated_twice() -> None:
    q, k, v = qkv(0, lq=3, lk=4)
    alpha = 1 + rand(3, HQ).sigmoid()

    def function(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return px.attention(q, k, v, is_causal=True, alpha=alpha)

    graph = make_fx(function)(q, k, v, alpha)
    leaves = [x[:1].requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradgradcheck(lambda *x: graph(*x, alpha), leaves)


class Model(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return px.attention(q, k, v, is_causal=True)


def test_export() -> None:
    """With sizes that are known to be large; other programs do not ask how large they are."""
    program = torch.export.export(Model(), qkv(0))
    assert "tiled_attention" in program.graph_module.code
    torch.testing.assert_close(program.module()(*qkv(1)), Model()(*qkv(1)))
    tiled._LARGE["cpu"] = 200  # set back by the fixture
    some = torch.export.Dim("some", min=3, max=64)
    spec = tuple({2: some} for _ in range(3))
    program = torch.export.export(Model(), qkv(0, lq=5, lk=5), dynamic_shapes=spec)
    assert "tiled_attention" not in program.graph_module.code
    for size in (3, 40):
        tensors = qkv(1, lq=size, lk=size)
        torch.testing.assert_close(program.module()(*tensors), Model()(*tensors))


LINEAR = """
import resource, torch
import parsimax as px
torch.set_num_threads(1)

@torch.compile(fullgraph=True, backend="aot_eager")
def step(q, k, v, alpha):
    return px.attention(q, k, v, window=(1000, 0), alpha=alpha)

alpha = torch.tensor([1.3], requires_grad=True)
inputs = [torch.randn(1, 1, 32768, 16, requires_grad=True) for _ in range(3)]
step(*(x[:, :, :2100] for x in inputs), alpha).sum().backward()  # loaded and compiled
torch._dynamo.mark_dynamic(inputs[0], 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(*inputs, alpha).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_is_linear_in_the_length() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LINEAR],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert int(done.stdout) < 4 * 32768**2 / 20  # of one matrix of weights
