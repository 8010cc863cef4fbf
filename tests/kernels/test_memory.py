"""Forward and backward of a mapping need at most one buffer beyond what the caller sees."""

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
import torch
import parsimax as px

torch.set_num_threads(1)
alpha, dim, masked = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "masked"

def run(z, g):
    p = px.entmax(z, alpha, dim=dim, mask=mask[: len(z), : len(z)] if masked else None)
    p.backward(g)
    return p

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

mask = torch.rand(4096, 4096) < 0.5
small = torch.randn(64, 64, requires_grad=True)
run(small, torch.ones(64, 64))  # compiles
z = torch.randn(4096, 4096, requires_grad=True)
g = torch.randn(4096, 4096)
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")  # the peak starts anew from here
p = run(z, g)
print((status("VmHWM") - before) / (z.numel() * 4 / 1024))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize(
    "arguments",
    [
        ("1.0", "-1", "all"),
        ("1.3", "-1", "all"),
        ("1.5", "-1", "all"),
        ("2.0", "-1", "all"),
        ("1.5", "-1", "masked"),
        ("1.5", "0", "all"),
    ],
)
def test_output_and_gradient_and_at_most_one_buffer(arguments):
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    buffers = float(done.stdout)
    assert 1.9 < buffers < 3.1  # two are the output and its gradient
