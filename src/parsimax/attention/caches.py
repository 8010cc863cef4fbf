"""Caches of keys and values: contiguous or in pages, of which each item has filled some length."""

from __future__ import annotations

import torch
from torch import Tensor

from parsimax._core.validation import check_values, values_readable

from .visibility import as_counts


def joined(cache: Tensor, table: Tensor) -> Tensor:
    """(B, heads, pages * size, E): the pages of each item one after the other."""
    items, pages = table.shape
    _, heads, size, width = cache.shape
    return cache[table].transpose(1, 2).reshape(items, heads, pages * size, width)


def needed_pages(table: Tensor, lengths: Tensor, size: int, behind: int | None) -> Tensor:
    """Which pages of the table have keys that are read."""
    first, ends = _first_keys(table, size), lengths.unsqueeze(1)
    needed = first < ends
    return needed if behind is None else needed & (first + size > ends - behind)


def _first_keys(table: Tensor, size: int) -> Tensor:
    """Of each column, the key that its page begins with."""
    return torch.arange(table.shape[1], device=table.device) * size


def check_integers(x: object, name: str) -> None:
    """A tensor of integers."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of integers or None, got {type(x).__name__}")
    if x.dtype == torch.bool or x.is_floating_point() or x.is_complex():
        raise TypeError(f"{name} must have an integer dtype, got {x.dtype}")


def check_lengths(lengths: Tensor | None, items: int, capacity: int) -> Tensor | None:
    """Integers, one for each item, from 0 to the capacity."""
    if lengths is None:
        return None
    check_integers(lengths, "lengths")
    if lengths.ndim != 1 or lengths.shape[0] != items:
        raise ValueError(
            f"lengths must have one length for each of the {items} items, got shape "
            f"{tuple(lengths.shape)}"
        )
    lengths = as_counts(lengths)
    if values_readable():
        expected = f"from 0 to {capacity}, the keys that the cache has room for"
        check_values(lengths, "lengths", lambda n: (n >= 0) & (n <= capacity), expected)
    return lengths


def check_table(
    block_table: Tensor | None, lengths: Tensor | None, cache: Tensor, behind: int | None
) -> Tensor | None:
    """Every page that an item needs exists."""
    if block_table is None:
        return None
    block_table = as_counts(block_table)
    if not values_readable():
        return block_table
    if any(x.device.type != "cpu" for x in (block_table, lengths) if x is not None):
        return block_table  # nobody would look at it
    pages, _, size, _ = cache.shape
    table = block_table
    if lengths is None:
        lengths = torch.full_like(table[:, 0], size * table.shape[1]) if table.numel() else None
    if lengths is not None:
        table = table[needed_pages(table, lengths, size, behind)]
    expected = f"from 0 to {pages - 1}, a page of the cache"
    check_values(table, "block_table", lambda n: (n >= 0) & (n < pages), expected)
    return block_table
