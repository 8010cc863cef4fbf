"""Several kernels one after the other, of which only the addresses change from call to call.

What is looked at in a launch of its own, in each of its arguments, is here looked at the first time
alone. Whoever keeps a chain must call it only with memory of the same types that is aligned in the
same way. Triton takes an address for a tensor, and then asks the driver nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from . import quick

Plan = TypeVar("Plan")
MOST_PLANS = 512  # a cache that grows by a key a step has a new one for each step


def found_again(plans: dict[Hashable, Plan], key: Hashable, make: Callable[[], Plan]) -> Plan:
    """The plan for all that has this key; where there are too many, all of them are made anew."""
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= MOST_PLANS:
            plans.clear()
        plan = plans[key] = make()
    return plan


def alignment(addresses: Sequence[int]) -> tuple[bool, ...] | None:
    """Which are multiples of 16, as Triton looks at them; None if all are."""
    together = 0
    for address in addresses:
        together |= address
    return tuple([address % 16 == 0 for address in addresses]) if together % 16 else None


class Launch(NamedTuple):
    """A kernel whose first arguments are tensors: at least two of those that the chain has."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[int, ...]
    numbers: tuple[Any, ...]
    options: dict[str, Any]


class Chain:
    """Launches on one device, which is the current one whenever it is called."""

    def __init__(self, launches: Sequence[Launch] = ()) -> None:
        self._launches = [*launches]
        self._ready: list[tuple[Any, ...]] = []

    def add(self, launch: Launch) -> None:
        """One more, before the first call."""
        self._launches.append(launch)

    @property
    def ready(self) -> bool:
        """Whether addresses are enough; never where kernels are interpreted."""
        return bool(self._ready)

    def first(self, tensors: Sequence[Tensor]) -> None:
        """Launch all with these tensors, compile what has not been, and be ready if all could."""
        ready, launches = [], self._launches
        if not launches:  # another thread was first, while this one came here
            self.again([*map(Tensor.data_ptr, tensors)])
            return
        for kernel, grid, which, numbers, options in launches:
            arguments = (*(tensors[i] for i in which), *numbers)
            prepared = quick.prepare_for(kernel, arguments, options)
            if prepared is None:
                kernel[grid](*arguments, **options)
                continue
            sizes = (*grid, 1, 1)[:3]
            prepared(sizes, *arguments)
            compiled, run, function, metadata, constants = prepared.known_here()
            rest = (*numbers, *constants)
            ready.append((compiled, run, sizes, function, metadata, itemgetter(*which), rest))
        if len(ready) == len(launches):
            # in this order, for other threads; hundreds may be kept, and are looked through
            self._ready = ready
            self._launches = []

    def again(self, addresses: Sequence[int]) -> None:
        """Launch all with tensors that lie at these addresses."""
        if quick.hooked():
            for compiled, _run, sizes, _function, _metadata, chosen, rest in self._ready:
                compiled[sizes](*chosen(addresses), *rest)
            return
        stream = quick.current_stream(quick.current_device())
        for _compiled, run, (x, y, z), function, metadata, chosen, rest in self._ready:
            run(x, y, z, stream, function, metadata, None, None, None, *chosen(addresses), *rest)
