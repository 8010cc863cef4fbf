"""Rows as tiles: how many of them a program takes, and how it walks along them.

A short row lies whole in the registers of one program, beside its neighbours; a long one is read
again, chunk by chunk, in every sweep. The kernels are written once for both: a sweep is a loop over
chunks, and of a short row there is one chunk, which has already been loaded (``ONE``).

The shape depends on the row's length alone, so a row gives the same bits in every batch.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .approx import rounded
from .sizes import power_of_two

_LONGEST = 8192  # a row that one program holds in registers
_CHUNK = 4096  # what it holds of a longer one
_TILE = 1024  # elements a program takes at least
_MOST = 32  # rows a program takes at most: what there is once a row takes registers, too
_PER_WARP = 512  # 16 elements a thread, which leaves room for temporaries in float64
_LARGEST = 3e38


@dataclass(frozen=True)
class Tile:
    """``ROWS`` rows of ``COLUMNS`` each; ``ONE`` says that a row needs no second chunk."""

    ROWS: int
    COLUMNS: int
    ONE: bool
    num_warps: int

    @property
    def options(self) -> dict[str, Any]:
        """The same as arguments of a kernel."""
        return {
            "ROWS": self.ROWS,
            "COLUMNS": self.COLUMNS,
            "ONE": self.ONE,
            "num_warps": self.num_warps,
            "enable_fp_fusion": False,  # see reductions.solid
        }


def tile_for(d: int, longest: int = _LONGEST) -> Tile:
    """The tile for rows of length ``d``, of which those up to ``longest`` are held whole."""
    if d > longest:
        return Tile(1, _CHUNK, False, _CHUNK // _PER_WARP)
    columns = max(16, power_of_two(d))
    rows = min(_MOST, max(1, _TILE // columns))
    return Tile(rows, columns, True, max(4, rows * columns // _PER_WARP))


@dataclass(frozen=True)
class RowParameter:
    """One number a row: from a tensor, or the same for all, in two parts of float32.

    Kernels take Python numbers in single precision, and alpha - 1 may be small.
    """

    values: Tensor
    high: float
    low: float
    PER_ROW: bool


def row_parameter(parameter: float | Tensor, like: Tensor) -> RowParameter:
    """``parameter`` as kernels take it; ``like`` stands in for the tensor that is not there."""
    if isinstance(parameter, Tensor):
        return RowParameter(parameter, 0.0, 0.0, True)
    x = float(parameter)
    if not math.isfinite(x):
        return RowParameter(like, x, 0.0, False)
    x = min(max(x, -_LARGEST), _LARGEST)
    high = ctypes.c_float(x).value
    return RowParameter(like, high, x - high, False)


@triton.jit
def row_values(values, high, low, rows, keep, PER_ROW: tl.constexpr):
    """The parameter of each row, in float64."""
    if PER_ROW:
        result = tl.load(values + rows, mask=keep, other=1.0).to(tl.float64)
    else:
        result = tl.zeros(rows.shape, tl.float64) + high + low
    return result


@triton.jit
def load_chunk(x, rows, keep, start, d, other, COLUMNS: tl.constexpr):
    """Columns from ``start`` on in float32; ``other`` beyond the row and in rows not kept."""
    columns = start + tl.arange(0, COLUMNS)
    mask = keep[:, None] & (columns < d)[None, :]
    offsets = rows.to(tl.int64)[:, None] * d + columns[None, :]
    return tl.load(x + offsets, mask=mask, other=other).to(tl.float32)


@triton.jit
def load_scores(z, rows, keep, start, d, COLUMNS: tl.constexpr):
    """The same for scores: -inf where there is none, +inf for NaN so that it shows in a maximum."""
    x = load_chunk(z, rows, keep, start, d, float("-inf"), COLUMNS)
    return tl.where(x != x, float("inf"), x)


@triton.jit
def store_chunk(out, rows, keep, start, d, value, COLUMNS: tl.constexpr):
    """Round float32 once to the dtype of ``out``."""
    columns = start + tl.arange(0, COLUMNS)
    mask = keep[:, None] & (columns < d)[None, :]
    offsets = rows.to(tl.int64)[:, None] * d + columns[None, :]
    tl.store(out + offsets, rounded(value, out.dtype.element_ty), mask=mask)


@triton.jit
def row_tops(tile, z, rows, keep, d, COLUMNS: tl.constexpr, ONE: tl.constexpr):
    """The largest score of each row."""
    top = tl.max(tile, 1)
    if not ONE:
        for start in range(COLUMNS, d, COLUMNS):
            top = tl.maximum(top, tl.max(load_scores(z, rows, keep, start, d, COLUMNS), 1))
    return top
