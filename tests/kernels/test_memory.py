"""Forward and backward of a mapping need at most one buffer beyond what the caller sees."""

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
import torch
import parsimax as px

torch.set_num_threads(1)
alpha = float(sys.argv[1])

def run(z, g):
    p = px.entmax(z, alpha)
    p.backward(g)
    return p

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))

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
@pytest.mark.parametrize("alpha", ["1.0", "1.3", "1.5", "2.0"])
def test_output_and_gradient_and_at_most_one_buffer(alpha):
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, alpha], capture_output=True, text=True, check=True
    )
    buffers = float(done.stdout)
    assert 1.9 < buffers < 3.1  # two are the output and its gradient
