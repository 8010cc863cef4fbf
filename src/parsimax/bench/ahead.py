"""Kernels are compiled before anything is timed, by several processes at once.

Compiling takes longer than timing, and one process does it on one core. What others compiled is
found again in the cache of compiled kernels that Triton keeps on disk.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

_MOST = 16  # processes: each has a context on the GPU, and the inputs of a problem


@dataclass(frozen=True)
class Ahead:
    """``work(*item)`` for every item, in processes of their own: it has to be found by its name."""

    work: Callable[..., object]
    items: Sequence[tuple[Any, ...]]

    def results(self) -> Iterator[str | None]:
        """As items end, in any order: what went wrong, or None. Nothing is raised for them."""
        if not self.items:
            return
        workers = min(_MOST, len(self.items), os.cpu_count() or 1)
        fresh = multiprocessing.get_context("spawn")  # one with CUDA in use cannot be forked
        with ProcessPoolExecutor(workers, mp_context=fresh) as pool:
            waiting = [pool.submit(self.work, *item) for item in self.items]
            for done in as_completed(waiting):
                error = done.exception()
                yield None if error is None else f"{type(error).__name__}: {error}"
