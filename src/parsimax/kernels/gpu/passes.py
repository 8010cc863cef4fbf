"""Several kernels with all that they read and write, written down once for problems of one sort.

To find out what to launch takes longer than a short kernel runs. A pass keeps that, and how large
everything is that it allocates, but no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .chain import Chain, Launch


class Room(NamedTuple):
    """A tensor that is allocated anew for each call."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None  # None: without gaps
    zeros: bool = False

    def allocate(self, like: Tensor) -> Tensor:
        """On the same device."""
        if self.zeros:
            return like.new_zeros(self.shape, dtype=self.dtype)
        if self.strides is None:
            return like.new_empty(self.shape, dtype=self.dtype)
        return like.new_empty_strided(self.shape, self.strides, dtype=self.dtype)


class Pass:
    """Launches in their order; tensors are called by names.

    Args:
        given: Names of what every call is given, separated by spaces; the first says where it is.
    """

    def __init__(self, given: str) -> None:
        self._which = {name: i for i, name in enumerate(given.split())}
        self._rooms: dict[str, Room] = {}
        self._given = len(self._which)
        self._launches: list[Launch] = []
        self._chain: Chain | None = None

    def room(self, name: str, room: Room) -> None:
        """Allocate this for each call."""
        assert name not in self._rooms, name
        self._which[name] = self._given + len(self._rooms)
        self._rooms[name] = room

    def same(self, name: str, other: str) -> None:
        """Another name, where a kernel takes what is not there."""
        self._which[name] = self._which[other]

    def launch(
        self,
        kernel: Any,
        programs: int,
        tensors: str,
        numbers: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """Add one: its tensors come first, then numbers, and its options are constants."""
        which = tuple([self._which[name] for name in tensors.split()])
        self._launches.append(Launch(kernel, (programs,), which, numbers, options))

    def allocate(self, like: Tensor) -> dict[str, Tensor]:
        """All rooms, by their names."""
        return {name: room.allocate(like) for name, room in self._rooms.items()}

    def __call__(self, given: Sequence[Tensor]) -> dict[str, Tensor]:
        """Launch all; what was allocated."""
        made = self.allocate(given[0])
        chain = self._chain
        if chain is None:
            chain = self._chain = Chain(self._launches)
        if chain.ready:
            addresses = [x.data_ptr() for x in given]
            addresses += [x.data_ptr() for x in made.values()]
            chain.again(addresses)
        else:
            chain.first([*given, *made.values()])
        return made
