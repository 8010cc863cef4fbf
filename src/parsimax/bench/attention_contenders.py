"""Who takes part in the benchmark of attention, and on which inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import parsimax as px

CUDNN = "torch: softmax, cuDNN"
FLASH = "torch: softmax, FlashAttention"
DENSE = "torch: softmax"
SOFTMAX = frozenset({CUDNN, FLASH, DENSE})
OURS = "parsimax: alpha 1.5"
LEARNED = "parsimax: one learned alpha a head"
SPLASH = "adasplash v1"
SPLASH_2 = "adasplash v2"

BLOCK = 64
CODES = 16  # of the size of a head, where it is said which blocks belong together
_STRENGTH = 8.0
_FILLING = 1 << 16  # queries of all heads


@dataclass(frozen=True)
class Shape:
    """One problem: ``empty`` is the share of visible blocks of 64 x 64 that get no weight."""

    batch: int
    heads: int
    tokens: int
    size: int
    causal: bool
    empty: float

    @property
    def name(self) -> str:
        """As it stands in a table."""
        band = "causal" if self.causal else "full"
        return f"{self.tokens} tokens, heads of {self.size}, {band}, {self.empty:.0%} empty"


@dataclass(frozen=True)
class Problem:
    """Leaves of one problem, and the gradient from above."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor  # one a head
    g: Tensor
    causal: bool


def problem(shape: Shape, dtype: torch.dtype, device: str, seed: int = 0) -> Problem:
    """Random queries, keys and values; without empty blocks the scores are N(0, 1).

    Otherwise every block of keys has one of 16 codes, and every block of queries likes some of
    them at random, that of its own position always: scores of the others are 16 lower. So it is
    scores that make blocks empty, differently for each head and each block of queries; how many
    codes are liked follows from the share of visible blocks that is to be empty.
    """
    generator = torch.Generator(device).manual_seed(seed)
    full = (shape.batch, shape.heads, shape.tokens, shape.size)

    def normal() -> Tensor:
        return torch.randn(full, device=device, generator=generator)

    q, k, v, g = normal(), normal(), normal(), normal()
    if shape.empty > 0:
        blocks = -(-shape.tokens // BLOCK)
        lead = (shape.batch, shape.heads, -(-blocks // CODES))
        drawn = torch.rand((*lead, 2 * CODES + 1, CODES), device=device, generator=generator)
        # sixteen blocks in a row have all codes, each its own, and so has any beginning nearly all
        code = drawn[..., 0, :].argsort(-1).flatten(2)[..., :blocks]
        order = drawn[..., 1 : CODES + 1, :].flatten(2, 3)[..., :blocks, :]
        order = order.scatter(-1, code[..., None], -1.0).argsort(-1).argsort(-1)
        many = 1 + _further_codes(shape, blocks) + drawn[..., -1, :].flatten(2)[..., :blocks] - 0.5
        likes = order < many.round()[..., None]
        of_keys = F.one_hot(code, CODES).float() * _STRENGTH
        of_queries = (likes.float() * 2 - 1) * shape.size**0.5
        for x, marks in ((k, of_keys), (q, of_queries)):
            x[..., :CODES] = marks.repeat_interleave(BLOCK, 2)[:, :, : shape.tokens]
    alpha = torch.linspace(1.1, 1.9, shape.heads, device=device)
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    return Problem(
        leaves[0], leaves[1], leaves[2], alpha.requires_grad_(), g.to(dtype), shape.causal
    )


def _further_codes(shape: Shape, blocks: int) -> float:
    """That a block of queries must like on average, besides its own, for the share to be right.

    Where it is causal the first blocks see little but themselves, and others must make up for it.
    """
    place = torch.arange(blocks)
    visible = place + 1 if shape.causal else torch.full((blocks,), blocks)
    own = 1 + place // CODES if shape.causal else torch.full((blocks,), -(-blocks // CODES))
    wanted = (1 - shape.empty) * float(visible.sum()) - float(own.sum())
    of_one_code = float((visible - own).sum()) / (CODES - 1)
    return min(max(wanted / max(of_one_code, 1.0), 0.0), CODES - 1.0)


Attend = Callable[[Problem], Tensor]


def contenders(shape: Shape, device: str) -> Mapping[str, Attend]:
    """By name; adasplash with what it takes by itself: v2 if causal, and otherwise v1."""
    ours: dict[str, Attend] = {
        OURS: lambda p: px.attention(p.q, p.k, p.v, is_causal=p.causal, alpha=1.5),
        LEARNED: lambda p: px.attention(p.q, p.k, p.v, is_causal=p.causal, alpha=p.alpha),
    }
    if device != "cuda":
        return {DENSE: _sdpa, **ours}
    found: dict[str, Attend] = {
        CUDNN: _by("CUDNN_ATTENTION"),
        FLASH: _by("FLASH_ATTENTION"),
        **ours,
    }
    try:
        import adasplash
    except ImportError:
        return found
    if shape.causal:
        return {**found, SPLASH_2: lambda p: adasplash.adasplash_v2(p.q, p.k, p.v)}
    return {**found, SPLASH: lambda p: adasplash.adasplash_v1(p.q, p.k, p.v, 1.5, False)}


def choose_tiles(attend: Attend, shape: Shape, dtype: torch.dtype, device: str) -> None:
    """Let a contender that tries out tiles for each length do so on fewer heads.

    They are enough to fill a GPU, and of all heads it would take minutes.
    """
    heads = max(1, min(shape.heads, _FILLING // shape.tokens))
    p = problem(replace(shape, batch=1, heads=heads), dtype, device)
    torch.autograd.grad(attend(p), (p.q, p.k, p.v), p.g)


def wanted(name: str, p: Problem) -> tuple[Tensor, ...]:
    """The leaves that a contender has gradients of."""
    return (p.q, p.k, p.v, *([p.alpha] if name == LEARNED else []))


def alpha_of(name: str, p: Problem) -> float | Tensor:
    """The alpha that a contender computes with."""
    if name in SOFTMAX:
        return 1.0
    return p.alpha if name == LEARNED else 1.5


def _sdpa(p: Problem) -> Tensor:
    return F.scaled_dot_product_attention(p.q, p.k, p.v, is_causal=p.causal)


def _by(backend: str) -> Attend:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(p: Problem) -> Tensor:
        chosen: Any = getattr(SDPBackend, backend)
        with sdpa_kernel(chosen):
            return _sdpa(p)

    return attend
