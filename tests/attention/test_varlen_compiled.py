"""px.attention.packed where operations are recorded: one graph for sequences of any lengths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.attention.test_varlen import EV, HQ, inputs, rand, starts
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import parsimax as px

Packed = Callable[..., Tensor]
FIRST = starts((3, 0, 5, 1)), starts((4, 2, 2, 6))
SECOND = starts((1, 4, 0, 4)), starts((2, 7, 0, 5))
ALPHAS = {
    "number": (),
    "head": (1 + rand(3, HQ).sigmoid(),),
    "query": (1 + rand(3, 9, HQ).sigmoid(),),
}
BAND = {"is_causal": True, "causal_align": "bottom-right", "window": (2, -1)}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(function: Packed, **how: Any) -> Packed:
    made: Packed = torch.compile(function, fullgraph=True, backend="aot_eager", **how)
    return made


def trained(function: Packed, tensors: tuple[Tensor, ...], *places: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves, *places)
    return [out.detach(), *torch.autograd.grad((out * rand(8, *out.shape)).sum(), leaves)]


def same(one: Packed, other: Packed, tensors: tuple[Tensor, ...], *places: Tensor) -> None:
    pairs = zip(trained(one, tensors, *places), trained(other, tensors, *places), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("alpha", sorted(ALPHAS))
@pytest.mark.parametrize("band", [{}, BAND])
def test_training(alpha: str, band: dict[str, Any]) -> None:
    """One graph whatever the lengths are."""

    def function(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        more: dict[str, Any] = {"alpha": rest[0]} if len(rest) > 2 else {}
        return px.attention.packed(q, k, v, *rest[-2:], enable_gqa=True, **more, **band)

    graph = compiled(function)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for places in (FIRST, SECOND):
            same(graph, function, (*inputs(), *ALPHAS[alpha]), *places)


@pytest.mark.parametrize(
    "mapping",
    ["softmax", "sparsegen(lam=0.3)", px.mappings.Normmax(1.7), "budget(k=1)", "fusedmax"],
)
def test_any_mapping_and_any_number_of_sequences(mapping: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        return px.attention.packed(q, k, v, starts, mapping=mapping, is_causal=True)

    graph = compiled(function, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in ((3, 4), (2, 1, 6)):
            q, k, v = (2 * rand(i, sum(lengths), 2, 8) for i in range(3))
            same(graph, function, (q, k, v), starts(lengths))


def test_learned_parameters_of_a_mapping_and_heads_that_broadcast() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, lam: Tensor, starts: Tensor) -> Tensor:
        return px.attention.packed(q, k, v, starts, mapping=px.mappings.Sparsegen(lam))

    tensors = rand(0, 7, 2, 3), rand(1, 7, 1, 3), rand(2, 7, 2, 3), -rand(3, 2, 1, 1).exp()
    same(compiled(function), function, tensors, starts((3, 4)))
    tensors = rand(0, 7, 1, 3), rand(1, 7, 1, 3), rand(2, 7, 2, 3), -rand(3, 1).exp()
    same(compiled(function), function, tensors, starts((3, 4)))


def test_half_precision_and_autocast() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return px.attention.packed(q, k, v, starts)

    tensors = tuple(rand(i, 7, 2, 3).float() for i in range(3))
    found = compiled(function)(*tensors, starts((3, 4)))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, function(*tensors, starts((3, 4))))


def test_sequences_do_not_reach_each_other() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        return px.attention.packed(q, k, v, starts)

    q, k, v = (rand(i, 7, 2, 3) for i in range(3))
    k[1], v[2] = torch.nan, torch.inf
    out, *gradients = trained(compiled(function), (q, k, v), starts((3, 4)))
    assert all(x[3:].isfinite().all() for x in (out, *gradients))
    assert out[:3].isnan().all()


def test_dropout_is_that_of_the_backward() -> None:
    """Of values that are 1, the sum of weights that are kept; the gradient of values adds up so."""

    def function(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        return px.attention.packed(q, k, v, starts, dropout_p=0.5, mapping="softmax")

    def step(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        ones = torch.ones(20, 2, 1, dtype=torch.float64, requires_grad=True)
        out = graph(rand(0, 20, 2, 3), rand(1, 20, 2, 3), ones, starts((8, 12)))
        return out.detach(), *torch.autograd.grad(out.sum(), ones)

    graph = compiled(function)
    (out, gradient), again, other = step(1), step(1), step(2)
    assert torch.equal(out, again[0])
    assert torch.equal(gradient, again[1])
    assert not torch.equal(out, other[0])
    assert out.std() > 0.1
    torch.testing.assert_close(out[:8].sum(0), gradient[:8].sum(0))
    torch.testing.assert_close(out[8:].sum(0), gradient[8:].sum(0))


@pytest.mark.parametrize("early", [False, True])
def test_a_recorded_graph(early: bool) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        out = px.attention.packed(q, k, v, a, b, enable_gqa=True)
        return (out,) if early else (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))

    def leaves() -> list[Tensor]:
        return [x.requires_grad_() for x in inputs()]

    graph = make_fx(step, tracing_mode="symbolic", pre_dispatch=early)(*leaves(), *FIRST)
    for mine, theirs in zip(graph(*leaves(), *SECOND), step(*leaves(), *SECOND), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_exported_program_may_be_differentiated_twice() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
            return px.attention.packed(q, k, v, *FIRST, enable_gqa=True, alpha=alpha)

    given = tuple(x.requires_grad_() for x in (*inputs(), *ALPHAS["head"]))
    program = torch.export.export(Model(), given).module()
    assert torch.autograd.gradcheck(program, given)
    assert torch.autograd.gradgradcheck(program, given)


def test_what_is_wrong_is_said_when_it_runs() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return px.attention.packed(q, k, v, a, b, enable_gqa=True, max_seqlen_q=5)

    graph = compiled(function)
    assert graph(*inputs(), *FIRST).shape == (9, HQ, EV)
    for wrong, message in (
        ((3, 0, 5, 2), "cu_seqlens_q must end with the total length of q, 9, got 10"),
        ((3, 0, 6, 0), "max_seqlen_q must be at least the length of the longest sequence, 6"),
    ):
        with pytest.raises(ValueError, match=message):
            graph(*inputs(), starts(wrong), FIRST[1])


def test_no_sequences() -> None:
    def function(q: Tensor, starts: Tensor) -> Tensor:
        return px.attention.packed(q, q, q, starts)

    q = torch.zeros(0, 2, 3, requires_grad=True)
    out = compiled(function)(q, torch.tensor([0]))
    assert out.shape == (0, 2, 3)
    out.sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("place", ["meta", "fake"])
def test_starts_without_values_give_shapes_and_gradients_of_shapes(place: str) -> None:
    def shapes() -> list[torch.Size]:
        device = "meta" if place == "meta" else "cpu"
        q = torch.empty(9, HQ, EV, device=device, requires_grad=True)
        found = px.attention.packed(q, q, q, torch.empty(4, dtype=torch.int64, device=device))
        return [found.shape, torch.autograd.grad(found.sum(), q)[0].shape]

    with FakeTensorMode() if place == "fake" else contextlib.nullcontext():
        assert shapes() == [torch.Size((9, HQ, EV))] * 2
