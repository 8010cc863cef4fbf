"""Forward and backward of a mapping need at most one buffer beyond what the caller sees."""

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
import torch
import parsimax as px

torch.set_num_threads(1)

def run(z, g, alpha, dim, masked):
    p = px.entmax(z, alpha, dim=dim, mask=mask[: len(z), : len(z)] if masked else None)
    p.backward(g)
    return p

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

mask = torch.rand(4096, 4096) < 0.5
g = torch.randn(4096, 4096)
for text in sys.argv[1:]:
    alpha, dim, which = text.split()
    case = float(alpha), int(dim), which == "masked"
    small = torch.randn(64, 64, requires_grad=True)
    run(small, torch.ones(64, 64), *case)  # compiles
    z = torch.randn(4096, 4096, requires_grad=True)
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the peak starts anew from here
    p = run(z, g, *case)
    print((status("VmHWM") - before) / (z.numel() * 4 / 1024))
    del z, p
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_output_and_gradient_and_at_most_one_buffer():
    cases = ["1.0 -1 all", "1.3 -1 all", "1.5 -1 all", "2.0 -1 all", "1.5 -1 masked", "1.5 0 all"]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *cases], capture_output=True, text=True, check=True
    )
    found = dict(zip(cases, map(float, done.stdout.split()), strict=True))
    # two are the output and its gradient
    assert all(1.9 < buffers < 3.1 for buffers in found.values()), found
