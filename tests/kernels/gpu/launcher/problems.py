"""Problems for the GPU that is played; prints a line for each, as JSON.

Each is solved with other numbers in other memory a second time, when Triton need not be asked, and
a third time with memory that is not aligned, for which other kernels are compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import parsimax as px
from parsimax.attention import flash, flash_decoding, fused, key_bounds
from parsimax.attention.visibility import Band

pytest.importorskip("triton")

from parsimax.kernels.gpu import entmax
from parsimax.kernels.gpu.flash import candidates, launch
from parsimax.kernels.gpu.flash import problem as problems

HALF = torch.float16
Results = list[Tensor]
ALPHAS = torch.tensor([1.3, 1.7])


def drawn(*shape: int, seed: int, dtype: torch.dtype = HALF, lead: int = 0) -> Tensor:
    """Normal numbers, ``lead`` places behind an address that is a multiple of 16."""
    room = torch.empty(lead + torch.Size(shape).numel(), dtype=dtype)
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return room[lead:].view(shape).copy_(numbers)


def rows(seed: int, lead: int) -> tuple[Results, Results]:
    z = drawn(5, 77, seed=seed, dtype=torch.float32, lead=lead)
    p = torch.empty_like(z)
    entmax.forward(z, 1.5, p)
    return [p], [px.entmax(z.double(), 1.5)]


def with_gradients(
    attend: Callable[..., Tensor], plain: Callable[..., Tensor], leaves: Results, seed: int
) -> tuple[Results, Results]:
    """Of all leaves, and in float64."""

    def run(function: Callable[..., Tensor], leaves: Results) -> Results:
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = function(*leaves)
        g = drawn(*out.shape, seed=seed + 9).to(out.dtype)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]

    return run(attend, leaves), run(plain, [x.double() for x in leaves])


def few_keys(seed: int, lead: int) -> tuple[Results, Results]:
    q = drawn(2, 2, 20, 16, seed=seed, lead=lead)
    k, v = (drawn(2, 1, 30, 16, seed=seed + i) for i in (1, 2))
    seen = torch.randn(2, 1, 1, 30, generator=torch.Generator().manual_seed(seed)) > -0.5
    return with_gradients(
        lambda q, k, v, a: fused.fused_attention(q, k, v, seen, True, a, 0.5),
        lambda q, k, v, a: px.attention(
            q, k, v, seen, is_causal=True, scale=0.5, enable_gqa=True, alpha=a
        ),
        [q, k, v, ALPHAS + 0.05 * seed],
        seed,
    )


def many_keys(seed: int, lead: int) -> tuple[Results, Results]:
    """Of 16 blocks of keys, with results from lists of them where there are many."""
    q = drawn(2, 2, 33, 16, seed=seed, lead=lead)
    k, v = (drawn(2, 1, 250, 16, seed=seed + i) for i in (1, 2))
    lengths = torch.tensor([250 - seed, 100], dtype=torch.int32)
    return with_gradients(
        lambda q, k, v, a: flash.flash_attention(
            q, k, v, None, Band(right=0, offset=217), lengths, a, 0.5
        ),
        lambda q, k, v, a: px.attention(
            q, k, v, is_causal=True, scale=0.5, enable_gqa=True, alpha=a,
            causal_align="bottom-right", key_lengths=lengths,
        ),
        [q, k, v, ALPHAS + 0.05 * seed],
        seed,
    )  # fmt: skip


def decoding(seed: int, lead: int) -> tuple[Results, Results]:
    q = drawn(2, 4, 1, 16, seed=seed, lead=lead)
    k, v = (drawn(2, 2, 300, 16, seed=seed + i) for i in (1, 2))
    lengths = torch.tensor([300 - seed, 41], dtype=torch.int32)
    found = flash_decoding.flash_decode(q, k, v, lengths, None, None, (None, None), 1.5, 0.5)
    exact = [x.double() for x in (q, k, v)]
    return [found], [px.attention(*exact, scale=0.5, enable_gqa=True, key_lengths=lengths)]


def bounded_decoding(seed: int, lead: int) -> tuple[Results, Results]:
    """With bounds of the keys, which have just learned of the last ones."""
    q = drawn(2, 4, 1, 16, seed=seed, lead=lead)
    k, v = (drawn(2, 2, 300, 16, seed=seed + i) for i in (1, 2))
    lengths = torch.tensor([300 - seed, 41], dtype=torch.int32)
    bounds = px.attention.KeyBounds.of(k, lengths - 3)
    key_bounds.by_kernel(bounds, k, lengths, None, 3)
    found = flash_decoding.flash_decode(
        q, k, v, lengths, None, None, (None, None), 1.5, 0.5, bounds
    )  # fmt: skip
    exact = [x.double() for x in (q, k, v)]
    return [found], [px.attention(*exact, scale=0.5, enable_gqa=True, key_lengths=lengths)]


def off(found: Results, right: Results) -> float:
    pairs = zip(found, right, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


def solve_all(gpu: Any) -> None:
    """On a GPU that counts launches, and how often Triton was asked how."""
    torch.set_num_threads(1)
    # a program of the interpreter takes a second for some twenty blocks
    small = problems.Tiles(16, 16, 4, 1, problems.First(32, 32, 4, 1), None, listed=1)
    problems.tiles_for = lambda q, v: small
    for module in (candidates, launch, gpu.interpreted(candidates)):
        module.FEW = type(module.FEW)(4)  # lists are made from so many blocks on
    launch._TOGETHER, launch._SCRATCH, launch._ONE_WARP = 1, (1, 1), 1  # several of all launches
    for solve in (rows, few_keys, many_keys, decoding, bounded_decoding):
        for seed, (time, lead) in enumerate({"first": 0, "again": 0, "not aligned": 1}.items()):
            gpu.launches, gpu.asked = {}, 0
            found, right = solve(seed, lead)
            line = {"problem": solve.__name__, "time": time, "off": off(found, right)}
            print(json.dumps(line | {"launches": gpu.launches, "asked": gpu.asked}), flush=True)
