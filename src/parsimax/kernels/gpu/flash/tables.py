"""What is found out once about packed sequences, or about a mask of keys, before all else."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax.kernels.gpu.sizes import pieces, power_of_two

from .blocks import BITS
from .problem import Problem, of_keys
from .sequences import FIELDS, tables_kernel
from .spans import FIELDS as OF_SPAN
from .spans import spans_kernel

_MASK_AT_ONCE = 4096  # keys


def tables(p: Problem) -> tuple[Tensor, Tensor]:
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


def words(p: Problem) -> int:
    """That hold a bit for each key of all blocks."""
    wide = p.tiles.first.columns
    return pieces(pieces(p.k.shape[2], wide) * wide, BITS.value)


def spans(p: Problem) -> Tensor | None:
    """Of a mask of keys alone, the numbers of all items, and then their bits."""
    if p.seen is None or not of_keys(p):
        return None
    items, keys, many = p.q.shape[0], p.k.shape[2], words(p)
    table = p.q.new_empty(items * (OF_SPAN + many), dtype=torch.int32)
    spans_kernel[(items,)](
        p.seen, table if p.lengths is None else p.lengths, table, table[OF_SPAN * items :],
        keys, many, p.seen.stride(0), p.seen.stride(3),
        LENGTHS=p.lengths is not None, MANY=min(_MASK_AT_ONCE, BITS.value * power_of_two(many)),
        num_warps=8,
    )  # fmt: skip
    return table
