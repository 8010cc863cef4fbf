"""Compiled kernels that the next process finds again."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Triton sorts the constants that a kernel refers to by their names and then by where their modules
# lie in memory. If a name has two values, what a kernel is filed under depends on chance.
NAMES = """
import collections, importlib, pkgutil
import parsimax.kernels.gpu as gpu
from triton.runtime.jit import JITFunction

kernels = {}
for module in pkgutil.walk_packages(gpu.__path__, gpu.__name__ + "."):
    for value in vars(importlib.import_module(module.name)).values():
        kernel = getattr(value, "kernel", value)
        if isinstance(kernel, JITFunction):
            kernels[kernel.cache_key] = kernel
for kernel in kernels.values():
    values = collections.defaultdict(set)
    for (name, _), (value, _) in kernel.used_global_vals.items():
        values[name].add(repr(value))
    for name, found in values.items():
        if len(found) > 1:
            print("twice:", kernel.__name__, name, found)
print(len(kernels), "kernels")
"""


def test_no_kernel_refers_to_two_constants_of_one_name() -> None:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", NAMES], env=environment, capture_output=True, text=True, check=True
    )
    *twice, last = made.stdout.splitlines()
    assert not twice
    assert int(last.split()[0]) > 20
