"""What the interpreter does not see: whether Triton's compiler accepts the kernels at all.

Its first stage needs no GPU and takes a fraction of a second for a kernel; types that change in a
branch or a loop end there.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

FIRST_STAGE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from parsimax.kernels.gpu import quick
from parsimax.kernels.gpu.flash import launch, problem


class Hopper:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Accepted(Exception):
    pass


def one_stage(self, stages, *rest):
    own_stages(self, stages, *rest)
    first = stages["ttir"]

    def stop(*arguments):
        first(*arguments)
        raise Accepted

    stages["ttir"] = stop


def note(self, grid, *arguments):
    try:
        self._kernel.warmup(*arguments, grid=grid, **self._options)
    except Accepted:
        accepted.add(self._kernel.__name__)


driver.set_active(Hopper())
own_stages, CUDABackend.add_stages = CUDABackend.add_stages, one_stage
quick.Prepared.__call__ = note
quick.Prepared.known_here = lambda self: (None, None, None, None, ())
quick.current_device = quick._current_stream = lambda *_: 0
accepted = set()
causal = (problem.UNLIMITED, 0)
starts = torch.tensor([0, 100, 4096])
packed = problem.Packed(starts, starts, 3996, 3996, True)
mask = torch.ones(1, 2, 4096, 4096, dtype=torch.bool)
alphas = torch.full((2,), 1.5)
for dtype, size, alpha, options in (
    (torch.bfloat16, 64, 1.5, {}),
    (torch.bfloat16, 64, alphas, {"band": causal}),
    (torch.float16, 128, 1.3, {"band": causal, "lengths": torch.tensor([4000])}),
    (torch.float32, 40, 2.0, {"seen": mask}),
    (torch.float32, 64, alphas, {"seen": mask.float(), "offset": 3}),
    (torch.bfloat16, 64, 3.0, {}),
    (torch.bfloat16, 64, 1.0, {"packed": packed}),
    (torch.bfloat16, 64, alphas, {"packed": packed}),
    (torch.bfloat16, 64, 1.3, {"band": causal}),
):
    q = torch.empty(1, 2, 4096, size, dtype=dtype)
    seen = options.pop("seen", None)
    tiles = problem.tiles_for(q, q)
    p = problem.Problem(q, q, q, seen, alpha, 0.5, tiles=tiles, **options)
    want = isinstance(alpha, torch.Tensor)
    launch.forward(p, train=False)
    out, saved = launch.forward(p, train=True)
    launch.backward(p, saved, q, want, want_scores=seen is not None and seen.dtype != torch.bool)
    if p.packed is None:
        launch.count(p, 64)
print(*sorted(accepted))
"""


def test_kernels_of_attention_over_many_keys() -> None:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", FIRST_STAGE],
        env=environment | {"TRITON_ALWAYS_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    wanted = {f"{name}_kernel" for name in ("tops", "threshold", "output", "query", "key", "count")}
    wanted |= {"compact", "listed_output_kernel", "listed_query_kernel"}
    assert wanted <= set(made.stdout.split())
