"""What the host calls: forward and backward of one problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.newton import ALWAYS, ENTMAX15, NEAR_ONE, NEVER, POWER, SPARSEMAX
from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .backward import key_kernel, query_kernel
from .blocks import BITS, OF_KEYS
from .counting import count_kernel
from .lists import compact
from .output import output_kernel
from .sequences import FIELDS, tables_kernel
from .spans import FIELDS as OF_SPAN
from .spans import SPANS, spans_kernel
from .threshold import threshold_kernel
from .tops import tops_kernel
from .weights import ANY, STEEP

UNLIMITED = 1 << 30
# largest scores of so many tall blocks of queries at a time, or more if they take so few bytes
_TOGETHER = 528
_SCRATCH = 1 << 28
_MASK_AT_ONCE = 4096  # keys


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


_TILES = Tiles()


def tiles_for(q: Tensor, v: Tensor) -> Tiles:
    """What fits into the memory that the warps of a tile share."""
    width = max(q.shape[-1], v.shape[-1]) * q.element_size()
    if width <= 128:
        return Tiles()
    if width <= 256:
        return Tiles(stages=2, first=First(stages=2), threshold_registers=128, row_registers=None)
    if width <= 512:
        return Tiles(64, 32, 4, 1, First(64, 32, 4, 1, None), None, None)
    return Tiles(32, 16, 4, 1, First(32, 16, 4, 1, None), None, None)


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
        alpha: Above 1, or a tensor of one value a head.
        band: How far before and after its position a query sees; None is without limit.
        offset: The key at which the first query stands.
        lengths: (B,) of the keys.
        packed: Of sequences; these have neither ``seen`` nor ``lengths`` nor ``offset``. Results
            and gradients then lie as (all queries, H, size).
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


class Saved(NamedTuple):
    """What the backward needs of the forward."""

    top: Tensor
    x: Tensor
    live: Tensor  # (B, H, row blocks, key blocks)
    row_lists: tuple[Tensor, Tensor]
    mean: Tensor


def _of_keys(p: Problem) -> bool:
    """Whether a mask is bool and the same for all heads and queries."""
    if p.seen is None or p.seen.dtype != torch.bool:
        return False
    sides = zip(p.seen.shape[1:3], p.seen.stride()[1:3], strict=True)
    return all(size == 1 or stride == 0 for size, stride in sides)


def _mask_kind(seen: Tensor | None) -> int:
    return 0 if seen is None else 1 if seen.dtype == torch.bool else 2


def _kind(alpha: float | Tensor) -> tuple[int, int]:
    if isinstance(alpha, Tensor):
        return ANY.value, NEVER.value
    kinds = {1.5: ENTMAX15.value, 2.0: SPARSEMAX.value}
    if alpha > 2.0:
        return STEEP.value, NEVER.value
    near = ALWAYS.value if alpha - 1 < NEAR_ONE.value else NEVER.value
    return kinds.get(alpha, POWER.value), near


def _options(p: Problem) -> dict[str, Any]:
    kind, near = _kind(p.alpha)
    size = max(16, power_of_two(p.q.shape[3]))
    return {
        "KIND": kind,
        "NEAR": near,
        "TENSOR": isinstance(p.alpha, Tensor),
        "CAUSAL": p.band is not None,
        "MASK": OF_KEYS.value if _of_keys(p) else _mask_kind(p.seen),
        "LENGTHS": SPANS.value if _of_keys(p) else int(p.lengths is not None),
        "PACKED": 0 if p.packed is None else 2 if p.packed.bottom_right else 1,
        "ROWS": p.tiles.rows,
        "COLUMNS": p.tiles.columns,
        "EVEN": _even(p),
        "SIZE": size,
        "num_warps": p.tiles.warps,
        "num_stages": p.tiles.stages,
    }


def _even(p: Problem) -> bool:
    """Whether all blocks are whole, so that nothing has to be masked but what a band hides."""
    if p.lengths is not None or p.packed is not None:
        return False
    return p.q.shape[2] % p.tiles.rows == 0 and p.k.shape[2] % p.tiles.columns == 0


def _most(p: Problem, registers: int | None) -> int | None:
    """What a tile of a mask needs would not fit."""
    return registers if p.seen is None or _of_keys(p) else None


def _pointers(p: Problem, table: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(mask, alphas, lengths); what is not there is not read.

    A table stands in the place of lengths, and has what a mask of keys alone comes to.
    """
    lengths = p.lengths if table is None else table
    seen = p.seen
    if table is not None and _of_keys(p):
        seen = table[OF_SPAN * p.q.shape[0] :]
    return (
        p.q if seen is None else seen,
        p.alpha if isinstance(p.alpha, Tensor) else p.q,
        p.q if lengths is None else lengths,
    )


def _value(p: Problem) -> float:
    return 0.0 if isinstance(p.alpha, Tensor) else p.alpha - 1.0


def _band(p: Problem) -> tuple[int, int, int]:
    return p.offset, *(p.band or (UNLIMITED, UNLIMITED))


def _strides(p: Problem) -> tuple[int, ...]:
    seen = (0, 0, 0, 0) if p.seen is None else p.seen.stride()
    if _of_keys(p):
        seen = (_words(p), 0, 0, 0)
    strides = [x.stride()[:3] for x in (p.q, p.k, p.v)]
    if p.packed is not None:  # an item is counted by its first row
        strides = [(row, head, row) for _, head, row in strides]
    return (*strides[0], *strides[1], *strides[2], *seen)


def _all_sizes(p: Problem) -> tuple[int, ...]:
    heads = p.q.shape[1]
    group = heads // p.k.shape[1]
    lengths = (p.q.shape[2], p.k.shape[2], p.q.shape[3], p.v.shape[3])
    return (heads, group, *lengths)


def _tables(p: Problem) -> tuple[Tensor, Tensor]:
    """Of packed sequences, where the one of each block of queries lies, and of each of keys."""
    assert p.packed is not None
    starts = p.packed.q_starts, p.packed.k_starts
    rows = p.q.new_empty(p.row_blocks, FIELDS, dtype=torch.int32)
    columns = p.q.new_empty(p.all_key_blocks, FIELDS, dtype=torch.int32)
    items = starts[0].shape[0] - 1
    tables_kernel[(items,)](
        *starts, rows, columns, items, p.q.shape[2], p.k.shape[2],
        p.packed.most_queries, p.packed.most_keys, p.row_blocks, p.all_key_blocks,
        ROWS=p.tiles.rows, TALL=p.tiles.first.rows, COLUMNS=p.tiles.columns, MANY=64,
    )  # fmt: skip
    return rows, columns


def _words(p: Problem) -> int:
    """That hold a bit for each key of all blocks."""
    wide = p.tiles.first.columns
    return pieces(pieces(p.k.shape[2], wide) * wide, BITS.value)


def spans(p: Problem) -> Tensor | None:
    """Of a mask of keys alone, the numbers of all items, and then their bits."""
    if p.seen is None or not _of_keys(p):
        return None
    items, keys, words = p.q.shape[0], p.k.shape[2], _words(p)
    table = p.q.new_empty(items * (OF_SPAN + words), dtype=torch.int32)
    spans_kernel[(items,)](
        p.seen, table if p.lengths is None else p.lengths, table, table[OF_SPAN * items :],
        keys, words, p.seen.stride(0), p.seen.stride(3),
        LENGTHS=p.lengths is not None, MANY=min(_MASK_AT_ONCE, BITS.value * power_of_two(words)),
        num_warps=8,
    )  # fmt: skip
    return table


def results(p: Problem, like: Tensor, size: int) -> Tensor:
    """Room for a result of as many heads and rows."""
    items, heads, rows = like.shape[:3]
    if p.packed is None:
        return like.new_empty(items, heads, rows, size)
    return like.new_empty(items, rows, heads, size).transpose(1, 2)


def _rough(p: Problem) -> bool:
    """Whether powers need no more digits than numbers of 16 bits have."""
    return p.q.dtype != torch.float32


class Enough(NamedTuple):
    """The surplus of mass that the last step may leave.

    Where it is left in training, the output takes another step; but w, the mean of the values, is
    added up before it. It moves the more the steeper weights rise from zero: at alpha = 1 not at
    all, since all weights then grow by the same factor. Towards 2 a key enters with ever more of
    its influence at once.

    Args:
        gentle: The most, for alphas towards 1.
        even: At alpha = 1.5; below, it may be more in proportion to 1 / (alpha - 1).
        steep: At alpha = 1.65.
        fall: How often it is halved for one more in alpha from there on, up to 1.85.
    """

    gentle: float
    even: float
    steep: float
    fall: float = 0.0


_EXACTLY = Enough(1e-6, 1e-6, 1e-6)  # what float32 can just tell


def _enough(p: Problem, train: bool) -> Enough:
    if not _rough(p):
        return _EXACTLY
    if p.q.dtype == torch.bfloat16:
        return Enough(2.5e-3, 5e-4, 3e-4, 40.0) if train else Enough(3e-4, 3e-4, 3e-4)
    return Enough(1e-4, 2e-5, 1e-5, 20.0) if train else Enough(5e-5, 5e-5, 5e-5)


class Thresholds(NamedTuple):
    """Of every query; and the live blocks of each block of queries, as a map and as lists."""

    top: Tensor
    x: Tensor
    live: Tensor  # (B, H, row blocks, key blocks)
    places: Tensor  # the same
    counts: Tensor  # (B, H, row blocks)


def thresholds(p: Problem, enough: Enough, table: Tensor | None = None) -> Thresholds:
    """Where weights begin, and which blocks of keys have any; for the table see _pointers."""
    items, heads, queries, size = p.q.shape
    first, rows = p.tiles.first, p.tiles.rows
    top, x = (p.q.new_empty(items, heads, queries, dtype=torch.float32) for _ in range(2))
    live = p.q.new_empty(items, heads, p.row_blocks, p.key_blocks, dtype=torch.int8)
    tall_blocks, grains = pieces(p.row_blocks * rows, first.rows), first.rows // rows
    tall = items * heads * tall_blocks
    chunk = min(tall, max(_TOGETHER, _SCRATCH // (4 * p.key_blocks * first.rows)))
    tops = p.q.new_empty(chunk, grains, p.key_blocks, rows, dtype=torch.float32)
    places = torch.empty_like(live, dtype=torch.int16)
    counts = live.new_empty(items, heads, p.row_blocks, dtype=torch.int32)
    seen, alphas, lengths = _pointers(p, table)
    strides = _strides(p)
    strides = (*strides[:6], *strides[9:])
    group, keys, options = heads // p.k.shape[1], p.k.shape[2], _options(p)
    options["WHOLE"] = options["SIZE"] == size
    many = 16 if p.key_blocks <= 64 else 32  # blocks whose largest scores are looked at together
    names = ("CAUSAL", "MASK", "LENGTHS", "PACKED", "COLUMNS", "WHOLE", "SIZE")
    wide = {name: options[name] for name in names} | {
        "ROWS": first.rows, "GRAIN": rows, "WIDE": first.columns,
        "num_warps": first.warps, "num_stages": first.stages, "maxnreg": _most(p, first.registers),
    }  # fmt: skip
    for tile in range(0, tall, chunk):
        count = min(chunk, tall - tile)
        tops_kernel[(count,)](
            p.q, p.k, seen, lengths, top, tops, p.scale, heads, group, queries, keys, size,
            tile, tall_blocks, p.key_blocks, *_band(p), *strides, **wide,
        )  # fmt: skip
        threshold_kernel[(count * grains,)](
            p.q, p.k, seen, alphas, lengths, top, x, live, tops, places, counts,
            p.scale, _value(p), *enough, heads, group, queries, keys, size,
            tile, tall_blocks, p.row_blocks, p.key_blocks, *_band(p), *strides,
            **options, GRAINS=grains, MANY=many,
            maxnreg=_most(p, p.tiles.threshold_registers),
        )  # fmt: skip
    return Thresholds(top, x, live, places, counts)


def key_lists(p: Problem, live: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor]:
    """(places, counts) of the live blocks of queries of each block of keys."""
    items, heads, rows, columns = live.shape
    lines, length = p.all_key_blocks, p.seeing_row_blocks
    places = live.new_empty(items, heads, lines, length, dtype=torch.int16)
    counts = live.new_empty(items, heads, lines, dtype=torch.int32)
    compact[(lines * items * heads,)](
        live, places, counts, live if table is None else table, lines, length, rows, columns,
        PACKED=p.packed is not None, ROWS=p.tiles.rows, MANY=min(256, power_of_two(length)),
    )  # fmt: skip
    return places, counts


def forward(p: Problem, train: bool) -> tuple[Tensor, Saved]:
    """Context (B, H, Lq, Ev), and what the backward needs if there will be one."""
    items, heads, _, size = p.q.shape
    table = spans(p) if p.packed is None else _tables(p)[0]
    top, x, live, *row_lists = thresholds(p, _enough(p, train), table)
    value_size = p.v.shape[3]
    out = results(p, p.q, value_size)
    # not rounded to half: gradients are differences to it
    mean = torch.empty_like(out, dtype=torch.float32) if train else out
    seen, alphas, lengths = _pointers(p, table)
    options, values = _options(p), max(16, power_of_two(value_size))
    whole = options["SIZE"] == size and values == value_size
    output_kernel[(p.row_blocks * items * heads,)](
        p.q, p.k, p.v, seen, alphas, lengths, top, x, *row_lists, out, mean,
        p.scale, _value(p), *_all_sizes(p), p.row_blocks, p.key_blocks, *_band(p), *_strides(p),
        **options, TRAIN=train, ROUGH=_rough(p), WHOLE=whole, VALUES=values,
        maxnreg=None if options["TENSOR"] else _most(p, p.tiles.row_registers),
    )  # fmt: skip
    return out, Saved(top, x, live, (row_lists[0], row_lists[1]), mean)


class Gradients(NamedTuple):
    """Of queries, keys, values; of alpha (B, H) and of what is added to the scores, if wanted."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None
    scores: Tensor | None


def backward(
    p: Problem, saved: Saved, g: Tensor, want_alpha: bool = False, want_scores: bool = False
) -> Gradients:
    """All gradients; that of the scores has a number for each query and key."""
    items, heads, queries, size = p.q.shape
    g = g.contiguous() if p.packed is None else g.transpose(1, 2).contiguous().transpose(1, 2)
    value_size = p.v.shape[3]
    gq, gk = (results(p, x, size) for x in (p.q, p.k))
    gv = results(p, p.v, value_size)
    table, of_keys = (spans(p),) * 2 if p.packed is None else _tables(p)
    lines = saved.top.new_empty(*saved.top.shape, 2)  # see query_kernel
    change = saved.top.new_empty(items, heads, p.row_blocks) if want_alpha else saved.top
    gs = saved.top.new_zeros(items, heads, queries, p.k.shape[2]) if want_scores else saved.top
    seen, alphas, lengths = _pointers(p, table)
    options, values = _options(p), max(16, power_of_two(value_size))
    options |= {"ROUGH": _rough(p), "VALUES": values}
    options["WHOLE"] = options["SIZE"] == size and values == value_size
    numbers = (p.scale, _value(p), *_all_sizes(p), p.row_blocks, p.key_blocks)
    places = (*_band(p), *_strides(p))
    query_kernel[(p.row_blocks * items * heads,)](
        p.q, p.k, p.v, seen, alphas, lengths, saved.top, saved.x, *saved.row_lists,
        g, saved.mean, gq, lines, change, gs, *numbers, *places,
        **options, WANT=want_alpha, WANT_SCORES=want_scores,
        maxnreg=_most(p, p.tiles.row_registers),
    )  # fmt: skip
    numbers = (*numbers[:-2], p.seeing_row_blocks, p.all_key_blocks)
    seen, alphas, lengths = _pointers(p, of_keys)
    key_kernel[(p.all_key_blocks * items * p.k.shape[1],)](
        p.q, p.k, p.v, seen, alphas, lengths, *key_lists(p, saved.live, of_keys),
        g, lines, gk, gv, *numbers, *places, **options,
    )  # fmt: skip
    return Gradients(
        gq, gk, gv, change.sum(-1) if want_alpha else None, gs if want_scores else None
    )


class Counts(NamedTuple):
    """Of each query (B, H, Lq), and of each block of them."""

    tau: Tensor
    threshold: Tensor
    support: Tensor
    visible: Tensor
    live_blocks: Tensor
    visible_blocks: Tensor


def count(p: Problem, block: int) -> Counts:
    """What is visible and what has weight; ``block`` is a multiple of 16."""
    items, heads, queries, size = p.q.shape
    keys = p.k.shape[2]
    table = spans(p)
    top, x, live, _, _ = thresholds(p, _EXACTLY, table)
    side = math.gcd(block, p.tiles.rows, p.tiles.columns)
    blocks = pieces(queries, side), pieces(keys, side)
    tau, low = torch.empty_like(top), torch.empty_like(top)
    support, visible = (torch.empty_like(top, dtype=torch.int32) for _ in range(2))
    touched = live.new_zeros(items, heads, *blocks)
    strides, options = _strides(p), _options(p)
    del options["PACKED"], options["EVEN"]
    count_kernel[(blocks[0] * items * heads,)](
        p.q, p.k, *_pointers(p, table), top, x, live, tau, low, support, visible, touched,
        p.scale, _value(p), heads, heads // p.k.shape[1], queries, keys, size, *blocks,
        p.row_blocks, p.key_blocks, *_band(p), *strides[:6], *strides[9:],
        **options, SIDE=side, WHOLE=options["SIZE"] == size,
    )  # fmt: skip
    together = block // side
    padded = torch.nn.functional.pad(touched, (0, -blocks[1] % together, 0, -blocks[0] % together))
    groups = padded.unflatten(-1, (-1, together)).unflatten(-3, (-1, together)).amax((-1, -3))
    return Counts(
        tau, low, support.long(), visible.long(), (groups > 1).sum(-1), (groups > 0).sum(-1)
    )
