"""What the host calls: forward and backward of one problem."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.newton import ALWAYS, POWER
from parsimax.kernels.gpu.sizes import multiprocessors, pieces, power_of_two

from .arguments import (
    all_sizes,
    band_of,
    kind_of,
    options_of,
    pointers,
    registers_for,
    steps,
    value_of,
)
from .backward import key_kernel, query_kernel
from .blocks import FOLDED
from .candidates import AT_ONCE, FEW, FEW_OF_POWERS, FROM_BETA
from .counting import count_kernel
from .listed import FOR_BACKWARD, FOR_OUTPUT, NEVER_KEPT, PART
from .listed_backward import listed_query_kernel
from .listed_output import listed_output_kernel
from .lists import compact
from .output import output_kernel
from .problem import (
    Chosen,
    Problem,
    by_rows,
    keeps_keys,
    most_chosen,
    results,
    room_for_chosen,
    room_for_keys,
    room_for_slope,
    rough,
)
from .tables import spans, tables
from .threshold import threshold_kernel
from .tops import tops_kernel
from .weights import ANY, STEEP

# largest scores of so many tall blocks of queries at a time, or more if they take so few bytes;
# at the end of each time, some multiprocessors wait for others
_TOGETHER = 528
_SCRATCH = 1 << 28, 1 << 30  # the more, the more the queries themselves take
_SCRATCH_OF_QUERIES = 8
_NUMBERS = 256  # of keys or values that a warp reads at a time where it reads one by one
_AT_A_TIME = 5  # programs of a multiprocessor that look for thresholds; more would wait


class Saved(NamedTuple):
    """What the backward needs of the forward."""

    top: Tensor
    x: Tensor
    live: Tensor  # (B, H, row blocks, key blocks)
    row_lists: tuple[Tensor, Tensor]
    mean: Tensor
    slope: Tensor  # see room_for_slope
    chosen: Chosen


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
    if not rough(p):
        return _EXACTLY
    if p.q.dtype == torch.bfloat16:
        return Enough(2.5e-3, 1.5e-3, 3e-4, 40.0) if train else Enough(3e-4, 3e-4, 3e-4)
    return Enough(1e-4, 2e-5, 1e-5, 20.0) if train else Enough(5e-5, 5e-5, 5e-5)


class Thresholds(NamedTuple):
    """Of every query; and the live blocks of each block of queries, as a map and as lists."""

    top: Tensor
    x: Tensor
    live: Tensor  # (B, H, row blocks, key blocks)
    places: Tensor  # the same
    counts: Tensor  # (B, H, row blocks)


class Results(NamedTuple):
    """Where context, w and the keys that are kept belong; w is the context if there is none."""

    out: Tensor
    mean: Tensor
    chosen: Chosen


def thresholds(
    p: Problem, enough: Enough, table: Tensor | None = None, into: Results | None = None
) -> Thresholds:
    """Where weights begin, and which blocks of keys have any; for the table see ``pointers``.

    Where keys are few, they are kept, and results written ``into`` the given ones.
    """
    items, heads, queries, size = p.q.shape
    first, rows = p.tiles.first, p.tiles.rows
    top, x = (p.q.new_empty(items, heads, queries, dtype=torch.float32) for _ in range(2))
    live = p.q.new_empty(items, heads, p.row_blocks, p.key_blocks, dtype=torch.int8)
    tall_blocks, grains = pieces(p.row_blocks * rows, first.rows), first.rows // rows
    tall = items * heads * tall_blocks
    into = into if keeps_keys(p) else None
    numbers = p.key_blocks  # of a query
    if into is not None:  # scores, and keys if these are not kept
        numbers += most_chosen(p) * (2 if into.mean is into.out else 1)
    scratch = min(max(_SCRATCH[0], _SCRATCH_OF_QUERIES * p.q.nbytes), _SCRATCH[1])
    chunks = pieces(tall, max(_TOGETHER, scratch // (4 * numbers * first.rows)))
    chunk, at_once = pieces(tall, chunks), 2 * multiprocessors(p.q.device)
    if chunk > at_once:  # a multiple of it, so that none are idle at the end
        chunk = min(tall, pieces(chunk, at_once) * at_once)
    tops = p.q.new_empty(chunk, grains, p.key_blocks, rows, dtype=torch.float32)
    places = torch.empty_like(live, dtype=torch.int16)
    counts = live.new_empty(items, heads, p.row_blocks, dtype=torch.int32)
    seen, alphas, lengths = pointers(p, table)
    all_strides = steps(p)
    strides = (*all_strides[:6], *all_strides[9:])  # without those of values
    group, keys, options = heads // p.k.shape[1], p.k.shape[2], options_of(p)
    options["WHOLE"] = options["SIZE"] == size
    many = 16 if p.key_blocks <= 64 else 32  # blocks whose largest scores are looked at together
    names = ("CAUSAL", "MASK", "LENGTHS", "PACKED", "COLUMNS", "WHOLE", "SIZE")
    wide = {name: options[name] for name in names} | {
        "ROWS": first.rows, "GRAIN": rows, "WIDE": first.columns,
        "num_warps": first.warps, "num_stages": first.stages,
        "maxnreg": registers_for(p, first.registers),
    }  # fmt: skip
    hold = _hold(p)
    lists, taken = _room(p, chunk * grains if hold else 0, into is not None)
    choice = _choice(p, into, chunk * grains)
    for tile in range(0, tall, chunk):
        count = min(chunk, tall - tile)
        tops_kernel[(count,)](
            p.q, p.k, seen, lengths, top, tops, p.scale, heads, group, queries, keys, size,
            tile, tall_blocks, p.key_blocks, *band_of(p), *strides, **wide,
        )  # fmt: skip
        threshold_kernel[(count * grains,)](
            p.q, p.k, seen, alphas, lengths, top, x, live, tops, places, counts,
            lists, taken, *choice.tensors,
            p.scale, value_of(p), *enough, heads, group, queries, keys, size,
            tile, tall_blocks, p.row_blocks, p.key_blocks, *lists.shape, *band_of(p),
            *strides, **options, GRAINS=grains, MANY=many, HOLD=hold, CHOOSE=choice.kind,
            FROM_BLOCKS=p.tiles.listed or 0, MOST=most_chosen(p),
            maxnreg=registers_for(p, p.tiles.threshold_registers),
        )  # fmt: skip
        if into is not None:
            listed_output_kernel[(count * grains * (rows // PART.value),)](
                p.q, p.k, p.v, seen, alphas, lengths, top, x, *choice.tensors, *into[:2],
                p.scale, value_of(p), *all_sizes(p), tile, tall_blocks, p.row_blocks,
                *band_of(p), *all_strides, **_listed_options(p), GRAINS=grains, CHOOSE=choice.kind,
            )  # fmt: skip
    return Thresholds(top, x, live, places, counts)


def _hold(p: Problem) -> int:
    """Scores that a list has room for; 0 where there will be no list, as far as can be told."""
    kind, near = kind_of(p.alpha)
    if kind == STEEP.value:
        return p.tiles.hold
    if near == ALWAYS.value or (kind == POWER.value and value_of(p) < FROM_BETA.value):
        return 0
    few = FEW_OF_POWERS if kind in (POWER.value, ANY.value) else FEW
    return p.tiles.hold if p.key_blocks > few.value else 0


def _room(p: Problem, programs: int, keys: bool) -> tuple[Tensor, Tensor]:
    """For the scores above a first threshold, of those programs that run at the same time."""
    if p.tiles.hold % AT_ONCE.value:
        raise ValueError(f"hold must be a multiple of {AT_ONCE.value}, is {p.tiles.hold}")
    places = min(programs, _AT_A_TIME * multiprocessors(p.q.device))
    of_query = p.tiles.hold * FOLDED.value
    if keys:  # beside scores
        of_query *= 2
    shape = places, of_query * p.tiles.rows
    return p.q.new_empty(shape, dtype=torch.float32), p.q.new_zeros(places, dtype=torch.int32)


def _values(p: Problem) -> int:
    """Parts of a value in a tile."""
    return max(16, power_of_two(p.v.shape[3]))


class Choice(NamedTuple):
    """Where a kernel writes keys that are kept: their scores, themselves, how many there are."""

    tensors: tuple[Tensor, Tensor, Tensor]
    kind: int


def _choice(p: Problem, into: Results | None, blocks: int) -> Choice:
    """With room for the scores of so many blocks of queries; those of others come after them."""
    if into is None:
        return Choice((p.q, p.q, p.q), NEVER_KEPT.value)
    keys, counts = into.chosen
    scores = p.q.new_empty(blocks, most_chosen(p), p.tiles.rows, dtype=torch.float32)
    if into.mean is into.out:
        return Choice((scores, room_for_keys(p, blocks), counts), FOR_OUTPUT.value)
    return Choice((scores, keys, counts), FOR_BACKWARD.value)


def _listed_options(p: Problem) -> dict[str, Any]:
    """What kernels are told that read keys or values one by one."""
    options, values = options_of(p), _values(p)
    del options["EVEN"], options["num_stages"]
    if options["KIND"] == ANY.value:  # no list is made for those that other powers are for
        options["KIND"] = POWER.value
    whole = options["SIZE"] == p.q.shape[3] and values == p.v.shape[3]
    bunch = min(PART.value, max(1, _NUMBERS // max(options["SIZE"], values)))
    return options | {
        "BY_ROWS": by_rows(p), "WHOLE": whole, "VALUES": values, "BUNCH": bunch,
        "MOST": most_chosen(p), "num_warps": 1,
    }  # fmt: skip


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
    table = spans(p) if p.packed is None else tables(p)[0]
    value_size = p.v.shape[3]
    out = results(p, p.q, value_size)
    # not rounded to half: gradients are differences to it
    mean = torch.empty_like(out, dtype=torch.float32) if train else out
    chosen = room_for_chosen(p, train)
    into = Results(out, mean, chosen)
    top, x, live, *row_lists = thresholds(p, _enough(p, train), table, into)
    seen, alphas, lengths = pointers(p, table)
    options, values = options_of(p), _values(p)
    whole = options["SIZE"] == size and values == value_size
    slope = room_for_slope(p, train)
    output_kernel[(p.row_blocks * items * heads,)](
        p.q, p.k, p.v, seen, alphas, lengths, top, x, *row_lists, chosen.counts, out, mean, slope,
        p.scale, value_of(p), *all_sizes(p), p.row_blocks, p.key_blocks, *band_of(p), *steps(p),
        **options, TRAIN=train, ROUGH=rough(p), BY_ROWS=by_rows(p), WHOLE=whole, VALUES=values,
        LISTED=keeps_keys(p),
        maxnreg=None if options["TENSOR"] else registers_for(p, p.tiles.row_registers),
    )  # fmt: skip
    return out, Saved(top, x, live, (row_lists[0], row_lists[1]), mean, slope, chosen)


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
    g = g.transpose(1, 2).contiguous().transpose(1, 2) if by_rows(p) else g.contiguous()
    value_size = p.v.shape[3]
    gq, gk = (results(p, x, size) for x in (p.q, p.k))
    gv = results(p, p.v, value_size)
    table, of_keys = (spans(p),) * 2 if p.packed is None else tables(p)
    lines = saved.top.new_empty(*saved.top.shape, 2)  # see query_kernel
    parts = p.tiles.rows // PART.value if keeps_keys(p) and not want_scores else 0
    changes = saved.top
    if want_alpha:
        changes = saved.top.new_zeros(items, heads, p.row_blocks, max(parts, 1))
    gs = saved.top.new_zeros(items, heads, queries, p.k.shape[2]) if want_scores else saved.top
    seen, alphas, lengths = pointers(p, table)
    options, values = options_of(p), _values(p)
    options |= {"ROUGH": rough(p), "BY_ROWS": by_rows(p), "VALUES": values}
    options["WHOLE"] = options["SIZE"] == size and values == value_size
    numbers = (p.scale, value_of(p), *all_sizes(p), p.row_blocks, p.key_blocks)
    places = (*band_of(p), *steps(p))
    given = (p.q, p.k, p.v, seen, alphas, lengths, saved.top, saved.x)
    programs = p.row_blocks * items * heads
    query_kernel[(programs,)](
        *given, *saved.row_lists, saved.chosen.counts, g, saved.mean, saved.slope, gq,
        lines, changes, gs, *numbers, *places, **options,
        WANT=want_alpha, WANT_SCORES=want_scores, LISTED_PARTS=parts,
        maxnreg=registers_for(p, p.tiles.row_registers),
    )  # fmt: skip
    if parts > 0:
        listed_query_kernel[(programs * parts,)](
            *given, *saved.chosen, g, gq, lines, changes, *numbers[:-1], *places,
            **_listed_options(p), WANT=want_alpha, ROUGH=rough(p),
        )  # fmt: skip
    numbers = (*numbers[:-2], p.seeing_row_blocks, p.all_key_blocks)
    seen, alphas, lengths = pointers(p, of_keys)
    key_kernel[(p.all_key_blocks * items * p.k.shape[1],)](
        p.q, p.k, p.v, seen, alphas, lengths, *key_lists(p, saved.live, of_keys),
        g, lines, gk, gv, *numbers, *places, **options,
    )  # fmt: skip
    return Gradients(
        gq, gk, gv, changes.sum((-1, -2)) if want_alpha else None, gs if want_scores else None
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
    strides, options = steps(p), options_of(p)
    del options["PACKED"], options["EVEN"]
    count_kernel[(blocks[0] * items * heads,)](
        p.q, p.k, *pointers(p, table), top, x, live, tau, low, support, visible, touched,
        p.scale, value_of(p), heads, heads // p.k.shape[1], queries, keys, size, *blocks,
        p.row_blocks, p.key_blocks, *band_of(p), *strides[:6], *strides[9:],
        **options, SIDE=side, WHOLE=options["SIZE"] == size,
    )  # fmt: skip
    together = block // side
    padded = torch.nn.functional.pad(touched, (0, -blocks[1] % together, 0, -blocks[0] % together))
    groups = padded.unflatten(-1, (-1, together)).unflatten(-3, (-1, together)).amax((-1, -3))
    return Counts(
        tau, low, support.long(), visible.long(), (groups > 1).sum(-1), (groups > 0).sum(-1)
    )
