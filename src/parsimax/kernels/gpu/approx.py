"""Powers, logarithms, quotients and roots by the GPU's own approximations, and rounding.

What Triton makes of ``log2`` takes some twenty instructions, and of ``exp2`` and ``/`` several; the
hardware has one for each, good to about 2^-22. Triton's interpreter knows no assembly and takes its
own functions.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def exp2(x):
    """2^x; 0 from x = -127 down."""
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log2(x):
    """The logarithm to base 2; -inf at 0. Near 1 the error is 2^-22 absolutely, not relatively."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def reciprocal(x):
    """1/x."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def square_root(x):
    """The root of x >= 0."""
    if INTERPRETED:
        return tl.sqrt(x)
    else:
        return tl.inline_asm_elementwise(
            "sqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _nearest_bfloat16(x):
    """To nearest, ties to even, as the GPU does; Triton's interpreter cuts the digits off."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 to the dtype of a result, to nearest."""
    if INTERPRETED and dtype == tl.bfloat16:
        x = _nearest_bfloat16(x)
    return x.to(dtype)
