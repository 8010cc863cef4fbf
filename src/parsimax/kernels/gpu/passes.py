"""Several kernels with all that they read and write, written down once for problems of one sort.

To find out what to launch takes longer than a short kernel runs. A pass keeps that, and how large
everything is that it allocates, but no tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .chain import Chain, Launch, alignment, found_again


class Room(NamedTuple):
    """A tensor that is allocated anew for each call."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None  # None: without gaps
    zeros: bool = False

    @classmethod
    def of_heads(
        cls, items: int, heads: int, rows: int, size: int, dtype: torch.dtype, by_rows: bool
    ) -> Room:
        """(items, heads, rows, size), of which rows or heads come first in memory."""
        steps = (size, heads * size) if by_rows else (rows * size, size)
        return cls((items, heads, rows, size), dtype, (heads * rows * size, *steps, 1))

    @property
    def steps(self) -> tuple[int, ...]:
        """Its strides, also where it has no gaps."""
        contiguous = (math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape)))
        return tuple(contiguous) if self.strides is None else self.strides

    def allocate(self, like: Tensor) -> Tensor:
        """On the same device."""
        shape, dtype, strides, zeros = self
        if zeros:
            return like.new_zeros(shape, dtype=dtype)
        if strides is None:
            return like.new_empty(shape, dtype=dtype)
        return like.new_empty_strided(shape, strides, dtype=dtype)


class Pass:
    """Launches in their order; tensors are called by names.

    Args:
        given: Names of what every call is given, separated by spaces; the first says where it is.
    """

    def __init__(self, given: str) -> None:
        self._which = {name: i for i, name in enumerate(given.split())}
        self._rooms: dict[str, Room] = {}
        self._given = len(self._which)
        self._chain = Chain()

    def room(self, name: str, room: Room) -> None:
        """Allocate this for each call."""
        assert name not in self._which, name
        self._which[name] = self._given + len(self._rooms)
        self._rooms[name] = room

    def same(self, name: str, other: str) -> None:
        """Another name, where a kernel takes what is not there."""
        assert name not in self._which, name
        self._which[name] = self._which[other]

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        tensors: str,
        numbers: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """Add one: its tensors come first, then numbers, and its options are constants."""
        which = tuple([self._which[name] for name in tensors.split()])
        self._chain.add(Launch(kernel, grid, which, numbers, options))

    def allocate(self, like: Tensor) -> dict[str, Tensor]:
        """All rooms, by their names."""
        return {name: room.allocate(like) for name, room in self._rooms.items()}

    def run(self, given: Sequence[Tensor], addresses: list[int]) -> dict[str, Tensor]:
        """Launch all, of tensors that lie at these addresses; what was allocated."""
        made = self.allocate(given[0])
        if self._chain.ready:
            addresses += [x.data_ptr() for x in made.values()]
            self._chain.again(addresses)
        else:
            self._chain.first([*given, *made.values()])
        return made


def run(
    passes: dict[Hashable, Pass],
    key: tuple[Hashable, ...],
    given: Sequence[Tensor],
    make: Callable[[], Pass],
) -> dict[str, Tensor]:
    """What the pass for this key, and for memory that is aligned like this, allocates and fills."""
    addresses = [x.data_ptr() for x in given]
    found = found_again(passes, (*key, alignment(addresses)), make)
    return found.run(given, addresses)
