"""How a row is laid out over the threads of a program; a function of its length and dtype alone.

A tile is (columns, rows, columns): of a row, ``wide`` neighbouring columns lie side by side over
the lanes, and ``deep`` such pieces lie one after the other in each thread, where sums over them
cost no communication. Several short rows share a warp. Rows that do not fit are streamed.
"""

from __future__ import annotations

from typing import NamedTuple

from .sizes import power_of_two

_WARP = 1024  # columns of a row that one warp holds
_REGISTERS = 8192  # columns of a row that are held in registers
_CACHE = 65536  # columns of a row that is still in the cache when it is read again
_LANES = 4  # threads that share the shortest row: their loads make up a sector of memory


class Tile(NamedTuple):
    """Sizes are powers of two; ``group`` columns of a thread count as one where tops are taken."""

    deep: int
    rows: int
    wide: int
    warps: int
    stream: bool
    group: int
    registers: int | None = None  # at most so many a thread, so that more rows are under way

    @property
    def sizes(self) -> dict[str, int]:
        """As arguments of a kernel."""
        options: dict[str, int] = {"enable_fp_fusion": self.rows == 1}  # see reductions.solid
        if self.registers is not None:
            options["maxnreg"] = self.registers
        return {
            **options,
            "DEEP": self.deep,
            "ROWS": self.rows,
            "WIDE": self.wide,
            "STREAM": self.stream,
            "num_warps": self.warps,
        }


def forward_tile(d: int, size: int, powers: bool, tensor: bool) -> Tile:
    """The tile for rows of ``d`` columns of ``size`` bytes that are solved.

    It counts whether by powers, and with one parameter a row. The choices were measured on an H200,
    for 512, 4,096, 32,000 and 128,256 columns.
    """
    if d <= _WARP:
        return _one_warp(d, size)._replace(registers=64 if powers else None)
    if d <= _REGISTERS:
        if tensor:
            return _streamed(1024, 4)
        return (
            _streamed(1024, 2) if powers and size == 2 else _held(d, size, 64 if size == 2 else 32)
        )
    if d <= _CACHE:
        if tensor:
            return _streamed(2048, 8) if size == 2 else _streamed(4096, 16)
        return _streamed(4096, 8 if size == 2 else 16) if powers else _streamed(2048, 8)
    if tensor:
        return _streamed(8192, 32)
    return _streamed(4096, 8 if powers and size == 2 else 16)


def backward_tile(d: int, size: int, tensor: bool) -> Tile:
    """The tile for rows of gradients."""
    if d <= _WARP:
        return _one_warp(d, size)
    if d > _REGISTERS:
        return _streamed(8192, 32)
    return _streamed(1024, 4) if tensor else _held(d, size, 16)


def _one_warp(d: int, size: int) -> Tile:
    vector = 16 // size
    padded = max(power_of_two(d), _LANES * vector)
    rows = min(max(512 // padded, 1), 32 // _LANES)
    wide = min(32 // rows * vector, padded)
    return Tile(padded // wide, rows, wide, 1, False, min(4, vector))


def _held(d: int, size: int, each: int) -> Tile:
    """One row; ``each`` columns a thread."""
    padded = power_of_two(d)
    warps = max(padded // (32 * each), 1)
    vector = 16 // size
    wide = 32 * warps * vector
    return Tile(padded // wide, 1, wide, warps, False, vector)


def _streamed(wide: int, warps: int) -> Tile:
    return Tile(1, 1, wide, warps, True, 1)
