"""Who takes part in the benchmark of decoding, and on which caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import parsimax as px
from parsimax.attention import KeyBounds

OURS = "parsimax: alpha 1.5"
HEADS = "parsimax: one alpha a head"
PAGES = "parsimax: alpha 1.5, pages of 16"
BOUNDS = "parsimax: alpha 1.5, bounds of keys"
HEADS_BOUNDS = "parsimax: one alpha a head, bounds of keys"
SOFTMAX = "parsimax: alpha 1"
MINE = frozenset({OURS, HEADS, PAGES, BOUNDS, HEADS_BOUNDS, SOFTMAX})

BLOCK = 64
_PAGE = 16
BACKENDS = {
    "torch: softmax, FlashAttention": "FLASH_ATTENTION",
    "torch: softmax, cuDNN": "CUDNN_ATTENTION",
    "torch: softmax, memory-efficient": "EFFICIENT_ATTENTION",
    "torch: softmax, plain": "MATH",
}
_LOWER = 16.0  # how far scores of empty blocks lie below the others
_SPREAD = 0.2  # standard deviation of the others, so that each block has some near the largest


@dataclass(frozen=True)
class Shape:
    """One new query for each item; ``empty`` is the share of blocks of 64 keys without weight.

    A block is empty if none of the queries that share its keys gives it weight. At 0 the scores are
    N(0, 1), which leaves empty what it leaves.
    """

    batch: int
    heads: int
    shared: int  # heads of keys and values
    keys: int
    size: int
    empty: float

    @property
    def name(self) -> str:
        """As it stands in a table."""
        blocks = f"{self.empty:.0%} empty" if self.empty else "N(0, 1)"
        heads = f"{self.heads}/{self.shared} heads of {self.size}"
        return f"{self.batch} x {self.keys} keys, {heads}, {blocks}"


@dataclass(frozen=True)
class Problem:
    """Queries (B, Hq, 1, E), caches (B, H, keys, E), one alpha a head, and the same in pages.

    Bounds of the keys are taken up to date in each step for its one new key.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor
    lengths: Tensor
    table: Tensor
    k_pages: Tensor
    v_pages: Tensor
    bounds: KeyBounds


def problem(shape: Shape, dtype: torch.dtype, device: str, seed: int = 0) -> Problem:
    """Random caches; which blocks are empty differs by item and head of keys."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator, dtype=torch.float32)

    caches = shape.batch, shape.shared, shape.keys, shape.size
    q = normal(shape.batch, shape.heads, 1, shape.size)
    # item by item: numbers of twice the size are there for one alone
    k, v = (torch.stack([normal(*caches[1:]).to(dtype) for _ in range(shape.batch)]) for _ in "kv")
    if shape.empty > 0:
        blocks = -(-shape.keys // BLOCK)
        order = torch.rand(*caches[:2], blocks, device=device, generator=generator)
        order = order.argsort(-1).argsort(-1)
        live = order < max(1, round((1 - shape.empty) * blocks))
        q *= _SPREAD
        q[..., 0] = shape.size**0.5
        marks = torch.where(live, 0.0, -_LOWER).repeat_interleave(BLOCK, -1)
        k[..., 0] = marks[..., : shape.keys].to(dtype)
    alpha = torch.linspace(1.1, 1.9, shape.heads, device=device)
    lengths = torch.full((shape.batch,), shape.keys, device=device, dtype=torch.int32)
    table, k_pages, v_pages = _pages(k, v, generator)
    bounds = KeyBounds.of(k)
    return Problem(q.to(dtype), k, v, alpha, lengths, table, k_pages, v_pages, bounds)


def _pages(k: Tensor, v: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A table, and the pages of both caches in any order."""
    items, heads, keys, size = k.shape
    columns = -(-keys // _PAGE)
    order = torch.randperm(items * columns, generator=generator, device=k.device)
    cut = []
    for cache in (k, v):
        padded = F.pad(cache, (0, 0, 0, columns * _PAGE - keys))
        parts = padded.reshape(items, heads, columns, _PAGE, size).transpose(1, 2)
        pages = torch.empty_like(parts.flatten(0, 1), memory_format=torch.contiguous_format)
        pages[order] = parts.flatten(0, 1)
        cut.append(pages)
    return order.reshape(items, columns).to(torch.int32), cut[0], cut[1]


Attend = Callable[[Problem], Tensor]


def contenders(shape: Shape, p: Problem, device: str) -> dict[str, Attend]:
    """By name; torch's come first."""
    grouped = shape.heads != shape.shared

    def ours(alpha: float | None) -> Attend:
        return lambda p: px.attention.decode(
            p.q, p.k, p.v, p.lengths, enable_gqa=grouped, alpha=p.alpha if alpha is None else alpha
        )

    def paged(p: Problem) -> Tensor:
        caches = p.k_pages, p.v_pages
        return px.attention.decode(
            p.q, *caches, p.lengths, p.table, enable_gqa=grouped, alpha=1.5
        )  # fmt: skip

    def bounded(alpha: float | None) -> Attend:
        def attend(p: Problem) -> Tensor:
            p.bounds.update(p.k, p.lengths)
            return px.attention.decode(
                p.q, p.k, p.v, p.lengths, enable_gqa=grouped,
                alpha=p.alpha if alpha is None else alpha, bounds=p.bounds,
            )  # fmt: skip

        return attend

    mine: dict[str, Attend] = {
        OURS: ours(1.5), HEADS: ours(None), PAGES: paged, SOFTMAX: ours(1.0),
    }  # fmt: skip
    if device == "cuda":  # nobody else looks at them
        mine |= {BOUNDS: bounded(1.5), HEADS_BOUNDS: bounded(None)}
    names = BACKENDS if device == "cuda" else {"torch: softmax, plain": "MATH"}
    return {**{name: _torch(backend, p) for name, backend in names.items()}, **mine}


def _torch(backend: str, p: Problem) -> Attend:
    """SDPA by one backend; keys are repeated, before any time is taken, if it cannot share them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen: Any = getattr(SDPBackend, backend)
    group = p.q.shape[1] // p.k.shape[1]
    if group == 1:

        def plain(p: Problem) -> Tensor:
            with sdpa_kernel(chosen):
                return F.scaled_dot_product_attention(p.q, p.k, p.v)

        return plain

    def attend(p: Problem) -> Tensor:
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(p.q, p.k, p.v, enable_gqa=True)

    try:
        attend(p)
    except RuntimeError:
        repeated: list[Tensor] = []

        def expanded(p: Problem) -> Tensor:
            if not repeated:
                repeated.extend(x.repeat_interleave(group, 1) for x in (p.k, p.v))
            with sdpa_kernel(chosen):
                return F.scaled_dot_product_attention(p.q, repeated[0], repeated[1])

        return expanded
    return attend


def alpha_of(name: str, p: Problem) -> float | Tensor:
    """The alpha that a contender computes with."""
    if name in (HEADS, HEADS_BOUNDS):
        return p.alpha
    return 1.5 if name in (OURS, PAGES, BOUNDS) else 1.0
