"""What is right: attention in float64 with the whole matrix of weights, on fewer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

import parsimax as px
from parsimax.bench.attention_contenders import (
    BLOCK,
    SPLASH,
    SPLASH_2,
    Attend,
    Problem,
    Shape,
    alpha_of,
    problem,
    wanted,
)

_TOKENS = 1000  # no power of two, and no multiple of a block
_EVEN = 1024  # a power of two: adasplash takes nothing else, and kernels may have ways of their own
MOST = _EVEN  # tokens that are compared with the whole matrix of weights
_HEADS = 4
_RESULTS = ("output", "gradient of q", "of k", "of v", "of alpha")
_ROWS = 64  # queries of the whole problem whose output is looked at
_SAMPLE = 64  # blocks of queries of which it is said how many blocks are empty
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}
TOLERANCE["float64"] = 1e-7  # alpha is float32 even there
# Towards alpha = 2 a key enters the support with much of its influence on gradients at once, and
# whether it does is decided by the last digits of its score. So results of float32 may be off by so
# many times as the exact ones move if each score is off by one rounding of its products.
_ROUNDINGS = 16.0
_UNIT = 2.0**-24


class Refusal(NamedTuple):
    """Why, and whether there were results at all."""

    why: str
    ran: bool


def refuse(name: str, attend: Attend, shape: Shape, dtype: str, device: str) -> Refusal | None:
    """Why a contender may not be timed: a result or a gradient is off by more than it may be."""
    lengths = (_EVEN,) if name in (SPLASH, SPLASH_2) else (_TOKENS, _EVEN)
    for tokens in dict.fromkeys(min(length, shape.tokens) for length in lengths):
        fewer = replace(shape, batch=1, heads=_HEADS, tokens=tokens)
        found = _refuse(name, attend, fewer, dtype, device)
        if found is not None:
            return found
    return None


def _refuse(name: str, attend: Attend, fewer: Shape, dtype: str, device: str) -> Refusal | None:
    p = problem(fewer, getattr(torch, dtype), device, seed=1)
    leaves = wanted(name, p)
    try:
        out = attend(p)
        found = [out.detach(), *torch.autograd.grad(out, leaves, p.g)]
    except Exception as error:  # noqa: BLE001 (a peer's, whatever it is)
        return _said(error)
    alpha = alpha_of(name, p)
    expected = _exact(leaves, p, alpha)
    moved = expected if dtype != "float32" else _exact(leaves, p, alpha, _UNIT)
    for what, mine, theirs, other in zip(_RESULTS, found, expected, moved, strict=False):
        off, least = _distance(mine.double(), theirs), _distance(other, theirs)
        if not off <= max(TOLERANCE[dtype], _ROUNDINGS * least):
            return Refusal(f"{what} is off by {off:.0e}", True)
    return None


def _distance(mine: Tensor, theirs: Tensor) -> float:
    """Relative to what is right; 0 where both are nothing, as gradients of a single key."""
    off = float((mine - theirs).norm())
    return off / float(theirs.norm()) if theirs.any() else off


def _said(error: Exception) -> Refusal:
    text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
    return Refusal(text, False)


def _exact(
    leaves: Sequence[Tensor], p: Problem, alpha: float | Tensor, unit: float = 0.0
) -> list[Tensor]:
    """Output and gradients in float64, with every score off by up to ``unit`` of its products."""
    q, k, v, *learned = exact = [x.detach().double().requires_grad_() for x in leaves]
    scale = q.shape[-1] ** -0.5
    noise = None
    if unit > 0:
        size = (q.detach().abs() @ k.detach().abs().mT) * (scale * unit)
        drawn = torch.rand(size.shape, generator=torch.Generator().manual_seed(0))
        noise = size * (2.0 * drawn.to(size) - 1.0)
    right = px.attention(
        q, k, v, noise, is_causal=p.causal, scale=scale, alpha=learned[0] if learned else alpha
    )
    return [right.detach(), *torch.autograd.grad(right, exact, p.g.double())]


def refuse_rows(name: str, attend: Attend, p: Problem, dtype: str) -> Refusal | None:
    """The same for the output of some queries of the problem that is timed, against all keys."""
    with torch.no_grad():
        try:
            out = attend(p)
        except Exception as error:  # noqa: BLE001
            return _said(error)
        rows = torch.linspace(0, p.q.shape[2] - 1, _ROWS, device=p.q.device).long()
        alpha = alpha_of(name, p)
        worst = 0.0
        for item, head in ((0, 0), (p.q.shape[0] - 1, p.q.shape[1] - 1)):
            weights = row_weights(p, item, head, rows, alpha)
            theirs = weights @ p.v[item, head].double()
            mine = out[item, head, rows].double()
            worst = max(worst, _distance(mine, theirs))
    if worst <= TOLERANCE[dtype]:
        return None
    return Refusal(f"output of the whole is off by {worst:.0e}", True)


def row_weights(
    p: Problem, item: int, head: int, rows: Tensor, alpha: float | Tensor,
    dtype: torch.dtype = torch.float64,
) -> Tensor:  # fmt: skip
    """Weights of some queries of one head over all keys, of scores in float64."""
    q, k = p.q.detach(), p.k.detach()
    scores = q[item, head, rows].double() @ k[item, head].double().mT * q.shape[-1] ** -0.5
    keys = torch.arange(k.shape[2], device=q.device)
    mask = keys <= rows[:, None] if p.causal else None
    one = alpha[head].detach().double() if isinstance(alpha, Tensor) else alpha
    return px.entmax(scores.to(dtype), one, mask=mask)


def empty_share(p: Problem, alpha: float = 1.5) -> float:
    """The share of visible blocks without any weight, from a sample of blocks of queries."""
    items, heads, queries, _ = p.q.shape
    blocks = -(-queries // BLOCK)
    dead = seen = 0
    for number, block in enumerate(torch.linspace(0, blocks - 1, _SAMPLE).long().tolist()):
        rows = torch.arange(block * BLOCK, min((block + 1) * BLOCK, queries), device=p.q.device)
        # float32 is enough to count blocks, and has a kernel
        weights = row_weights(
            p, number % items, number // items % heads, rows, alpha, torch.float32
        )  # fmt: skip
        visible = block + 1 if p.causal else blocks
        padded = torch.nn.functional.pad(weights, (0, blocks * BLOCK - weights.shape[1]))
        alive = padded.reshape(len(rows), blocks, BLOCK).amax((0, 2)) > 0
        dead += visible - int(alive.sum())
        seen += visible
    return dead / seen
