"""How a row is laid out over the threads of a program; a function of its length and dtype alone.

A tile is (columns, rows, columns): of a row, ``wide`` neighbouring columns lie side by side over
the lanes, and ``deep`` such pieces lie one after the other in each thread, where sums over them
cost no communication. Several short rows share a warp. Rows that do not fit are streamed.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
from torch import Tensor

_REGISTERS = 8192  # columns of a row that are held in registers
_LANES = 4  # threads that share the shortest row: their loads make up a sector of memory


class Tile(NamedTuple):
    """Sizes are powers of two; ``group`` columns of a thread count as one where tops are taken."""

    deep: int
    rows: int
    wide: int
    warps: int
    stream: bool
    group: int

    @property
    def sizes(self) -> dict[str, int]:
        """As arguments of a kernel."""
        return {
            "DEEP": self.deep,
            "ROWS": self.rows,
            "WIDE": self.wide,
            "STREAM": self.stream,
            "num_warps": self.warps,
        }


def tile_of(x: Tensor) -> Tile:
    """The tile for the rows of ``x``."""
    d, vector = x.shape[-1], 16 // x.element_size()
    if d > _REGISTERS:
        return Tile(1, 1, 4096, 8, True, 1)
    padded = max(triton.next_power_of_2(d), _LANES * vector)
    if padded <= 1024:
        rows = min(max(512 // padded, 1), 32 // _LANES)
        wide = min(32 // rows * vector, padded)
        return Tile(padded // wide, rows, wide, 1, False, min(4, vector))
    warps = padded // 1024
    wide = 32 * warps * vector
    return Tile(padded // wide, 1, wide, warps, False, vector)
