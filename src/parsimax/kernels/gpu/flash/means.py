"""w, the mean of values that the backward needs: 16 bits a number where inputs have no more.

Gradients are differences to it, in which the digits of a half would leave little of small ones. So
each query has a unit of its own, and whole numbers of it: off by 2^-16 of the largest at most.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.reductions import maximum

from .blocks import load_rows

_MOST = tl.constexpr(32767.0)
_LEAST = tl.constexpr(2.0**-110)  # a unit of it has an inverse, and neither is flushed to zero
_LAST_BITS = tl.constexpr(1.5 * 2**23)  # a sum with it has a whole number in its last bits
_FROM_LAST_BITS = tl.constexpr(2.0**23 + 2**15)


@triton.jit
def store_mean(mean_ptr, unit_ptr, places, row, mean, inside, ours):
    """Of some queries; a unit that is no number shows that one of the mean is none."""
    if mean_ptr.dtype.element_ty == tl.int16:
        largest = maximum(tl.abs(mean), 1)
        unit = tl.where(largest < _LEAST, _LEAST, largest) / _MOST
        bits = (mean * (1.0 / unit)[:, None] + _LAST_BITS).to(tl.int32, bitcast=True)
        tl.store(mean_ptr + places, bits.to(tl.int16), mask=inside)
        tl.store(unit_ptr + row, unit, mask=ours)
    else:
        tl.store(mean_ptr + places, mean, mask=inside)


@triton.jit
def against_mean(
    g, mean_ptr, unit_ptr, rows, row, step, queries, value_size,
    WHOLE: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """<g, w> of every query."""
    mean = load_rows(mean_ptr, rows, step, queries, value_size, WHOLE, VALUES)
    if mean_ptr.dtype.element_ty == tl.int16:
        # 2^23 + 2^15 and the whole number: its bits, of which the first of 16 is turned
        bits = (mean.to(tl.int32) & 0xFFFF) ^ 0x4B008000
        whole = bits.to(tl.float32, bitcast=True) - _FROM_LAST_BITS
        unit = tl.load(unit_ptr + row, mask=rows < queries, other=0.0)
        return tl.sum(g.to(tl.float32) * whole, 1) * unit
    else:
        return tl.sum(g.to(tl.float32) * mean, 1)
