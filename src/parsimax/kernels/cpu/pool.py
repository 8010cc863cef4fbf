"""Split the rows of a kernel over a few threads of this process.

Kernels are serial and release the GIL. Numba's own ``parallel=True`` starts a thread layer that
does not survive a fork, so a data loader's workers would die in it; these threads are started on
first use, and started anew in a child process.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_MIN_ELEMENTS_PER_THREAD = 1 << 15  # below this, handing work over costs more than it saves

_executor: ThreadPoolExecutor | None = None
_owner: tuple[int, int] = (-1, 0)  # (process id, threads) the executor was made for


def _threads(count: int) -> ThreadPoolExecutor:
    global _executor, _owner
    if _executor is None or _owner != (os.getpid(), count):
        _executor = ThreadPoolExecutor(count, thread_name_prefix="parsimax")
        _owner = (os.getpid(), count)
    return _executor


def for_rows(kernel: Callable[..., Any], rows: int, columns: int, *args: Any) -> None:
    """Call ``kernel(start, stop, *args)`` on ranges that cover ``range(rows)``.

    As many threads as ``torch.get_num_threads()`` allows. A row is always computed by one call,
    so the result does not depend on how the rows are split.
    """
    wanted = min(torch.get_num_threads(), rows * columns // _MIN_ELEMENTS_PER_THREAD, rows)
    if wanted <= 1:
        kernel(0, rows, *args)
        return
    bounds = [rows * i // wanted for i in range(wanted + 1)]
    pool = _threads(torch.get_num_threads())
    pending = [
        pool.submit(kernel, start, stop, *args) for start, stop in itertools.pairwise(bounds)
    ]
    for future in pending:
        future.result()


_NANOSECONDS_PER_TASK = 200_000  # below this, handing work over costs more than it saves


def for_items(kernel: Callable[..., Any], items: int, cost: int, *args: Any) -> list[Any]:
    """Call ``kernel(start, stop, *args)`` on ranges that cover ``range(items)``; what they return.

    For items that take long, and not equally long: ``cost`` is roughly the nanoseconds of one.
    There are more ranges than threads, and a thread that is done takes the next.
    """
    threads = min(torch.get_num_threads(), items)
    tasks = min(items, 8 * threads, items * cost // _NANOSECONDS_PER_TASK)
    if threads <= 1 or tasks <= 1:
        return [kernel(0, items, *args)] if items else []
    bounds = [items * i // tasks for i in range(tasks + 1)]
    pool = _threads(torch.get_num_threads())
    pending = [
        pool.submit(kernel, start, stop, *args) for start, stop in itertools.pairwise(bounds)
    ]
    return [future.result() for future in pending]
