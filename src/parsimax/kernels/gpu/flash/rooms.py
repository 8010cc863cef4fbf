"""What forward and backward allocate; torch.compile asks for the same, without launching."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax.kernels.gpu.passes import Room

from .problem import Problem, by_rows, keeps_keys, most_chosen, rough


def of_result(p: Problem, like: Tensor, size: int, dtype: torch.dtype | None = None) -> Room:
    """A result of as many heads and rows, each of some size."""
    items, heads, rows = like.shape[:3]
    return Room.of_heads(items, heads, rows, size, dtype or like.dtype, by_rows(p))


def of_thresholds(p: Problem) -> dict[str, Room]:
    """Of every query; and the live blocks of each block of queries, as a map and as lists."""
    items, heads, queries = p.q.shape[:3]
    of_queries = Room((items, heads, queries), torch.float32)
    blocks = (items, heads, p.row_blocks)
    return {
        "top": of_queries,
        "x": of_queries,
        "live": Room((*blocks, p.key_blocks), torch.int8),
        "places": Room((*blocks, p.key_blocks), torch.int16),
        "counts": Room(blocks, torch.int32),
    }


def of_forward(p: Problem, train: bool) -> dict[str, Room]:
    """The context, and what is saved; without gradients, no w is found and no keys are kept."""
    items, heads, queries = p.q.shape[:3]
    blocks = (items, heads, p.row_blocks if keeps_keys(p) else 0)
    rooms = {"out": of_result(p, p.q, p.v.shape[3]), **of_thresholds(p)}
    if train:
        # not rounded to half: gradients are differences to it
        rooms["mean"] = of_result(p, p.q, p.v.shape[3], torch.float32)
        # the mass of u as it was rounded, which leaves five digits of alpha's gradient or more
        wanted = rough(p) and isinstance(p.alpha, Tensor)
        rooms["slope"] = Room((items, heads, queries) if wanted else (0,), torch.float32)
        rooms["chosen"] = of_chosen(p, *blocks)
    rooms["chosen_counts"] = Room((*blocks, p.tiles.rows), torch.int16)
    return rooms


def of_chosen(p: Problem, *blocks: int) -> Room:
    """Keys of so many blocks of queries; they have 16 bits where these are enough."""
    keys = p.k.shape[2] if p.packed is None else p.packed.most_keys
    kind = torch.int16 if keys <= 1 << 16 else torch.int32
    return Room((*blocks, most_chosen(p), p.tiles.rows), kind)


def of_gradients(p: Problem) -> dict[str, Room]:
    """Of queries, keys and values."""
    named = {"gq": p.q, "gk": p.k, "gv": p.v}
    return {name: of_result(p, x, x.shape[3]) for name, x in named.items()}
