"""Fair timing on a shared machine: memory is reused, contenders take turns, medians count."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Run = Callable[[], object]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Time:
    """Milliseconds of one call. On a GPU it is replayed from a graph, with the eager time beside.

    ``graph`` is False where a call could not be captured, and None where it takes so long that it
    was not tried: then both times are eager.
    """

    ms: float
    eager_ms: float | None = None
    graph: bool | None = None


def times(runs: Mapping[str, Run], calls: int, repeats: int, device: str) -> dict[str, Time]:
    """The time of one call of each, where each run makes ``calls`` of them."""
    if device == "cuda":
        from parsimax.bench import gpu_timing

        return gpu_timing.times(runs, calls, repeats)
    return {name: Time(s * 1e3 / calls) for name, s in medians(runs, repeats).items()}


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


def wall(run: Run) -> float:
    """Seconds on the clock of the machine."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(
    runs: Mapping[str, Run],
    repeats: int,
    clock: Callable[[Run], float] = wall,
    slow: float = _SLOW,
) -> dict[str, float]:
    """Median seconds of each, after one unmeasured call; they take turns within each repeat."""
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for turn in range(repeats):
        for name, run in runs.items():
            if turn >= _FEW and measured[name][0] > slow:
                continue
            measured[name].append(clock(run))
    return {name: statistics.median(values) for name, values in measured.items()}
