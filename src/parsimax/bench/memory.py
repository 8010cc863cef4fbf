"""The peak memory of one step of a loss."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parsimax.bench.loss_contenders import Layer, Logits, Sizes, layer, on_layer

_LIMIT_S = 600
_MIB = 1 << 20


def step(loss: Callable[[Any], Tensor], problem: Layer | Logits) -> Callable[[], object]:
    """Forward and backward."""
    return lambda: torch.autograd.grad(loss(problem), problem.leaves)


def gpu_peak(run: Callable[[], object], gradients: tuple[Tensor, ...]) -> float:
    """MiB at the peak of one run, beyond what was there and gradients as large as these tensors."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    size = sum(x.numel() * x.element_size() for x in gradients)
    return (torch.cuda.max_memory_allocated() - before - size) / _MIB


def cpu_peak(name: str, sizes: Sizes, alpha: float, std: float, dtype: str) -> float | None:
    """MiB beyond the inputs at the peak of one step in a fresh process; None where not measured."""
    if not sys.platform.startswith("linux"):
        return None
    arguments = [name, *(str(size) for size in sizes), str(alpha), str(std), dtype]
    done = subprocess.run(
        [sys.executable, "-m", "parsimax.bench.memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    return float(done.stdout) if done.returncode == 0 and done.stdout.strip() else None


def own_peak(name: str, sizes: Sizes, alpha: float, std: float, dtype: str) -> float:
    """The same for this process."""
    torch.set_num_threads(1)
    loss = on_layer(alpha)[name]
    kind: torch.dtype = getattr(torch, dtype)
    step(loss, layer(Sizes(70, 8, 100), std, kind))()  # compiles what is to be compiled
    inputs = layer(sizes, std, kind)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = _high_water()
    step(loss, inputs)()
    return (_high_water() - before) / 1024


def _high_water() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    tokens, hidden, words = (int(text) for text in sys.argv[2:5])
    alpha, std, dtype = float(sys.argv[5]), float(sys.argv[6]), sys.argv[7]
    print(own_peak(sys.argv[1], Sizes(tokens, hidden, words), alpha, std, dtype))
