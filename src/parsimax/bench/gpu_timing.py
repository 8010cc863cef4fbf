"""Timing on a GPU: work is captured once in a CUDA graph, and replays are timed in turns.

What is launched from Python is timed beside it, because a small kernel may wait for its launch.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from parsimax.bench.timing import Run, Time, medians

_BATCH = 2e-3  # seconds between two events at least, so that a launch is a small part of them
_MOST = 100  # but no more runs than this
_SLOW = 2e-2  # seconds; whoever needs longer is measured three times, not more
_LONG = 0.1  # seconds; a launch is nothing beside them, so there is no graph
_VERY_LONG = 0.5  # seconds; and once is enough


def times(runs: Mapping[str, Run], calls: int, repeats: int) -> dict[str, Time]:
    """Milliseconds of one call of each; eager times come first, so that graphs find free memory."""
    for run in runs.values():  # compiled
        run()
    once = {name: _clock(run) for name, run in runs.items()}
    long = {name: _few(runs[name], s) for name, s in once.items() if s > _LONG}
    runs = {name: run for name, run in runs.items() if name not in long}
    eager = long | _medians(runs, repeats)
    torch.cuda.empty_cache()
    # One pool for all graphs: nobody reads their results, so one may overwrite those of another.
    stream, pool = _stream(), torch.cuda.graph_pool_handle()
    graphs = {name: capture(run, stream, pool) for name, run in runs.items()}
    replays = {name: graph.replay for name, graph in graphs.items() if graph is not None}
    replayed = _medians(replays, repeats)
    del graphs, replays
    torch.cuda.empty_cache()
    return {
        name: Time(
            replayed.get(name, seconds) * 1e3 / calls,
            seconds * 1e3 / calls,
            None if name in long else name in replayed,
        )
        for name, seconds in eager.items()
    }


def _few(run: Run, seconds: float) -> float:
    """The median of three runs, of which the first has been."""
    if seconds > _VERY_LONG:
        return seconds
    return statistics.median([seconds, _clock(run), _clock(run)])


def capture(run: Run, stream: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph | None:
    """The run as a graph, or None where it waits for the device."""
    if not free_of_waiting(run, stream):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        # The outer context gives the stream back even if the inner one fails on its way out.
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool, stream=stream),
        ):
            # Results live until the end, so that no call finds those of another in the cache.
            results = run()
    except RuntimeError:
        return None
    del results
    return graph


def free_of_waiting(run: Run, stream: torch.cuda.Stream) -> bool:
    """Whether the run never waits for the device; a capture that fails may leave a mess behind."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            run()
        except RuntimeError:
            return False
        finally:
            torch.cuda.set_sync_debug_mode(before)
            stream.synchronize()
    return True


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second that a copy within the device reads and writes."""
    source = torch.zeros(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / _medians({"copy": lambda: target.copy_(source)}, 15)["copy"]


def _medians(runs: Mapping[str, Run], repeats: int) -> dict[str, float]:
    """Median seconds of each run, from batches of them between two events."""
    sizes = {}
    for name, run in runs.items():
        run()
        sizes[name] = batch(_clock(run))
    batches = {name: _repeated(run, sizes[name]) for name, run in runs.items()}
    return {
        name: seconds / sizes[name]
        for name, seconds in medians(batches, repeats, _clock, _SLOW).items()
    }


def batch(seconds: float) -> int:
    """How many runs of so many seconds fill the time between two events.

    >>> batch(3e-4), batch(1.0), batch(0.0)
    (7, 1, 100)
    """
    return _MOST if seconds * _MOST <= _BATCH else max(1, math.ceil(_BATCH / seconds))


def _repeated(run: Run, count: int) -> Run:
    def runs() -> None:
        for _ in range(count):
            run()

    return runs


def _clock(run: Run) -> float:
    start, end = _event(), _event()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
