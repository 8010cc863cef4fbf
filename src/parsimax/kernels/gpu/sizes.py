"""Sizes of grids and tiles; Triton's own functions for them take two microseconds on the host."""

from __future__ import annotations

from functools import cache

import torch


def pieces(n: int, size: int) -> int:
    """How many pieces of this size cover ``n``."""
    return -(-n // size)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not less than ``n``, which is at least 1."""
    return 1 << (n - 1).bit_length()


@cache
def multiprocessors(device: torch.device) -> int:
    """For programs that go on to the next tile by themselves; two where kernels are interpreted."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
