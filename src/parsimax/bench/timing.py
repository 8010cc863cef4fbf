"""Fair timing on a shared machine: memory is reused, contenders take turns, medians count."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def reuse_memory() -> bool:
    """Ask the C library to keep freed memory, so that page faults do not hide what is measured.

    A fresh result of 64 MB costs more to fault in than to compute; every contender pays that alike,
    and ratios shrink towards one. Returns whether it could be done (glibc only).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1))


_SLOW = 0.3  # seconds; whoever needs longer is measured three times, not more
_FEW = 3


def medians(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, after one unmeasured call; they take turns within each repeat."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for turn in range(repeats):
        for name, run in contenders.items():
            if turn >= _FEW and times[name][0] > _SLOW:
                continue
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
