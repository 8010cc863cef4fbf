"""Powers of what lies above a threshold; all are 0 where that is nothing, and exponents above 0."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import INTERPRETED, exp2, log2

_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def power(w, exponent):
    """(w^(exponent + 1), w^exponent)."""
    w = tl.maximum(w, 0.0)
    u = exp2(exponent * log2(w))
    return u * w, u


@triton.jit
def spread_power(w, exponent):
    """As :func:`power` to a relative 3e-6, with less work for the unit that all others wait for.

    That unit takes logarithms and powers an eighth as fast as others multiply, so every second
    power is a polynomial: 2^x is 2^n 2^f with n the nearest integer, which the addition of a large
    number leaves in the last digits.
    """
    if INTERPRETED:
        return power(w, exponent)
    else:
        w = tl.maximum(w, 0.0)
        u = tl.inline_asm_elementwise(
            """{
            .reg .f32 x, n, f;
            .reg .s32 shift, bits;
            mul.ftz.f32 x, $2, $4;
            ex2.approx.ftz.f32 $0, x;
            max.ftz.f32 x, $3, $7;
            fma.rn.ftz.f32 n, x, $5, 0f4B400000;
            mov.b32 shift, n;
            sub.rn.ftz.f32 n, n, 0f4B400000;
            neg.ftz.f32 n, n;
            fma.rn.ftz.f32 f, x, $5, n;
            fma.rn.ftz.f32 x, f, 0f3C1CC4FD, 0f3D650A90;
            fma.rn.ftz.f32 x, x, f, 0f3E760399;
            fma.rn.ftz.f32 x, x, f, 0f3F31706E;
            fma.rn.ftz.f32 x, x, f, 0f3F7FFFF3;
            mov.b32 bits, x;
            shl.b32 shift, shift, 23;
            add.s32 bits, bits, shift;
            mov.b32 $1, bits;
            }""",
            "=&f,=&f,f,f,f,f,f,f", [log2(w), exponent, -125.0 / exponent],
            dtype=tl.float32, is_pure=True, pack=2,
        )  # fmt: skip
        return u * w, u


@triton.jit
def power_and_change(w, exponent):
    """(w^exponent, the same times 1 - w + w ln w).

    The second is the derivative of a weight by alpha, up to a factor. It loses digits near w = 1.
    """
    w = tl.maximum(w, 0.0)
    log = log2(w)
    u = exp2(exponent * log)
    return u, u * tl.fma(w, tl.fma(_LN2, tl.maximum(log, -127.0), -1.0), 1.0)
