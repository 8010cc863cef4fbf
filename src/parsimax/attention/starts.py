"""Where packed sequences begin: checks that need no values, and the lengths, which do."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def check_starts(starts: object, name: str) -> None:
    """All but the values."""
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name} must be a tensor of integers, got {type(starts).__name__}")
    if starts.dtype == torch.bool or starts.is_floating_point() or starts.is_complex():
        raise TypeError(f"{name} must have an integer dtype, got {starts.dtype}")
    if starts.ndim != 1 or starts.shape[0] == 0:
        raise ValueError(
            f"{name} must have shape (number of sequences + 1,), got {tuple(starts.shape)}"
        )


def read_starts(
    starts: Tensor, name: str, x: Tensor, of: str, limit: int | None = None
) -> list[int]:
    """The lengths of the sequences; on a GPU this waits for their values."""
    places: list[int] = starts.tolist()
    if places[0] != 0:
        raise ValueError(f"{name} must begin with 0, got {places[0]}")
    lengths = [stop - start for start, stop in itertools.pairwise(places)]
    if any(length < 0 for length in lengths):
        first = next(i for i, length in enumerate(lengths) if length < 0)
        raise ValueError(
            f"{name} must never decrease, got {places[first]} and then {places[first + 1]}"
        )
    if places[-1] != x.shape[0]:
        raise ValueError(
            f"{name} must end with the total length of {of}, {x.shape[0]}, got {places[-1]}"
        )
    longest = max(lengths, default=0)
    if limit is not None and longest > limit:
        raise ValueError(
            f"max_seqlen_{of} must be at least the length of the longest sequence, {longest}, got "
            f"{limit}"
        )
    return lengths
