"""What the host calls: the output of one step of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.flash.launch import UNLIMITED, _kind, _mask_kind
from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .lists import ALIGNED
from .output import parts_kernel
from .places import ANY_PAGES, SHORT_PAGES, WHOLE_CACHE, WHOLE_PAGES
from .scores import scores_kernel
from .soft import soft_kernel
from .solve import solve_kernel
from .total import sum_kernel

_ENOUGH = 2e-3  # surplus of mass at which one more step is the last: it leaves about its square
_FEW_PAGES = 8  # that may make up a block
# Who reads values last adds up all parts of a tile if that takes it a microsecond or two, and the
# registers that it has: numbers of all parts, and of one
_MOST_ADDED, _MOST_OF_PART = 40 << 10, 1024


class Tiles(NamedTuple):
    """Keys of a block, queries of a tile at most, and who shares the work."""

    columns: int = 64
    rows: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 528  # that read keys at the same time
    soft_programs: int = 396  # that read keys and values
    value_programs: int = 264
    value_parts: int = 8  # of a tile at least: one may have more live blocks than another
    solve_warps: int = 8
    hold: int = 256  # blocks whose scores a query holds while it looks for its threshold
    few: int = 128  # blocks of scores that are read together, if there are more
    many: int = 4096  # largest scores of blocks that are looked at together
    value_many: int = 8192  # the same, of all queries of a tile
    value_warps: int = 4
    registers: int | None = 128  # that a thread may have which reads values
    add: int = 8192  # numbers of parts that are read together to be added up


_FEW_ROWS = 132  # one a multiprocessor


def tiles_for(q: Tensor, v: Tensor, alpha: float | Tensor) -> Tiles:
    """What fits into the memory that the warps of a tile share."""
    width = max(16, power_of_two(max(q.shape[-1], v.shape[-1]))) * q.element_size()
    tiles = Tiles(rows=64 if width <= 256 else 32)
    if width > 512:
        tiles = Tiles(columns=32, rows=16)
    if isinstance(alpha, Tensor) and q.shape[0] * q.shape[1] * q.shape[2] <= _FEW_ROWS:
        # an alpha of a head may be near 1, where most blocks live and every weight is a power: more
        # warps and programs take 117 in place of 182 us for solver and values of 1 x 32 / 8 heads
        tiles = tiles._replace(solve_warps=16, few=256, value_programs=528)
    return tiles


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
    def line(self) -> int:
        """Blocks of keys that a row of scratch has room for: an aligned number of them."""
        return pieces(self.blocks, int(ALIGNED.value)) * int(ALIGNED.value)

    @property
    def rows(self) -> int:
        """Queries that share keys."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]


def _paged(p: Problem) -> int:
    if p.table is None:
        return int(WHOLE_CACHE.value)
    size, columns = p.k.shape[2], p.tiles.columns
    if size % columns == 0:
        return int(WHOLE_PAGES.value)
    short = columns % size == 0 and columns // size <= _FEW_PAGES
    return int((SHORT_PAGES if short else ANY_PAGES).value)


def _splits(programs: int, tiles: int, blocks: int, least: int = 1) -> int:
    """Into how many parts the keys of a tile go so that there are as many programs."""
    return min(blocks, max(least, programs // tiles))


def _stages(stages: int, indirect: bool) -> int:
    """For Triton, which shares stages among loads and those that load where from."""
    return 2 * stages - 1 if indirect else stages


def _together(p: Problem, parts: int, numbers: int) -> int:
    """How many parts of so many numbers are read together to be added up."""
    return min(max(1, p.tiles.add // numbers), power_of_two(parts))


class _Common(NamedTuple):
    """What several kernels are told; tensors that are not there are not read."""

    rows: int
    row_tiles: int
    all_tiles: int
    lengths: Tensor
    seen: Tensor
    table: Tensor
    alphas: Any
    value: float
    counts: tuple[int, ...]  # heads, group, queries, capacity
    band: tuple[int, int]
    pages: tuple[int, ...]
    seen_steps: tuple[int, ...]
    reading: dict[str, Any]  # options of those that read caches


def _common(p: Problem) -> _Common:
    items, q_heads, queries, _ = p.q.shape
    heads = p.k.shape[1]
    rows = min(p.tiles.rows, max(16, power_of_two(p.rows)))
    row_tiles = pieces(p.rows, rows)
    table_steps = (0, 0) if p.table is None else p.table.stride()
    reading = {
        "CAUSAL": p.band is not None, "LENGTHS": p.lengths is not None, "PAGED": _paged(p),
        "PAGE": 1 if p.table is None else p.k.shape[2], "ROWS": rows, "COLUMNS": p.tiles.columns,
    }  # fmt: skip
    return _Common(
        rows, row_tiles, items * heads * row_tiles,
        p.q if p.lengths is None else p.lengths,
        p.q if p.seen is None else p.seen,
        p.q if p.table is None else p.table,
        p.alpha if isinstance(p.alpha, Tensor) else p.q,
        0.0 if isinstance(p.alpha, Tensor) else p.alpha - 1.0,
        (heads, q_heads // heads, queries, p.capacity),
        p.band or (UNLIMITED, UNLIMITED),
        (p.k.shape[0], 0 if p.lengths is None else p.lengths.stride(0), *table_steps),
        (0, 0, 0, 0) if p.seen is None else p.seen.stride(),
        reading,
    )  # fmt: skip


class _Parts(NamedTuple):
    """Weighted sums of values (tiles, parts, rows, size), their mass, and largest scores."""

    values: Tensor
    mass: Tensor
    top: Tensor
    soft: bool


def decode(p: Problem) -> Tensor:
    """Context (B, Hq, Lq, Ev)."""
    c = _common(p)
    out = p.q.new_empty(*p.q.shape[:3], p.v.shape[3])
    soft = c.value == 0.0 and _is_number(p.alpha)
    found = _soft_parts(p, c) if soft else _sparse_parts(p, c, out)
    if found is None:
        return out
    splits = found.values.shape[1]
    sum_kernel[(out.shape[:3].numel(),)](
        found.values, found.mass, c.alphas, c.lengths, found.top, out,
        *c.counts, p.v.shape[3], c.row_tiles, splits, c.pages[1],
        SOFT=found.soft, TENSOR=not _is_number(p.alpha),
        LENGTHS=p.lengths is not None, ROWS=c.rows, VALUES=_padded(p.v),
        MANY=_together(p, splits, _padded(p.v)), num_warps=4,
    )  # fmt: skip
    return out


def _is_number(alpha: float | Tensor) -> bool:
    return not isinstance(alpha, Tensor)


def _padded(x: Tensor) -> int:
    return max(16, power_of_two(x.shape[3]))


def _scratch(p: Problem, *shape: int) -> Tensor:
    return p.q.new_empty(shape, dtype=torch.float32)


def _soft_parts(p: Problem, c: _Common) -> _Parts:
    size, value_size, tiles = p.q.shape[3], p.v.shape[3], p.tiles
    sizes, values = _padded(p.q), _padded(p.v)
    splits = _splits(tiles.soft_programs, c.all_tiles, p.blocks)
    parts = _scratch(p, c.all_tiles, splits, c.rows, values)
    mass, top = _scratch(p, 2, c.all_tiles, splits, c.rows)
    soft_kernel[(splits, c.all_tiles)](
        p.q, p.k, p.v, c.seen, c.lengths, c.table, parts, mass, top,
        p.scale, *c.counts, size, value_size, c.row_tiles, *c.band, *c.pages,
        *p.q.stride()[:3], *p.k.stride(), *p.v.stride(), *c.seen_steps,
        **c.reading, MASK=_mask_kind(p.seen),
        K_STRIDED=p.k.stride(3) != 1, V_STRIDED=p.v.stride(3) != 1,
        WHOLE=sizes == size, SIZE=sizes, WHOLE_VALUES=values == value_size, VALUES=values,
        num_warps=tiles.warps, num_stages=_stages(tiles.stages, p.table is not None),
    )  # fmt: skip
    return _Parts(parts, mass, top, True)


def _sparse_parts(p: Problem, c: _Common, out: Tensor) -> _Parts | None:
    """Parts that are still to be added up, or None if ``out`` is written."""
    items, q_heads, queries, size = p.q.shape
    value_size, blocks, line, tiles = p.v.shape[3], p.blocks, p.line, p.tiles
    all_rows = items * q_heads * queries
    kind, near = _kind(p.alpha)
    chosen = {"KIND": kind, "NEAR": near, "TENSOR": not _is_number(p.alpha)}
    scores = _scratch(p, all_rows, line * tiles.columns)
    tops = _scratch(p, all_rows, line)
    sizes = _padded(p.q)
    scores_kernel[(_splits(tiles.programs, c.all_tiles, blocks), c.all_tiles)](
        p.q, p.k, c.alphas, c.seen, c.lengths, c.table, scores, tops,
        p.scale, c.value, *c.counts, size, c.row_tiles, line, *c.band, *c.pages,
        *p.q.stride()[:3], *p.k.stride(), *c.seen_steps,
        **c.reading, TENSOR=chosen["TENSOR"], MASK=_mask_kind(p.seen),
        STRIDED=p.k.stride(3) != 1, WHOLE=sizes == size, SIZE=sizes,
        num_warps=tiles.warps, num_stages=_stages(tiles.stages, p.table is not None),
    )  # fmt: skip
    top, x, low = _scratch(p, 3, all_rows)
    lists = tops.new_empty(all_rows, line, dtype=torch.int32)
    arrived = tops.new_empty(all_rows, dtype=torch.int32)
    solve_kernel[(all_rows,)](
        c.alphas, c.lengths, scores, tops, lists, top, x, low, arrived,
        c.value, _ENOUGH, *c.counts, line, *c.band, c.pages[1],
        **chosen, CAUSAL=p.band is not None,
        LENGTHS=p.lengths is not None,
        HOLD=min(tiles.hold, power_of_two(blocks)), FEW=min(tiles.few, power_of_two(blocks)),
        COLUMNS=tiles.columns, MANY=min(tiles.many, power_of_two(blocks)),
        # sums of the threads of a row must not differ in the last digit: see reductions.solid
        num_warps=tiles.solve_warps, enable_fp_fusion=False,
    )  # fmt: skip
    splits = _splits(tiles.value_programs, c.all_tiles, blocks, tiles.value_parts)
    longest = pieces(blocks, splits)
    real = min(c.rows, power_of_two(p.rows))
    values = _padded(p.v)
    by_last = splits * real * values <= _MOST_ADDED and real * values <= _MOST_OF_PART
    parts = _scratch(p, c.all_tiles, splits, c.rows, values)
    mass = _scratch(p, c.all_tiles, splits, c.rows)
    shares = tops.new_empty(c.all_tiles, splits, longest, dtype=torch.int32)
    parts_kernel[(splits, c.all_tiles)](
        p.v, c.alphas, c.lengths, c.table, scores, tops, top, x, low, shares, parts, mass,
        arrived, out, c.value, *c.counts, value_size, c.row_tiles, line, longest,
        *c.band, *c.pages, *p.v.stride(),
        **chosen, **c.reading, ROUGH=p.q.dtype != torch.float32,
        STRIDED=p.v.stride(3) != 1, REAL=real,
        MANY=max(1, min(tiles.value_many // real, power_of_two(blocks))),
        WHOLE=values == value_size, VALUES=values,
        ADD=_together(p, splits, real * values) if by_last else 0,
        maxnreg=tiles.registers if c.rows * values * p.v.element_size() <= 4096 else None,
        num_warps=tiles.value_warps, num_stages=_stages(tiles.stages, True),
    )  # fmt: skip
    return None if by_last else _Parts(parts, mass, top, False)
