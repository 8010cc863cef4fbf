"""Several sums or maxima over one dimension at a time.

Reducing them together shares the synchronisation between warps. Triton's interpreter would call
such a function once for each element, so it takes them one by one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import INTERPRETED


@triton.jit
def _add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add3(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def solid(x, FEW: tl.constexpr):
    """``x``, rounded, where a thread has no more than one element to sum up over a row.

    A compiler may fuse a product with the addition that follows. If that is the first one between
    two threads, each adds the other's rounded product to its own unrounded one, they no longer
    agree in the last digit, and may part ways at a branch.
    """
    if FEW and not INTERPRETED:
        return tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, 0f00000000;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return x


@triton.jit
def larger(a, b):
    """The maximum, or NaN where one of them is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _larger2(a1, a2, b1, b2):
    return larger(a1, b1), tl.maximum(tl.minimum(a1, b1), tl.maximum(a2, b2))


@triton.jit
def sum2(a, b, AXIS: tl.constexpr):
    """Two sums."""
    if INTERPRETED:
        return tl.sum(a, AXIS), tl.sum(b, AXIS)
    else:
        return tl.reduce((a, b), AXIS, _add2)


@triton.jit
def sum3(a, b, c, AXIS: tl.constexpr):
    """Three sums."""
    if INTERPRETED:
        return tl.sum(a, AXIS), tl.sum(b, AXIS), tl.sum(c, AXIS)
    else:
        return tl.reduce((a, b, c), AXIS, _add3)


@triton.jit
def maximum(a, AXIS: tl.constexpr):
    """The maximum; NaN if there is one (+inf in the interpreter, which makes a row NaN as well)."""
    if INTERPRETED:
        return tl.max(tl.where(a != a, float("inf"), a), AXIS)
    else:
        return tl.reduce(a, AXIS, larger)


@triton.jit
def maximum2(first, second, AXIS: tl.constexpr):
    """The two largest of pairs (first, second) with first >= second."""
    if INTERPRETED:
        first = tl.where(first != first, float("inf"), first)
        top = tl.max(first, AXIS)
        is_top = first == tl.expand_dims(top, AXIS)
        runner_up = tl.max(tl.where(is_top, second, first), AXIS)
        tied = tl.sum(tl.where(is_top, 1, 0), AXIS) > 1
        return top, tl.where(tied, top, runner_up)
    else:
        return tl.reduce((first, second), AXIS, _larger2)
