"""Scalar arithmetic that LLVM can vectorise: bit casts, fma, and float32 ``exp`` and ``log``.

Numba has no vector ``exp``/``log`` without Intel's SVML, and a call to libm per element is ten
times slower than the softmax we are measured against. The float32 versions below are polynomials
on a reduced argument (about 1 ulp); for float64 the library functions are used.

The functions are not compiled with fast-math flags: compensated sums must stay as written. Callers
that only add things up use :data:`.jit.reduction`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types

from .jit import kernel

# numba's own annotations describe these decorators by what they do inside compiled code
intrinsic: Any = extending.intrinsic
overload: Any = extending.overload

_INT_OF: dict[Any, Any] = {types.float32: types.int32, types.float64: types.int64}


@intrinsic
def bits(typingctx, x):
    """The bit pattern of a float as a signed integer of the same width."""
    target = _INT_OF[x]

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(target))

    return target(x), codegen


@intrinsic
def from_bits(typingctx, pattern, like):
    """The float, of the type of ``like``, with this bit pattern.

    Numba widens integer arithmetic to 64 bits; the bits above the float's width are dropped.
    """

    def codegen(context, builder, signature, args):
        narrow = context.cast(builder, args[0], signature.args[0], _INT_OF[like])
        return builder.bitcast(narrow, context.get_value_type(like))

    return like(pattern, like), codegen


@intrinsic
def cast(typingctx, value, like):
    """``value`` in the type of ``like``; keeps literals from widening float32 to float64."""

    def codegen(context, builder, signature, args):
        return context.cast(builder, args[0], signature.args[0], signature.return_type)

    return like(value, like), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """``a * b + c`` with one rounding."""

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return a(a, a, a), codegen


@intrinsic
def nearest(typingctx, x):
    """``x`` rounded to the nearest whole number, as a float."""

    def codegen(context, builder, signature, args):
        lltype = context.get_value_type(signature.return_type)
        rint = builder.module.declare_intrinsic("llvm.rint", [lltype])
        return builder.call(rint, args)

    return x(x), codegen


@intrinsic
def lowest_bit(typingctx, pattern):
    """The place of the lowest set bit of an integer that is not zero."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return pattern(pattern), codegen


@intrinsic
def bit_count(typingctx, pattern):
    """How many bits of an integer are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return pattern(pattern), codegen


@intrinsic
def block_above(typingctx, z, start, bar):
    """Bit i is set where ``z[start + i] > bar``, for the 32 scores from ``start`` on."""
    signature = types.int64(z, types.intp, z.dtype)

    def codegen(context, builder, sig, args):
        row = context.make_array(sig.args[0])(context, builder, args[0])
        scalar = context.get_value_type(sig.args[0].dtype)
        vector = ir.VectorType(scalar, 32)
        place = builder.gep(row.data, [args[1]], source_etype=scalar)
        block = builder.load(place, typ=vector, align=sig.args[0].dtype.bitwidth // 8)
        lane = builder.insert_element(
            ir.Constant(vector, ir.Undefined), args[2], ir.Constant(ir.IntType(32), 0)
        )
        bars = builder.shuffle_vector(
            lane,
            ir.Constant(vector, ir.Undefined),
            ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32),
        )
        mask = builder.bitcast(builder.fcmp_ordered(">", block, bars), ir.IntType(32))
        return builder.zext(mask, ir.IntType(64))

    return signature, codegen


_f = np.float32
_i = np.int32
_ZERO, _ONE, _HALF = _f(0), _f(1), _f(0.5)
_LOG2E = _f(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440e-4)
_SQRT_HALF_BITS, _MANTISSA_BITS, _BIAS = _i(0x3F3504F3), _i(23), _i(127)
# exp(f) = 1 + f + f^2 P(f) on |f| <= ln(2)/2, and log(1 + f) = f - f^2/2 + f^3 Q(f) on
# sqrt(1/2) <= 1 + f < sqrt(2): minimax coefficients, highest power first.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
_E0, _E1, _E2, _E3, _E4 = (_f(c) for c in _EXP)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = (_f(c) for c in _LOG)
_EXP_LOWEST = _f(-87.0)
_TINY32 = _f(1.2e-38)


@kernel
def _exp32(x):
    kept = x if x > _EXP_LOWEST else _EXP_LOWEST
    n = nearest(kept * _LOG2E)
    f = fma(-n, _LN2_LOW, fma(-n, _LN2_HIGH, kept))
    p = fma(_E0, f, _E1)
    p = fma(p, f, _E2)
    p = fma(p, f, _E3)
    p = fma(p, f, _E4)
    p = fma(p, f, _HALF)
    p = fma(p, f * f, f) + _ONE
    scaled = p * from_bits((_i(n) + _BIAS) << _MANTISSA_BITS, x)
    return scaled if x > _EXP_LOWEST else _ZERO


@kernel
def _log32(x):
    kept = x if x > _TINY32 else _TINY32
    pattern = bits(kept)
    e = (pattern - _SQRT_HALF_BITS) >> _MANTISSA_BITS
    f = from_bits(pattern - (e << _MANTISSA_BITS), x) - _ONE
    p = fma(_L0, f, _L1)
    p = fma(p, f, _L2)
    p = fma(p, f, _L3)
    p = fma(p, f, _L4)
    p = fma(p, f, _L5)
    p = fma(p, f, _L6)
    p = fma(p, f, _L7)
    p = fma(p, f, _L8)
    square = f * f
    fe = _f(e)
    tail = fma(p * f, square, fe * _LN2_LOW)
    return fma(fe, _LN2_HIGH, fma(-_HALF, square, tail) + f)


def exp(x):
    """``e**x`` for x <= 88; exactly 0 below the smallest normal number."""


def log(x):
    """Natural logarithm of a positive, normal number."""


@overload(exp)
def _exp_by_type(x):
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: math.exp(x)


@overload(log)
def _log_by_type(x):
    if x == types.float32:
        return lambda x: _log32(x)
    return lambda x: math.log(x)


@kernel
def _ordered32(x):
    b = bits(x)
    return _i(b ^ ((b >> _i(31)) & _i(0x7FFFFFFF)))


@kernel
def _ordered64(x):
    b = bits(x)
    return b ^ ((b >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))


@kernel
def _isnan32(x):
    return _i((bits(x) & _i(0x7FFFFFFF)) > _i(0x7F800000))


@kernel
def _isnan64(x):
    return np.int64((bits(x) & np.int64(0x7FFFFFFFFFFFFFFF)) > np.int64(0x7FF0000000000000))


def ordered(x):
    """An integer that sorts as ``x`` does: integer maxima vectorise, float maxima do not."""


def isnan(x):
    """1 for NaN, else 0, as an integer of the float's width."""


def unordered(key, like):
    """The float, of the type of ``like``, whose :func:`ordered` key this is."""


@overload(ordered)
def _ordered_by_type(x):
    if x == types.float32:
        return lambda x: _ordered32(x)
    return lambda x: _ordered64(x)


@overload(isnan)
def _isnan_by_type(x):
    if x == types.float32:
        return lambda x: _isnan32(x)
    return lambda x: _isnan64(x)


@overload(unordered)
def _unordered_by_type(key, like):
    if like == types.float32:
        return lambda key, like: from_bits(key ^ ((key >> _i(31)) & _i(0x7FFFFFFF)), like)
    return lambda key, like: from_bits(
        key ^ ((key >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)), like
    )


def excess(v):
    """``(e**v - 1 - v) / v**2`` for v >= 0, without cancellation near 0."""


def decay(v):
    """``(1 - e**-v) / v`` for v >= 0, without cancellation near 0."""


# Taylor coefficients; at v = 1 (v = 1/2) the first term left out is below one ulp.
_EXCESS = tuple(_f(1 / math.factorial(k + 2)) for k in range(9, -1, -1))
_DECAY = tuple(_f((-1) ** k / math.factorial(k + 1)) for k in range(7, -1, -1))
_X0, _X1, _X2, _X3, _X4, _X5, _X6, _X7, _X8, _X9 = _EXCESS
_D0, _D1, _D2, _D3, _D4, _D5, _D6, _D7 = _DECAY


@kernel
def _excess32(v):
    near = v if v < _ONE else _ONE
    p = fma(_X0, near, _X1)
    p = fma(p, near, _X2)
    p = fma(p, near, _X3)
    p = fma(p, near, _X4)
    p = fma(p, near, _X5)
    p = fma(p, near, _X6)
    p = fma(p, near, _X7)
    p = fma(p, near, _X8)
    p = fma(p, near, _X9)
    far = v if v > _ONE else _ONE
    return p if v < _ONE else (_exp32(far) - _ONE - far) / (far * far)


@kernel
def _excess64(v):
    if v >= 1.0:
        return (math.exp(v) - 1.0 - v) / (v * v)
    total, term = 0.0, 0.5
    k = 2.0
    while term > 1e-18:
        total += term
        k += 1.0
        term *= v / k
    return total


@kernel
def _decay32(v):
    near = v if v < _HALF else _HALF
    p = fma(_D0, near, _D1)
    p = fma(p, near, _D2)
    p = fma(p, near, _D3)
    p = fma(p, near, _D4)
    p = fma(p, near, _D5)
    p = fma(p, near, _D6)
    p = fma(p, near, _D7)
    far = v if v > _HALF else _HALF
    return p if v < _HALF else (_ONE - _exp32(-far)) / far


@overload(excess)
def _excess_by_type(v):
    if v == types.float32:
        return lambda v: _excess32(v)
    return lambda v: _excess64(v)


@overload(decay)
def _decay_by_type(v):
    if v == types.float32:
        return lambda v: _decay32(v)
    return lambda v: -math.expm1(-v) / v if v > 0.0 else 1.0
