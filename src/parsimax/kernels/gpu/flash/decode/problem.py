"""What one step of decoding is about, and how its work is cut into tiles."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .bounds import Bounds
from .lists import ALIGNED


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
    looking_programs: int = 264  # that read bounds of blocks
    looked_at: int = 64  # bounds that are read together
    looking_stages: int = 3
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
        tiles = Tiles(columns=32, rows=16, looked_at=32, looking_stages=1)
    if isinstance(alpha, Tensor) and q.shape[0] * q.shape[1] * q.shape[2] <= _FEW_ROWS:
        # an alpha of a head may be near 1, where most blocks live and every weight is a power: more
        # warps and programs take 117 in place of 182 us for solver and values of 1 x 32 / 8 heads
        tiles = tiles._replace(solve_warps=16, few=256, value_programs=528)
    return tiles


class Problem(NamedTuple):
    """Queries (B, Hq, Lq, E) whose last stride is 1, and caches of as many heads or fewer.

    Args:
        k: Keys (B, H, capacity, E), or pages of them (pages, H, page size, E), with any strides.
        v: Values in the same way.
        lengths: Integers (B,); None is all.
        table: Integers (B, pages of an item); None is a cache that is not in pages.
        seen: Bool, or numbers to add, (B, Hq, Lq, capacity) with any strides; None sees everything.
        alpha: From 1 up, or a tensor (Hq,) without gaps.
        band: How far before and after its position a query sees; None is without limit.
        tiles: None is :func:`tiles_for`.
        bounds: Of blocks of keys, as many of which make up a block of a tile.
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
    tiles: Tiles | None = None
    bounds: Bounds | None = None

    @property
    def capacity(self) -> int:
        """Keys that an item has room for."""
        return self.k.shape[2] * (1 if self.table is None else self.table.shape[1])

    @property
    def rows(self) -> int:
        """Queries that share keys."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]


class Cut(NamedTuple):
    """A problem in blocks and tiles."""

    tiles: Tiles
    blocks: int  # of keys
    line: int  # blocks that a row of scratch has room for: an aligned number of them
    rows: int  # of a tile
    real: int  # of these, a power of two: there are no more queries
    row_tiles: int  # of the queries that share keys
    all_tiles: int
    all_rows: int

    @classmethod
    def of(cls, p: Problem) -> Cut:
        """With the tiles that are asked for, or those that suit it."""
        tiles = tiles_for(p.q, p.v, p.alpha) if p.tiles is None else p.tiles
        items, q_heads, queries, _ = p.q.shape
        blocks, aligned = pieces(p.capacity, tiles.columns), int(ALIGNED.value)
        there = power_of_two(p.rows)
        rows = min(tiles.rows, max(16, there))
        row_tiles = pieces(p.rows, rows)
        return cls(
            tiles, blocks, pieces(blocks, aligned) * aligned, rows, min(rows, there), row_tiles,
            items * p.k.shape[1] * row_tiles, items * q_heads * queries,
        )  # fmt: skip

    def splits(self, programs: int, least: int = 1) -> int:
        """Into how many parts the keys of a tile go so that there are as many programs."""
        return min(self.blocks, max(least, programs // self.all_tiles))
