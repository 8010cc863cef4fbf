"""What an analyst asks of attention without its weights: thresholds, supports, live blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from parsimax._core.dtypes import exact_dtype, working
from parsimax._core.masks import apply_mask
from parsimax._core.validation import recorded, transform_or_forward_mode
from parsimax.mappings import Mapping
from parsimax.mappings.base import name_of

from . import flash
from .choice import DEFAULT_ALPHA, check_one_choice
from .functional import read_text
from .fused import kernel_alpha
from .inputs import check_devices, check_flag, check_scale, check_size, scores_shape
from .precision import autocast_inputs, without_autocast
from .products import matmul_heads
from .rowwise import Rows, read_rows
from .thresholds import THRESHOLDS
from .tiled import Problem, known_lengths, tile_scores
from .tiles import Tile
from .visibility import (
    Window,
    band_mask,
    check_lengths,
    intersect,
    read_band,
    split_mask,
    within_lengths,
)

_SMALLEST_BLOCK = 16  # of queries and keys that kernels can count


@dataclass(frozen=True)
class AttentionStatistics:
    """One number for each query of each head, or for each block of queries.

    Args:
        tau: (..., Hq, Lq): for entmax the paper's, with weights
            ``((alpha - 1) * score - tau).clamp(min=0) ** (1 / (alpha - 1))``; for sparsegen,
            normmax and budget that of their own formulas. ``None`` for mappings without one; inf
            for a query that sees nothing.
        threshold: (..., Hq, Lq): a key has weight exactly if its score, scaled and with everything
            added, is above it. -inf for softmax; otherwise as tau.
        support: (..., Hq, Lq), how many keys have weight.
        visible: (..., Hq, Lq), how many keys the query may see.
        live_blocks: (..., Hq, blocks of queries), in how many blocks of keys any query of the
            block has a key of its support.
        visible_blocks: The same, of keys that may be seen.
        block_size: Queries and keys of a block.
    """

    tau: Tensor | None
    threshold: Tensor | None
    support: Tensor
    visible: Tensor
    live_blocks: Tensor
    visible_blocks: Tensor
    block_size: int

    @property
    def live_fraction(self) -> Tensor:
        """(..., Hq): of the blocks with anything visible, those with any weight."""
        return self.live_blocks.sum(-1) / self.visible_blocks.sum(-1).clamp(min=1)

    @property
    def density(self) -> Tensor:
        """(..., Hq, Lq): of the keys that may be seen, those with weight."""
        return self.support / self.visible.clamp(min=1)


@torch.no_grad()
def statistics(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: float | Tensor = DEFAULT_ALPHA,
    mapping: Mapping | str | None = None,
    causal_align: str = "top-left",
    window: Window = None,
    key_lengths: Tensor | None = None,
    block_size: int = 64,
) -> AttentionStatistics:
    """How sparse the weights of ``px.attention`` are with the same arguments.

    The weights never exist all at once, so this can be asked of long sequences; where torch.compile
    records it and there are no kernels, they do. There are no gradients. On a GPU, entmax goes
    through the kernels of ``px.attention`` if ``block_size`` is a multiple of 16.

    Args:
        q: Queries (..., Hq, Lq, E).
        k: Keys (..., H, Lk, E).
        attn_mask: As in ``px.attention``, like all that follow.
        is_causal: Query i sees the keys up to its own position.
        scale: What the products are multiplied with; ``None`` is 1 / sqrt(E).
        enable_gqa: Query heads share keys in groups.
        alpha: Which entmax.
        mapping: Any mapping, or its text, instead of alpha.
        causal_align: Where queries stand if Lq and Lk differ.
        window: How far a query sees to the left and to the right of its position.
        key_lengths: Only keys before this one exist.
        block_size: Queries and keys of the blocks that are counted.

    >>> import torch, parsimax as px
    >>> q = torch.eye(4).repeat(32, 1) * 20  # 128 queries, each likes every fourth key
    >>> found = px.attention.statistics(q, q, is_causal=True)
    >>> found.support[[0, 3, 4, 127]]
    tensor([ 1,  1,  2, 32])
    >>> found.live_fraction
    tensor(1.)
    >>> px.attention.statistics(q, q, is_causal=True, block_size=1).live_fraction
    tensor(0.2558)
    """
    is_causal = check_flag(is_causal, "is_causal")
    enable_gqa = check_flag(enable_gqa, "enable_gqa")
    block_size = check_size(block_size, "block_size")
    check_one_choice(alpha, mapping)
    shape = scores_shape(q, k, k, enable_gqa)
    allowed, bias = split_mask(attn_mask, shape)
    check_devices(q=q, attn_mask=attn_mask)
    scale = check_scale(scale, q.shape[-1])
    chosen = mapping if mapping is None or isinstance(mapping, Mapping) else read_text(mapping)
    band = read_band(shape, is_causal, causal_align, window)
    within = counted = None
    if key_lengths is not None:
        counted = check_lengths(key_lengths, shape)
        key_lengths = counted.to(q.device)
        within, factor = within_lengths(key_lengths, shape)
        q = q * factor.to(q.dtype)
    q, k, _ = autocast_inputs(q, k, k)
    if q.dtype != k.dtype:
        raise TypeError(f"q and k must have the same dtype, got {q.dtype} and {k.dtype}")
    number = kernel_alpha(q, k, k, alpha, chosen, 0.0)
    whole = block_size % _SMALLEST_BLOCK == 0
    if number is not None and whole and flash.fits(q, k, k, number):
        seen = allowed if bias is None else bias
        counts = flash.count(q, k, seen, band, key_lengths, number, scale, block_size)
        return AttentionStatistics(*counts, block_size)
    known = read_rows(alpha, chosen, shape)
    if known is None:
        raise ValueError(
            "mapping must be a registered one whose tensors broadcast to the scores "
            f"{tuple(shape)}, got {mapping!r}"
        )
    rows, tensors = known
    with without_autocast(q.device):
        if recorded() or transform_or_forward_mode():  # tiles are cut by numbers, and written to
            scores = matmul_heads(working(q) * scale, working(k).mT, enable_gqa)
            if bias is not None:
                scores = scores + bias.to(scores.dtype)
            visible = intersect(allowed, within, band_mask(band, shape, q.device))
            scores = apply_mask(scores, visible)
            weights = rows.weights(scores, tensors)
            tau, threshold = _thresholds(scores, weights, rows, tensors)
            numbers = _counts(scores, weights, block_size)
            return AttentionStatistics(tau, threshold, *numbers, block_size)
        longest = known_lengths(counted, shape)
        problem = Problem(shape, band, scale, enable_gqa, rows, longest)
        found = _Found(shape, block_size, q, name_of(type(rows.mapping)) in THRESHOLDS)
        wide = working(k)
        for tile in problem.tiles(k, k, block_size):
            scores = tile_scores(q, wide, bias, (allowed, within), tile, problem)
            cut = [tile.cut(x) for x in tensors]
            found.fill(tile, scores, rows.solve(scores, cut)[0], rows, cut)
    return found.result()


class _Found:
    """Statistics that are being filled in, tile by tile; what no tile covers is not visible."""

    def __init__(self, shape: torch.Size, block: int, q: Tensor, thresholds: bool) -> None:
        device, lines = q.device, shape[:-1]
        blocks = (*lines[:-1], -(-lines[-1] // block))
        dtype = working(q).dtype
        self.block = block
        self.tau, self.threshold = (
            torch.full(lines, torch.inf, dtype=dtype, device=device) if thresholds else None
            for _ in range(2)
        )
        self.support, self.visible = (
            torch.zeros(lines, dtype=torch.int64, device=device) for _ in range(2)
        )
        self.live_blocks, self.visible_blocks = (
            torch.zeros(blocks, dtype=torch.int64, device=device) for _ in range(2)
        )

    def fill(
        self, tile: Tile, scores: Tensor, weights: Tensor, rows: Rows, tensors: Sequence[Tensor]
    ) -> None:
        lines = (*tile.lead, tile.rows)
        support, visible, live, seen = _counts(scores, weights, self.block)
        self.support[lines], self.visible[lines] = support, visible
        start = tile.rows.start // self.block
        blocks = (*tile.lead, slice(start, start + live.shape[-1]))
        self.live_blocks[blocks], self.visible_blocks[blocks] = live, seen
        tau, threshold = _thresholds(scores, weights, rows, tensors)
        if self.tau is not None and self.threshold is not None and tau is not None:
            assert threshold is not None
            self.tau[lines], self.threshold[lines] = tau, threshold

    def result(self) -> AttentionStatistics:
        return AttentionStatistics(
            self.tau,
            self.threshold,
            self.support,
            self.visible,
            self.live_blocks,
            self.visible_blocks,
            self.block,
        )


def _counts(scores: Tensor, weights: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Supports, visible keys, live blocks and visible blocks of these rows."""
    pair = weights > 0, scores != -torch.inf
    support, visible = (there.sum(-1) for there in pair)
    live, seen = (_any_of_blocks(there, block).sum(-1) for there in pair)
    return support, visible, live, seen


def _thresholds(
    scores: Tensor, weights: Tensor, rows: Rows, tensors: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Tau and the threshold of these rows, of mappings that have them."""
    name = name_of(type(rows.mapping))
    if name not in THRESHOLDS:
        return None, None
    number: float | Tensor = tensors[0] if tensors else rows.mapping.parameter
    if isinstance(number, Tensor) and number.ndim:
        number = number.reshape((1,) * (scores.ndim - number.ndim) + number.shape)
    wide = exact_dtype(scores)
    tau, threshold = THRESHOLDS[name](scores.to(wide), weights.to(wide), number)
    blind = (scores == -torch.inf).all(-1)
    return (
        torch.where(blind, torch.inf, tau).to(scores.dtype),
        torch.where(blind, torch.inf, threshold).to(scores.dtype),
    )


def _any_of_blocks(there: Tensor, block: int) -> Tensor:
    """(..., blocks of rows, blocks of columns), True where any entry of the block is."""
    rows, columns = there.shape[-2:]
    down, across = -(-rows // block), -(-columns // block)
    full = pad(there, (0, across * block - columns, 0, down * block - rows))
    parts = full.reshape(*there.shape[:-2], down, block, across, block)
    return parts.any(-1).any(-2)
