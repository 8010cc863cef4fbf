"""What the host calls: forward and backward of one problem."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parsimax.kernels.gpu.newton import ALWAYS, POWER
from parsimax.kernels.gpu.passes import Pass, Room, run
from parsimax.kernels.gpu.sizes import multiprocessors, pieces, power_of_two

from .arguments import (
    ADDED,
    all_sizes,
    band_of,
    kind_of,
    mask_kind,
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
from .listed import FOR_BACKWARD, FOR_OUTPUT, NEVER_KEPT
from .listed_backward import listed_query_kernel
from .listed_output import listed_output_kernel
from .lists import compact
from .output import output_kernel
from .problem import Problem, by_rows, keeps_keys, most_chosen, rough
from .rooms import of_chosen, of_forward, of_gradients, of_thresholds
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
_PART = 16  # queries that a program does this for, before it goes on to others
_ONE_WARP = 32  # programs of one warp that a multiprocessor runs at the same time
_ALL_REGISTERS = 255  # that a thread can have
_AT_A_TIME = 5  # programs of a multiprocessor that look for thresholds; more would wait


class Saved(NamedTuple):
    """What the backward needs of the forward."""

    top: Tensor  # (B, H, Lq), as x
    x: Tensor
    live: Tensor  # (B, H, row blocks, key blocks); as lists:
    places: Tensor  # the same
    counts: Tensor  # (B, H, row blocks)
    mean: Tensor  # w, as the context
    slope: Tensor  # (B, H, Lq), the mass of u, or empty where the gradient of alpha needs none
    # keys of each query that may have weight, where they are few; -1 of them where they are not
    chosen: Tensor  # (B, H, row blocks, the most of a query, queries of a block), without a sign
    chosen_counts: Tensor  # (B, H, row blocks, queries of a block)


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


# Passes that were made, by all that decides them
_FORWARDS: dict[Hashable, Pass] = {}
_BACKWARDS: dict[Hashable, Pass] = {}
# Names of tensors: those that a forward is given, and a backward; what kernels read of queries
_GIVEN = "q k v seen alphas lengths"
_GIVEN_BACK = f"{_GIVEN} key_seen key_lengths g {' '.join(Saved._fields)}"
_READ = f"{_GIVEN} top x"


def _key(p: Problem) -> tuple[Hashable, ...]:
    """What decides a pass, but for the alignment of what is given."""
    q, k, v, seen, packed = p.q, p.k, p.v, p.seen, p.packed
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, q.get_device(),
        None if seen is None else (seen.dtype, seen.shape, seen.stride()),
        p.alpha.dtype if isinstance(p.alpha, Tensor) else p.alpha, p.scale, p.band, p.offset,
        None if p.lengths is None else p.lengths.dtype, p.tiles,
        None if packed is None else (packed.q_starts.shape, packed.k_starts.shape, *packed[2:]),
    )  # fmt: skip


def _thresholds(a_pass: Pass, p: Problem, enough: Enough, choose: int) -> None:
    """Add what finds where weights begin and which blocks of keys have any; the pass has room.

    Where keys are few, they are kept, and results written, unless ``choose`` is NEVER_KEPT.
    """
    items, heads, queries, size = p.q.shape
    first, rows = p.tiles.first, p.tiles.rows
    tall_blocks, grains = pieces(p.row_blocks * rows, first.rows), first.rows // rows
    tall = items * heads * tall_blocks
    numbers = p.key_blocks  # of a query
    if choose != NEVER_KEPT.value:  # scores, and keys if these are not kept
        numbers += most_chosen(p) * (2 if choose == FOR_OUTPUT.value else 1)
    scratch = min(max(_SCRATCH[0], _SCRATCH_OF_QUERIES * p.q.nbytes), _SCRATCH[1])
    chunks = pieces(tall, max(_TOGETHER, scratch // (4 * numbers * first.rows)))
    chunk, at_once = pieces(tall, chunks), 2 * multiprocessors(p.q.device)
    if chunk > at_once:  # a multiple of it, so that none are idle at the end
        chunk = min(tall, pieces(chunk, at_once) * at_once)
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
    keep = choose != NEVER_KEPT.value
    hold = _hold(p, keep)
    options |= {
        "GRAINS": grains, "MANY": many, "HOLD": hold, "CHOOSE": choose,
        "FROM_BLOCKS": p.tiles.listed or 0, "MOST": most_chosen(p),
        "maxnreg": registers_for(p, p.tiles.threshold_registers),
    }  # fmt: skip
    a_pass.room("tops", Room((chunk, grains, p.key_blocks, rows), torch.float32))
    lists, taken = _lists(p, chunk * grains if hold else 0, keep)
    a_pass.room("lists", lists)
    a_pass.room("taken", taken)
    # keys that are kept, with their scores for so many blocks of queries at a time, and which of
    # these blocks have any; without gradients, keys are kept no longer than their scores
    blocks, keeping = chunk * grains, "q q q q"
    if keep:
        keeping = "scores chosen chosen_counts work"
        a_pass.room("scores", Room((blocks, most_chosen(p), rows), torch.float32))
        a_pass.room("work", _work(blocks, chunks=pieces(tall, chunk)))
    if choose == FOR_OUTPUT.value:
        a_pass.room("chosen", of_chosen(p, blocks))
    for tile in range(0, tall, chunk):
        count, work_at = min(chunk, tall - tile), tile // chunk * _work(blocks).shape[1]
        a_pass.launch(
            tops_kernel, (count,), "q k seen lengths top tops",
            (p.scale, heads, group, queries, keys, size, tile, tall_blocks, p.key_blocks,
             *band_of(p), *strides),
            wide,
        )  # fmt: skip
        a_pass.launch(
            threshold_kernel, (count * grains,),
            f"q k seen alphas lengths top x live tops places counts lists taken {keeping}",
            (p.scale, value_of(p), *enough, heads, group, queries, keys, size, tile, tall_blocks,
             p.row_blocks, p.key_blocks, *lists.shape, work_at, *band_of(p), *strides),
            options,
        )  # fmt: skip
        if keep:
            a_pass.launch(
                listed_output_kernel, _listed_grid(p, count * grains),
                f"{_READ} {keeping} out mean",
                (p.scale, value_of(p), *all_sizes(p), tile, tall_blocks, p.row_blocks, work_at,
                 *band_of(p), *all_strides),
                _listed_options(p) | {"GRAINS": grains, "CHOOSE": choose},
            )  # fmt: skip


def _hold(p: Problem, keep: bool) -> int:
    """Scores that a list has room for; 0 where there will be no list, as far as can be told."""
    kind, near = kind_of(p.alpha)
    if kind == STEEP.value:
        return p.tiles.hold
    if near == ALWAYS.value or (kind == POWER.value and value_of(p) < FROM_BETA.value):
        return 0
    few = (FEW_OF_POWERS if kind in (POWER.value, ANY.value) else FEW).value
    if keep and p.tiles.listed is not None and few == FEW.value:
        few = p.tiles.listed - 1  # see worth_it
    return p.tiles.hold if p.key_blocks > few else 0


def _lists(p: Problem, programs: int, keys: bool) -> tuple[Room, Room]:
    """For the scores above a first threshold, of those programs that run at the same time."""
    if p.tiles.hold % AT_ONCE.value:
        raise ValueError(f"hold must be a multiple of {AT_ONCE.value}, is {p.tiles.hold}")
    places = min(programs, _AT_A_TIME * multiprocessors(p.q.device))
    of_query = p.tiles.hold * FOLDED.value
    if keys:  # beside scores
        of_query *= 2
    lists = Room((places, of_query * p.tiles.rows), torch.float32)
    return lists, Room((places,), torch.int32, zeros=True)


def _work(blocks: int, chunks: int = 1) -> Room:
    """Which blocks have lists, for so many of them at a time; see :func:`.listed.enlist`."""
    return Room((chunks, 2 + blocks), torch.int32, zeros=True)


def _values(p: Problem) -> int:
    """Parts of a value in a tile."""
    return max(16, power_of_two(p.v.shape[3]))


def _part(p: Problem) -> int:
    """How many queries of a block a program takes at a time that reads keys one by one."""
    return min(_PART, p.tiles.rows)


def _listed_grid(p: Problem, blocks: int) -> tuple[int]:
    """Programs for so many blocks of queries, of which any may have lists."""
    return (min(blocks * (p.tiles.rows // _part(p)), _ONE_WARP * multiprocessors(p.q.device)),)


def _listed_options(p: Problem) -> dict[str, Any]:
    """What programs are told that read keys or values one by one."""
    options, values, part = options_of(p), _values(p), _part(p)
    del options["EVEN"], options["num_stages"]
    if options["KIND"] == ANY.value:  # no list is made for those that other powers are for
        options["KIND"] = POWER.value
    whole = options["SIZE"] == p.q.shape[3] and values == p.v.shape[3]
    bunch = min(part, max(1, _NUMBERS // max(options["SIZE"], values)))
    return options | {
        "BY_ROWS": by_rows(p), "WHOLE": whole, "VALUES": values, "PART": part,
        "BUNCH": bunch, "MOST": most_chosen(p), "num_warps": 1,
    }  # fmt: skip


def forward(p: Problem, train: bool) -> tuple[Tensor, Saved]:
    """Context (B, H, Lq, Ev), and what the backward needs if there will be one."""
    table = spans(p) if p.packed is None else tables(p)[0]
    given = (p.q, p.k, p.v, *pointers(p, table))
    made = run(_FORWARDS, (train, *_key(p)), given, lambda: _forward_pass(p, train))
    out = made["out"]
    return out, Saved(*[made.get(name, out) for name in Saved._fields])


def _forward_pass(p: Problem, train: bool) -> Pass:
    a_pass = Pass(_GIVEN)
    for name, room in of_forward(p, train).items():
        a_pass.room(name, room)
    if not train:
        a_pass.same("mean", "out")
        a_pass.same("slope", "out")
    kept = FOR_BACKWARD if train else FOR_OUTPUT
    _thresholds(a_pass, p, _enough(p, train), (kept if keeps_keys(p) else NEVER_KEPT).value)
    options, values = options_of(p), _values(p)
    whole = options["SIZE"] == p.q.shape[3] and values == p.v.shape[3]
    a_pass.launch(
        output_kernel, (p.row_blocks * p.q.shape[0] * p.q.shape[1],),
        "q k v seen alphas lengths top x places counts chosen_counts out mean slope",
        (p.scale, value_of(p), *all_sizes(p), p.row_blocks, p.key_blocks, *band_of(p), *steps(p)),
        options | {
            "TRAIN": train, "ROUGH": rough(p), "BY_ROWS": by_rows(p), "WHOLE": whole,
            "VALUES": values, "LISTED": keeps_keys(p),
            "maxnreg": (
                None if options["TENSOR"] else registers_for(p, p.tiles.row_registers)
            ),
        },
    )  # fmt: skip
    return a_pass


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
    table, key_table = (spans(p),) * 2 if p.packed is None else tables(p)
    of_rows = pointers(p, table)
    key_seen, _, key_lengths = of_rows if key_table is table else pointers(p, key_table)
    g = _as_results_lie(p, g)
    # which may lie otherwise if hooks of saved tensors had it
    saved = saved._replace(mean=_as_results_lie(p, saved.mean))
    given = (p.q, p.k, p.v, *of_rows, key_seen, key_lengths, g, *saved)
    wanted = (want_alpha, want_scores)
    made = run(_BACKWARDS, (*wanted, *_key(p)), given, lambda: _backward_pass(p, *wanted))
    change = made["changes"].sum((-1, -2)) if want_alpha else None
    return Gradients(made["gq"], made["gk"], made["gv"], change, made.get("gs"))


def _as_results_lie(p: Problem, x: Tensor) -> Tensor:
    """A tensor in the shape of the context."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if by_rows(p) else x.contiguous()


def _backward_pass(p: Problem, want_alpha: bool, want_scores: bool) -> Pass:
    items, heads, queries, size = p.q.shape
    a_pass = Pass(_GIVEN_BACK)
    for name, room in of_gradients(p).items():
        a_pass.room(name, room)
    a_pass.room("lines", Room((items, heads, queries, 2), torch.float32))  # see query_kernel
    programs = p.row_blocks * items * heads
    parts = p.tiles.rows // _part(p) if keeps_keys(p) else 0
    assert not (parts and want_scores), "no keys are kept where numbers are added to scores"
    sums = {
        "changes": (want_alpha, (items, heads, p.row_blocks, max(parts, 1))),
        "gs": (want_scores, (items, heads, queries, p.k.shape[2])),
    }
    for name, (wanted, shape) in sums.items():
        if wanted:
            a_pass.room(name, Room(shape, torch.float32, zeros=True))
        else:
            a_pass.same(name, "top")
    if parts > 0:  # blocks that have lists
        a_pass.room("work", _work(programs))
    else:
        a_pass.same("work", "top")
    lines, length = p.all_key_blocks, p.seeing_row_blocks
    a_pass.room("key_places", Room((items, heads, lines, length), torch.int16))
    a_pass.room("key_counts", Room((items, heads, lines), torch.int32))
    options, values = options_of(p), _values(p)
    options |= {"ROUGH": rough(p), "BY_ROWS": by_rows(p), "VALUES": values}
    options["WHOLE"] = options["SIZE"] == size and values == p.v.shape[3]
    numbers = (p.scale, value_of(p), *all_sizes(p), p.row_blocks, p.key_blocks)
    band_and_steps = (*band_of(p), *steps(p))
    a_pass.launch(
        query_kernel, (programs,),
        f"{_READ} places counts chosen_counts work g mean slope gq lines changes gs",
        (*numbers, *band_and_steps),
        options | {
            "WANT": want_alpha, "WANT_SCORES": want_scores, "LISTED_PARTS": parts,
            "maxnreg": registers_for(p, p.tiles.row_registers),
        },
    )  # fmt: skip
    if parts > 0:
        a_pass.launch(
            listed_query_kernel, _listed_grid(p, programs),
            f"{_READ} chosen chosen_counts work g gq lines changes",
            (*numbers[:-1], *band_and_steps),
            _listed_options(p) | {"WANT": want_alpha, "ROUGH": rough(p)},
        )  # fmt: skip
    a_pass.launch(
        compact, (lines * items * heads,),
        "live key_places key_counts key_lengths",
        (lines, length, p.row_blocks, p.key_blocks),
        {
            "PACKED": p.packed is not None, "ROWS": p.tiles.rows,
            "MANY": min(256, power_of_two(length)),
        },
    )  # fmt: skip
    a_pass.launch(
        key_kernel, (lines * items * p.k.shape[1],),
        "q k v key_seen alphas key_lengths key_places key_counts g lines gk gv",
        (*numbers[:-2], length, lines, *band_and_steps),
        options | {"maxnreg": _most_registers(p)},
    )  # fmt: skip
    return a_pass


def _most_registers(p: Problem) -> int | None:
    """All there are, where Triton 3.6's assembler would else take 32, and 12 KiB of stack."""
    return _ALL_REGISTERS if mask_kind(p.seen) == ADDED and not rough(p) else None


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
    a_pass = Pass(_GIVEN)
    for name, room in of_thresholds(p).items():
        a_pass.room(name, room)
    _thresholds(a_pass, p, _EXACTLY, NEVER_KEPT.value)
    given = (p.q, p.k, p.v, *pointers(p, table))
    made = a_pass.run(given, [x.data_ptr() for x in given])
    top, x, live = (made.pop(name) for name in ("top", "x", "live"))
    made.clear()  # scratch may be large
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
