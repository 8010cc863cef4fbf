"""Where the time of a call goes on a GPU: milliseconds of each kernel."""

from __future__ import annotations

import re

import torch

from parsimax.bench.timing import Run

_FEW = 3
_SMALL = 0.01  # of the whole; what takes less is put together
OTHERS = "others"


def kernels(run: Run) -> dict[str, float]:
    """Milliseconds by the name of the kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(_FEW):
            run()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in found.key_averages():
        name, ms = short(event.key), event.device_time_total / 1e3 / _FEW
        times[name] = times.get(name, 0.0) + ms
    return largest(times)


def largest(times: dict[str, float]) -> dict[str, float]:
    """Those that matter, the longest first, and the rest of them together.

    >>> largest({"a": 0.001, "b": 5.0, "c": 0.002, "d": 10.0})
    {'d': 10.0, 'b': 5.0, 'others': 0.003}
    """
    whole = sum(times.values())
    kept = {name: ms for name, ms in times.items() if ms >= _SMALL * whole}
    rest = sum(ms for name, ms in times.items() if name not in kept)
    result = dict(sorted(kept.items(), key=lambda pair: -pair[1]))
    return result | ({OTHERS: rest} if rest > 0 else {})


def short(name: str) -> str:
    """A kernel's name without its types, namespaces and ``_kernel``.

    >>> short("void at::native::elementwise_kernel<128, 4>(int, float)"), short("tops_kernel")
    ('elementwise', 'tops')
    """
    plain = re.split(r"[<(]", name.removeprefix("void "))[0]
    return plain.split("::")[-1].removesuffix("_kernel") or name[:20]
