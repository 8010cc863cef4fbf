"""What the host calls: the output of one step of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.flash.launch import UNLIMITED, _kind, _mask_kind
from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .output import parts_kernel, sum_kernel
from .places import ANY_PAGES, WHOLE_CACHE, WHOLE_PAGES
from .scores import scores_kernel
from .solve import solve_kernel

_ENOUGH = 2e-3  # surplus of mass at which one more step is the last: it leaves about its square


class Tiles(NamedTuple):
    """Keys of a block, queries of a tile at most, and who shares the work."""

    columns: int = 64
    rows: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 528  # that read keys at the same time
    value_programs: int = 528
    solve_warps: int = 8
    few: int = 64  # blocks of scores that are read together
    many: int = 4096  # largest scores of blocks that are looked at together


def tiles_for(q: Tensor, v: Tensor) -> Tiles:
    """What fits into the memory that the warps of a tile share."""
    width = max(16, power_of_two(max(q.shape[-1], v.shape[-1]))) * q.element_size()
    if width <= 256:
        return Tiles()
    return Tiles(rows=32) if width <= 512 else Tiles(columns=32, rows=16)


@dataclass(frozen=True)
class Problem:
    """Queries (B, Hq, Lq, E) whose last stride is 1, and caches of as many heads or fewer.

    Args:
        k: Keys (B, H, capacity, E), or pages of them (pages, H, page size, E), with any strides.
        v: Values in the same way.
        lengths: Integers (B,); None is all.
        table: Integers (B, pages of an item); None is a cache that is not in pages.
        seen: Bool, or numbers to add, (B, Hq, Lq, capacity) with any strides; None sees everything.
        alpha: From 1 up, or a tensor (Hq,) without gaps.
        band: How far before and after its position a query sees; None is without limit.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Tensor | None
    table: Tensor | None
    seen: Tensor | None
    alpha: float | Tensor
    scale: float
    band: tuple[int, int] | None
    tiles: Tiles

    @property
    def capacity(self) -> int:
        """Keys that an item has room for."""
        return self.k.shape[2] * (1 if self.table is None else self.table.shape[1])

    @property
    def blocks(self) -> int:
        """Blocks of keys."""
        return pieces(self.capacity, self.tiles.columns)

    @property
    def rows(self) -> int:
        """Queries that share keys."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]


def _paged(p: Problem) -> int:
    if p.table is None:
        return int(WHOLE_CACHE.value)
    return int((ANY_PAGES if p.k.shape[2] % p.tiles.columns else WHOLE_PAGES).value)


def _splits(programs: int, tiles: int, blocks: int) -> int:
    """Into how many parts the keys of a tile go so that there are as many programs."""
    return max(1, min(blocks, programs // tiles))


def _stages(stages: int, indirect: bool) -> int:
    """For Triton, which shares stages among loads and those that load where from."""
    return 2 * stages - 1 if indirect else stages


def decode(p: Problem) -> Tensor:
    """Context (B, Hq, Lq, Ev)."""
    items, q_heads, queries, size = p.q.shape
    heads, value_size, blocks, tiles = p.k.shape[1], p.v.shape[3], p.blocks, p.tiles
    group = q_heads // heads
    all_rows = items * q_heads * queries
    rows = min(tiles.rows, max(16, power_of_two(p.rows)))
    row_tiles = pieces(p.rows, rows)
    all_tiles = items * heads * row_tiles
    kind, near = _kind(p.alpha)
    tensor = isinstance(p.alpha, Tensor)
    value = 0.0 if isinstance(p.alpha, Tensor) else p.alpha - 1.0
    left, right = p.band or (UNLIMITED, UNLIMITED)
    # those that are not there are not read
    alphas: Any = p.alpha if tensor else p.q
    lengths, seen = (p.q if x is None else x for x in (p.lengths, p.seen))
    lengths_step = 0 if p.lengths is None else p.lengths.stride(0)
    seen_steps = (0, 0, 0, 0) if p.seen is None else p.seen.stride()
    table = p.q if p.table is None else p.table
    table_steps = (0, 0) if p.table is None else p.table.stride()
    pages = (p.k.shape[0], p.k.shape[2], lengths_step, *table_steps)
    common = {"CAUSAL": p.band is not None, "LENGTHS": p.lengths is not None}
    chosen = {"KIND": kind, "NEAR": near, "TENSOR": tensor}

    def scratch(*shape: int) -> Tensor:
        return p.q.new_empty(shape, dtype=torch.float32)

    scores = scratch(all_rows, blocks * tiles.columns)
    tops = scratch(all_rows, blocks)
    splits = _splits(tiles.programs, all_tiles, blocks)
    sizes = max(16, power_of_two(size))
    scores_kernel[(splits, all_tiles)](
        p.q, p.k, seen, lengths, table, scores, tops,
        p.scale, heads, group, queries, p.capacity, size, row_tiles, blocks, left, right, *pages,
        *p.q.stride()[:3], *p.k.stride(), *seen_steps,
        **common, MASK=_mask_kind(p.seen), PAGED=_paged(p), STRIDED=p.k.stride(3) != 1,
        ROWS=rows, COLUMNS=tiles.columns, WHOLE=sizes == size, SIZE=sizes,
        num_warps=tiles.warps, num_stages=_stages(tiles.stages, p.table is not None),
    )  # fmt: skip
    top, x, low = scratch(3, all_rows)
    lists = tops.new_empty(all_rows, blocks, dtype=torch.int32)
    solve_kernel[(all_rows,)](
        alphas, lengths, scores, tops, lists, top, x, low,
        value, _ENOUGH, q_heads, queries, p.capacity, blocks, left, right, lengths_step,
        **chosen, **common, FEW=min(tiles.few, power_of_two(blocks)), COLUMNS=tiles.columns,
        MANY=min(tiles.many, power_of_two(blocks)),
        # sums of the threads of a row must not differ in the last digit: see reductions.solid
        num_warps=tiles.solve_warps, enable_fp_fusion=False,
    )  # fmt: skip
    splits = _splits(tiles.value_programs, all_tiles, blocks)
    longest = pieces(blocks, splits)
    real = min(rows, power_of_two(p.rows))
    values = max(16, power_of_two(value_size))
    parts, mass = scratch(all_tiles, splits, rows, values), scratch(all_tiles, splits, rows)
    shares = tops.new_empty(all_tiles, splits, longest, dtype=torch.int32)
    parts_kernel[(splits, all_tiles)](
        p.v, alphas, lengths, table, scores, tops, top, x, low, shares, parts, mass,
        value, heads, group, queries, p.capacity, value_size, row_tiles, blocks, longest,
        left, right, *pages, *p.v.stride(),
        **chosen, **common, ROUGH=p.q.dtype != torch.float32, PAGED=_paged(p),
        STRIDED=p.v.stride(3) != 1, ROWS=rows, REAL=real, COLUMNS=tiles.columns,
        MANY=max(1, min(tiles.many // real, power_of_two(blocks))),
        WHOLE=values == value_size, VALUES=values,
        num_warps=tiles.warps, num_stages=_stages(tiles.stages, True),
    )  # fmt: skip
    out = p.q.new_empty(items, q_heads, queries, value_size)
    sum_kernel[(all_rows,)](
        parts, mass, alphas, lengths, top, out,
        heads, group, queries, p.capacity, value_size, row_tiles, splits, lengths_step,
        TENSOR=tensor, LENGTHS=p.lengths is not None, ROWS=rows, VALUES=values,
        MANY=min(32, power_of_two(splits)), num_warps=4,
    )  # fmt: skip
    return out
