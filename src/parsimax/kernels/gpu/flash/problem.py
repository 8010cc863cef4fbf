"""One problem of attention over many keys, and the tiles that it goes into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.sizes import pieces

UNLIMITED = 1 << 30
FROM_BETA = 0.28  # below alpha - 1, almost all scores of a row lie above a first threshold


class First(NamedTuple):
    """The same for the first kernel; multiples of those of :class:`Tiles`."""

    rows: int = 128
    columns: int = 128
    warps: int = 8
    stages: int = 3
    registers: int | None = 128


class Tiles(NamedTuple):
    """Queries and keys of a tile, and how many warps share one."""

    rows: int = 64
    columns: int = 64
    warps: int = 4
    stages: int = 3
    first: First = First()
    threshold_registers: int | None = 96  # that a thread may have, so that more of them fit
    row_registers: int | None = 168  # the same where the output and gradients of queries are found
    hold: int = 64  # scores above a first threshold that a list of them has room for; 0 has none
    listed: int | None = 48  # blocks from which on results may come from lists; None: never


_TILES = Tiles()


def tiles_for(q: Tensor, v: Tensor) -> Tiles:
    """What fits into the memory that the warps of a tile share."""
    width = max(q.shape[-1], v.shape[-1]) * q.element_size()
    if width <= 128:
        return Tiles()
    if width <= 256:
        return Tiles(
            stages=2,
            first=First(stages=2),
            threshold_registers=128,
            row_registers=None,
            listed=36 if q.element_size() == 2 else 24,  # products of float32 take longer
        )
    if width <= 512:
        return Tiles(64, 32, 4, 1, First(64, 32, 4, 1, None), None, None, listed=None)
    return Tiles(32, 16, 4, 1, First(32, 16, 4, 1, None), None, None, listed=None)


def countable(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the 16 bits of a list can name every block of queries and of keys."""
    tiles = tiles_for(q, v)
    return max(pieces(q.shape[2], tiles.rows), pieces(k.shape[2], tiles.columns)) <= 1 << 15


class Packed(NamedTuple):
    """Sequences one after the other, (1, H, all queries, E), and where each begins and ends.

    Args:
        q_starts: Integers (sequences + 1,) from 0 to all queries.
        k_starts: The same of the keys.
        most_queries: No sequence has more.
        most_keys: The same of the keys.
        bottom_right: The last query of a sequence stands at its last key, not the first at the
            first.
    """

    q_starts: Tensor
    k_starts: Tensor
    most_queries: int
    most_keys: int
    bottom_right: bool


@dataclass(frozen=True)
class Problem:
    """Queries (B, H, Lq, E), keys and values of as many heads or fewer; last strides are 1.

    Args:
        seen: Bool, or numbers to add, (B, H, Lq, Lk) with any strides; None sees everything.
        alpha: From 1 up, or a tensor of one value a head.
        band: How far before and after its position a query sees; None is without limit.
        offset: The key at which the first query stands.
        lengths: (B,) of the keys.
        packed: Of sequences; these have neither ``seen`` nor ``lengths`` nor ``offset``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor | None
    alpha: float | Tensor
    scale: float
    band: tuple[int, int] | None = None
    offset: int = 0
    lengths: Tensor | None = None
    tiles: Tiles = _TILES
    packed: Packed | None = None

    @property
    def row_blocks(self) -> int:
        """Blocks of queries; of packed sequences, of all of them."""
        queries = self.q.shape[2]
        if self.packed is None:
            return pieces(queries, self.tiles.rows)
        tall = self.tiles.first.rows
        return _room(queries, self.packed.q_starts, tall) * (tall // self.tiles.rows)

    @property
    def key_blocks(self) -> int:
        """Blocks of keys that a query may see; of packed sequences, of the longest."""
        keys = self.k.shape[2] if self.packed is None else self.packed.most_keys
        return pieces(keys, self.tiles.columns)

    @property
    def all_key_blocks(self) -> int:
        """Blocks of keys."""
        if self.packed is None:
            return self.key_blocks
        return _room(self.k.shape[2], self.packed.k_starts, self.tiles.columns)

    @property
    def seeing_row_blocks(self) -> int:
        """Blocks of queries that a key may be seen by."""
        if self.packed is None:
            return self.row_blocks
        return pieces(self.packed.most_queries, self.tiles.rows)


def _room(count: int, starts: Tensor, size: int) -> int:
    """The most blocks of some size that sequences of so many rows together can have."""
    return (count + (starts.shape[0] - 1) * (size - 1)) // size


def of_keys(p: Problem) -> bool:
    """Whether a mask is bool and the same for all heads and queries."""
    if p.seen is None or p.seen.dtype != torch.bool:
        return False
    sides = zip(p.seen.shape[1:3], p.seen.stride()[1:3], strict=True)
    return all(size == 1 or stride == 0 for size, stride in sides)


def masks_queries(p: Problem) -> bool:
    """Whether a mask has something to say of each query and key, and not of keys alone."""
    return p.seen is not None and not of_keys(p)


def by_rows(p: Problem) -> bool:
    """Whether results and gradients lie as (B, rows, H, size): where queries do, and if packed.

    A model's projections lie like that, and need no copy then, nor do those of its gradients.
    """
    return p.packed is not None or p.q.stride(1) < p.q.stride(2)


def rough(p: Problem) -> bool:
    """Whether powers need no more digits than numbers of 16 bits have."""
    return p.q.dtype != torch.float32


def keeps_keys(p: Problem) -> bool:
    """Whether keys of queries are kept, and results found from them alone, where they are few.

    Scores must then be those of queries and keys and nothing else, since they are found anew, with
    other digits at the end; above alpha = 2 a weight may hang on these.
    """
    if p.tiles.listed is None or p.key_blocks < p.tiles.listed or p.tiles.hold == 0:
        return False
    plain = p.seen is None or p.seen.dtype == torch.bool
    return plain and (isinstance(p.alpha, Tensor) or FROM_BETA <= p.alpha - 1.0 <= 1.0)


def most_chosen(p: Problem) -> int:
    """Keys of a query that there is room for; with 65,536 normal scores 62 have weight at 1.5.

    An even number, since two are read at a time.
    """
    return 192 if isinstance(p.alpha, Tensor) or p.alpha < 1.45 else 96
