"""Powers of what lies above a threshold, 0 where that is nothing; exponents are above 0."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, log2

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def power(w, exponent):
    """(w^(exponent + 1), w^exponent)."""
    w = tl.maximum(w, 0.0)
    u = exp2(exponent * log2(w))
    return u * w, u


@triton.jit
def power_and_change(w, exponent):
    """(w^exponent, 1 - w + w ln w).

    Their product is the derivative of a weight by alpha, up to a factor; it loses digits near
    w = 1.
    """
    w = tl.maximum(w, 0.0)
    log = log2(w)
    u = exp2(exponent * log)
    return u, tl.fma(w, tl.fma(_LN2, tl.maximum(log, -127.0), -1.0), 1.0)
