"""Products of tiles on tensor cores, added up in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import INTERPRETED


@triton.jit
def product(a, b):
    """``a @ b``; float32 keeps its digits, and Triton's interpreter needs it to add up in it."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def precise(a, b):
    """``a @ b`` for float32 ``a`` in two parts, the second being what rounding took away."""
    if INTERPRETED:
        return product(a, b)
    else:
        high = a.to(b.dtype)
        low = (a - high.to(tl.float32)).to(b.dtype)
        return product(high, b) + product(low, b)
