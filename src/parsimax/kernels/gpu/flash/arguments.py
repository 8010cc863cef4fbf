"""What several kernels are told about a problem."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from parsimax.kernels.gpu.newton import ALWAYS, ENTMAX15, NEAR_ONE, NEVER, POWER, SPARSEMAX
from parsimax.kernels.gpu.sizes import power_of_two

from .blocks import OF_KEYS
from .problem import UNLIMITED, Problem, masks_queries, of_keys
from .spans import FIELDS as OF_SPAN
from .spans import SPANS
from .tables import words
from .weights import ANY, STEEP

ADDED = 2  # a mask of numbers


def mask_kind(seen: Tensor | None) -> int:
    """0 without a mask, 1 for a bool one, 2 for numbers to add."""
    return 0 if seen is None else 1 if seen.dtype == torch.bool else ADDED


def kind_of(alpha: float | Tensor) -> tuple[int, int]:
    """(kind of the powers, whether alpha is near 1)."""
    if isinstance(alpha, Tensor):
        return ANY.value, NEVER.value
    kinds = {1.5: ENTMAX15.value, 2.0: SPARSEMAX.value}
    if alpha > 2.0:
        return STEEP.value, NEVER.value
    near = ALWAYS.value if alpha - 1 < NEAR_ONE.value else NEVER.value
    return kinds.get(alpha, POWER.value), near


def options_of(p: Problem) -> dict[str, Any]:
    """Constants that all kernels have, and how many warps and stages."""
    kind, near = kind_of(p.alpha)
    size = max(16, power_of_two(p.q.shape[3]))
    return {
        "KIND": kind,
        "NEAR": near,
        "TENSOR": isinstance(p.alpha, Tensor),
        "CAUSAL": p.band is not None,
        "MASK": OF_KEYS.value if of_keys(p) else mask_kind(p.seen),
        "LENGTHS": SPANS.value if of_keys(p) else int(p.lengths is not None),
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


def registers_for(p: Problem, registers: int | None) -> int | None:
    """What a tile of a mask needs would not fit."""
    return None if masks_queries(p) else registers


def pointers(p: Problem, table: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(mask, alphas, lengths); what is not there is not read.

    A table stands in the place of lengths, and has what a mask of keys alone comes to.
    """
    lengths = p.lengths if table is None else table
    seen = p.seen
    if table is not None and of_keys(p):
        seen = table[OF_SPAN * p.q.shape[0] :]
    return (
        p.q if seen is None else seen,
        p.alpha if isinstance(p.alpha, Tensor) else p.q,
        p.q if lengths is None else lengths,
    )


def value_of(p: Problem) -> float:
    """alpha - 1, if it is a number."""
    return 0.0 if isinstance(p.alpha, Tensor) else p.alpha - 1.0


def band_of(p: Problem) -> tuple[int, int, int]:
    """(offset, how far before, how far after)."""
    return p.offset, *(p.band or (UNLIMITED, UNLIMITED))


def steps(p: Problem) -> tuple[int, ...]:
    """Strides of queries, keys, values and the mask."""
    seen = (0, 0, 0, 0) if p.seen is None else p.seen.stride()
    if of_keys(p):
        seen = (words(p), 0, 0, 0)
    strides = [x.stride()[:3] for x in (p.q, p.k, p.v)]
    if p.packed is not None:  # an item is counted by its first row
        strides = [(row, head, row) for _, head, row in strides]
    return (*strides[0], *strides[1], *strides[2], *seen)


def all_sizes(p: Problem) -> tuple[int, ...]:
    """(heads, heads that share keys, queries, keys, sizes of keys and of values)."""
    heads = p.q.shape[1]
    group = heads // p.k.shape[1]
    lengths = (p.q.shape[2], p.k.shape[2], p.q.shape[3], p.v.shape[3])
    return (heads, group, *lengths)
