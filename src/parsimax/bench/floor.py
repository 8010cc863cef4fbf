"""The memory floor: no kernel can be faster than the bytes that it has to move."""

from __future__ import annotations

import math

# How many matrices a pass has to move: the forward reads the scores and writes the probabilities;
# the backward reads the probabilities and their gradient and writes the gradient of the scores.
MATRICES = {"forward": 2, "backward": 5}

_COLD = 4  # inputs and results must be this many times the cache, or they are found in it
_MOST_SETS = 8


def floor_ms(shape: tuple[int, int], itemsize: int, which: str, bandwidth: float) -> float:
    """Milliseconds that the bytes of one pass need; "backward" is forward and backward together.

    >>> floor_ms((16384, 4096), 2, "forward", 4e12)
    0.067108864
    """
    return 1e3 * MATRICES[which] * shape[0] * shape[1] * itemsize / bandwidth


def sets(shape: tuple[int, int], itemsize: int, cache: int) -> int:
    """How many inputs have to take turns, so that none is still in the cache when it comes again.

    >>> sets((16384, 512), 2, 50 << 20), sets((16384, 4096), 2, 50 << 20)
    (7, 1)
    """
    size = MATRICES["forward"] * shape[0] * shape[1] * itemsize
    return min(_MOST_SETS, max(1, math.ceil(_COLD * cache / size)))
