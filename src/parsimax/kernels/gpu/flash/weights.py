"""Weights of one block of keys, from its scores and the thresholds of the queries.

All that is done to a score before a power is taken is one multiplication and one addition, and
these are put together once for a query: see :func:`line`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, log2
from parsimax.kernels.gpu.newton import ALWAYS, ENTMAX15, NEAR_ONE, POWER, SPARSEMAX, terms_near

from .powers import power

STEEP = tl.constexpr(4)  # POWER above alpha = 2
ANY = tl.constexpr(5)  # POWER of an alpha that only the GPU knows

LOG2E = tl.constexpr(1.4426950408889634)
# beta below which numbers of 16 bits do not tell entmax from softmax, nor w from 1
_SOFT = tl.constexpr(2.0**-12)
# beta from which a logarithm of w has the digits that numbers of 16 bits need
_GENTLE = tl.constexpr(0.01)
LEAST = tl.constexpr(-1e30)  # a row without larger scores is one that sees nothing


@triton.jit
def boost(dtype: tl.constexpr):
    """What weights are multiplied by before they are rounded to this type.

    float16 has few digits below 2^-14, where the weights of many keys lie.
    """
    return 32768.0 if dtype == tl.float16 else 1.0


@triton.jit
def ordinary(beta, ROUGH: tl.constexpr):
    """Whether POWER does for an alpha that only the GPU knows; the loop needs no branch then."""
    return (beta >= (_GENTLE if ROUGH else NEAR_ONE)) & (beta <= 1.0)


@triton.jit
def line(top, x, unit, beta, KIND: tl.constexpr, NEAR: tl.constexpr, ROUGH: tl.constexpr = False):
    """(a, b) such that a * score + b is what :func:`shares` takes.

    Numbers such as the least of float32 may be added to all scores of a row to hide it. It then has
    no digits for weights, which are 0, and the product with beta must not overflow.
    """
    if KIND == ENTMAX15:
        return unit * 0.5, -(x + 0.5 * top)
    elif KIND == SPARSEMAX or NEAR == ALWAYS:
        return unit, -(x + top)
    elif KIND == ANY:  # x is the threshold itself near 1
        far = tl.fma(-beta, tl.maximum(top, LEAST), x)
        if ROUGH:
            near = tl.where(beta < _SOFT, -(x + top), 1.0 - beta * (x + top))
            a = unit * tl.where(beta < _SOFT, 1.0, beta)
        else:
            near = -(x + top)
            a = unit * tl.where(beta < NEAR_ONE, 1.0, beta)
        return a, tl.where(beta < NEAR_ONE, near, far)
    else:
        return unit * beta, tl.fma(-beta, tl.maximum(top, LEAST), x)


@triton.jit
def _power(v, beta, gamma):
    """:func:`shares` on both sides of alpha = 2, where p falls to zero ever more steeply."""
    w = tl.maximum(v, 1e-37)
    u = tl.where(v > 0.0, exp2(tl.minimum((gamma - 1.0) * log2(w), 100.0)), 0.0)
    return u * w, u


@triton.jit
def exponent_of_u(gamma):
    """That of w in u = p^(2 - alpha), for alpha up to 2.

    At 2 it would be 0, and 0 times the logarithm of 0 is not a number.
    """
    return tl.maximum(gamma - 1.0, 1e-30)


@triton.jit
def _rough_power(v, beta, gamma):
    """As :func:`_power`, good for numbers of 16 bits: softmax where alpha is all but 1."""
    if beta.numel == 1:
        if beta < _SOFT:
            u = exp2(v * LOG2E)
            p = u
        elif beta <= 1.0:
            p, u = power(v, exponent_of_u(gamma))
        else:
            p, u = _power(v, beta, gamma)
        return p, u
    else:
        soft = beta < _SOFT
        w = tl.where(soft, 1.0, tl.maximum(v, 1e-37))
        log = tl.where(soft, v, log2(w))
        exponent = tl.where(soft, LOG2E, gamma - 1.0)
        u = tl.where(tl.where(soft, 1.0, v) > 0.0, exp2(tl.minimum(exponent * log, 100.0)), 0.0)
        return u * w, u


@triton.jit
def shares(v, beta, gamma, KIND: tl.constexpr, NEAR: tl.constexpr, ROUGH: tl.constexpr = False):
    """(p, p^(2 - alpha)), both zero off the support."""
    if KIND == SPARSEMAX:
        p = tl.maximum(v, 0.0)
        return p, tl.where(p > 0.0, 1.0, 0.0)
    elif KIND == ENTMAX15:
        u = tl.maximum(v, 0.0)
        return u * u, u
    elif NEAR == ALWAYS:
        return terms_near(v, 0.0, beta, gamma)
    elif KIND == POWER:
        return power(v, exponent_of_u(gamma))
    elif KIND == STEEP:
        return _power(v, beta, gamma)
    elif ROUGH:
        return _rough_power(v, beta, gamma)
    elif beta.numel == 1:
        if beta < NEAR_ONE:
            p, u = terms_near(v, 0.0, beta, gamma)
        else:
            p, u = _power(v, beta, gamma)
        return p, u
    else:
        p, u = _power(v, beta, gamma)
        near_p, near_u = terms_near(v, 0.0, beta, gamma)
        p = tl.where(beta < NEAR_ONE, near_p, p)
        u = tl.where(beta < NEAR_ONE, near_u, u)
        return p, u
