"""The matrix of scores cut into tiles: a few queries at a time, with the keys they may see.

A mapping needs whole rows, so a tile has all visible keys of its queries; those beyond a causal
band or a window, and those beyond the longest item, are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .visibility import Band

_LEAST_ROWS = 128  # below this, products of matrices slow down
_MOST_ROWS = 128  # of a band: the more rows, the more of its tile is hidden


@dataclass(frozen=True)
class Tile:
    """Slices of the scores (..., Lq, Lk)."""

    lead: tuple[slice, ...]
    rows: slice
    columns: slice

    def cut(self, x: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to the scores; sizes of one belong to every tile."""
        return x[_fitting((*self.lead, self.rows, self.columns), x.shape)]

    def of_queries(self, x: Tensor) -> Tensor:
        """The part of queries, or of what has their layout."""
        return x[_fitting((*self.lead, self.rows, slice(None)), x.shape)]

    def of_keys(self, x: Tensor, group: int) -> Tensor:
        """The part of keys or values, of which ``group`` query heads share a head."""
        lead = self.lead
        if group > 1:
            heads = lead[-1]
            lead = (*lead[:-1], slice(heads.start // group, heads.stop // group))
        return x[_fitting((*lead, self.columns, slice(None)), x.shape)]


def _fitting(slices: tuple[slice, ...], shape: torch.Size) -> tuple[slice, ...]:
    missing = len(slices) - len(shape)
    pairs = zip(slices[missing:], shape, strict=True)
    return tuple(slice(None) if size == 1 else part for part, size in pairs)


def tiles(
    shape: torch.Size,
    band: Band,
    room: int,
    *,
    heads: int = 1,
    longest: Sequence[int] | None = None,
    block: int = 1,
) -> Iterator[Tile]:
    """Tiles of about ``room`` scores that cover all that is visible.

    Args:
        heads: Of these, the last leading dimension, a tile has a multiple.
        longest: How many keys there are for each index of the first dimension; None is all.
        block: Tiles start at multiples of this, in queries and in keys.
    """
    *lead, queries, keys = shape
    rows = _rows(queries, keys, band, room, block)
    several = room // max(1, rows * min(keys, _reach(band, keys) + rows))
    for outer in _pieces(lead, several, heads):
        limit = keys if longest is None else max(longest[outer[0]] if outer else longest)
        for start in range(0, queries, rows):
            stop = min(start + rows, queries)
            columns = _columns(start, stop, band, limit)
            if columns.start < columns.stop:
                first = columns.start // block * block
                yield Tile(outer, slice(start, stop), slice(first, columns.stop))


def _reach(band: Band, keys: int) -> int:
    if band.left is None or band.right is None:
        return keys
    return min(keys, band.left + band.right)


def _rows(queries: int, keys: int, band: Band, room: int, block: int) -> int:
    """Queries of a tile."""
    most = queries if band.left is None and band.right is None else _MOST_ROWS
    width = max(1, min(keys, _reach(band, keys) + most))
    rows = max(_LEAST_ROWS, min(most, room // width))
    return -(-rows // block) * block


def _columns(start: int, stop: int, band: Band, keys: int) -> slice:
    """Keys that any of these queries may see."""
    first = 0 if band.left is None else max(0, start + band.offset - band.left)
    last = keys if band.right is None else min(keys, stop + band.offset + band.right)
    return slice(first, last)


def _pieces(lead: Sequence[int], several: int, heads: int) -> Iterator[tuple[slice, ...]]:
    """Pieces of the leading dimensions, of ``several`` entries where that can be."""
    cuts: list[list[slice]] = []
    for size, unit in zip(reversed(lead), (heads, *itertools.repeat(1, len(lead))), strict=False):
        step = max(unit, min(size, several) // unit * unit)
        cuts.insert(0, [slice(i, min(i + step, size)) for i in range(0, size, step)])
        several = several // size if step == size else 1
    yield from itertools.product(*cuts)


def fill_hidden(
    scores: Tensor, tile: Tile, band: Band, masks: Sequence[Tensor | None], value: float
) -> None:
    """Write ``value`` into a tile wherever a mask or the band hides a key."""
    for mask in masks:
        if mask is not None:
            scores.masked_fill_(~tile.cut(mask), value)
    rows, columns = tile.rows, tile.columns
    # only the keys at the two ends are hidden from any query of a tile
    if band.right is not None:
        edge = max(columns.start, rows.start + band.offset + band.right + 1)
        if edge < columns.stop:
            ahead = _ahead(tile, slice(edge, columns.stop), band, scores.device)
            scores[..., edge - columns.start :].masked_fill_(ahead > band.right, value)
    if band.left is not None:
        edge = min(columns.stop, rows.stop - 1 + band.offset - band.left)
        if edge > columns.start:
            ahead = _ahead(tile, slice(columns.start, edge), band, scores.device)
            scores[..., : edge - columns.start].masked_fill_(ahead < -band.left, value)


def _ahead(tile: Tile, columns: slice, band: Band, device: torch.device) -> Tensor:
    """How far each key lies ahead of each query."""
    position = torch.arange(tile.rows.start, tile.rows.stop, device=device) + band.offset
    keys = torch.arange(columns.start, columns.stop, device=device)
    return keys - position.unsqueeze(1)
