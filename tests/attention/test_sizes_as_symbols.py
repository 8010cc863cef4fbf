"""Sizes that are symbols: exported and compiled attention must not depend on which happen to agree.

An exported program checks what was compared while it was recorded. If a mask's length had been
compared with the batch, it would refuse a batch as large as the length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.fx.experimental.proxy_tensor import make_fx

import parsimax as px

BATCH = torch.export.Dim("batch", min=2, max=3000)
LENGTH = torch.export.Dim("length", min=2, max=3000)
KEYS = torch.export.Dim("keys", min=2, max=3000)
ALPHA = torch.tensor([1.2, 1.5])
DIMENSIONS = {"batch": BATCH, "length": LENGTH, "keys": KEYS, "heads x batch": 2 * BATCH}

Shape = tuple[str | int, ...]
Sizes = dict[str, int]
Call = Callable[..., Tensor]


class Model(nn.Module):
    """A function with the modules that it calls."""

    def __init__(self, call: Call, *parts: nn.Module) -> None:
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs, *self.parts)


def made(shape: Shape, sizes: Sizes) -> Tensor:
    known = {**sizes, "heads x batch": 2 * sizes["batch"]}
    return torch.randn([x if isinstance(x, int) else known[x] for x in shape])


def multihead(x: Tensor, mask: Tensor, module: nn.Module) -> Tensor:
    out: Tensor = module(x, x, x, attn_mask=mask)[0]
    return out


def learned(x: Tensor, module: nn.Module) -> Tensor:
    out: Tensor = module(x, x, x, need_weights=False, is_causal=True)[0]
    return out


QUERIES: Shape = ("batch", 2, "length", 4)
CACHE: Shape = ("batch", 2, "keys", 4)
CASES: dict[str, tuple[Call, tuple[Shape, ...], tuple[nn.Module, ...]]] = {
    "a mask": (
        lambda q, m: px.attention(q, q, q, m > 0),
        (QUERIES, ("length", "length")),
        (),
    ),
    "one alpha a head": (lambda q: px.attention(q, q, q, alpha=ALPHA), (QUERIES,), ()),
    "keys of every batch": (
        lambda q, k: px.attention(q, k, k, is_causal=True),
        (QUERIES, (2, "keys", 4)),
        (),
    ),
    "grouped heads": (
        lambda q, k: px.attention(q, k, k, enable_gqa=True),
        (("batch", 4, "length", 4), CACHE),
        (),
    ),
    "decoding": (
        lambda q, k: px.attention.decode(q, k, k, torch.full_like(k[:, 0, 0, 0], 2).long()),
        (("batch", 2, 1, 4), CACHE),
        (),
    ),
    "a module that learns alpha": (
        learned,
        (("batch", "length", 8),),
        (px.nn.MultiheadAttention(8, 2, batch_first=True, alpha=px.nn.AdaptiveAlpha(2)),),
    ),
    "a module with a mask for each head": (
        multihead,
        (("batch", "length", 8), ("heads x batch", "length", "length")),
        (px.nn.MultiheadAttention(8, 2, batch_first=True),),
    ),
    "a memory with a mask": (
        lambda x, y, m, module: module(x, y, m > -5).context,
        (("batch", "length", 8), ("batch", "keys", 6), ("batch", "length", "keys")),
        (px.nn.BilinearAttention(8, 6),),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_exported_with_sizes_that_agree_later(case: str) -> None:
    call, shapes, parts = CASES[case]
    model = Model(call, *parts)
    example = tuple(made(s, {"batch": 3, "length": 5, "keys": 7}) for s in shapes)
    dynamic = tuple(
        {i: DIMENSIONS[x] for i, x in enumerate(s) if isinstance(x, str)} for s in shapes
    )
    program = torch.export.export(model, example, dynamic_shapes=(dynamic,)).module()
    for batch, length, keys in ((2, 2, 2), (6, 6, 6), (12, 6, 12), (3, 6, 6)):
        sizes = {"batch": batch, "length": length, "keys": keys}
        inputs = [made(s, sizes) for s in shapes]
        torch.testing.assert_close(program(*inputs), model(*inputs))


def test_compiled_statistics_take_other_lengths_without_compiling_again() -> None:
    counter = CompileCounter()

    def live(q: Tensor) -> Tensor:
        return px.attention.statistics(q, q, is_causal=True, alpha=ALPHA).live_fraction

    compiled = torch.compile(live, backend=counter, fullgraph=True, dynamic=True)
    for batch, length in ((3, 70), (3, 80), (4, 129), (100, 100)):
        q = torch.randn(batch, 2, length, 4)
        torch.testing.assert_close(compiled(q), live(q))
    assert counter.frame_count == 1


def test_statistics_are_exported_for_any_length_above_a_block() -> None:
    def support(q: Tensor) -> Any:
        found = px.attention.statistics(q, q, is_causal=True, block_size=4)
        return found.support, found.live_blocks, found.threshold

    class Counts(nn.Module):
        def forward(self, q: Tensor) -> Any:
            return support(q)

    length = torch.export.Dim("length", min=5, max=3000)
    program = torch.export.export(
        Counts(), (torch.randn(3, 2, 9, 4),), dynamic_shapes=({0: BATCH, 2: length},)
    ).module()
    for batch, queries in ((2, 5), (13, 13)):
        q = torch.randn(batch, 2, queries, 4)
        torch.testing.assert_close(program(q), support(q))


@pytest.mark.parametrize("lengths", [[2, 3], [5, 9]])
def test_make_fx_records_decoding_with_sizes_that_are_symbols(lengths: list[int]) -> None:
    def step(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
        return px.attention.decode(q, k, k, lengths)

    k = torch.randn(2, 4, 9, 8)
    given = torch.randn(2, 4, 1, 8), k, torch.tensor([1, 2])
    graph = make_fx(step, tracing_mode="symbolic")(*given)
    q, ends = torch.randn(2, 4, 1, 8), torch.tensor(lengths)
    torch.testing.assert_close(graph(q, k, ends), step(q, k, ends))
