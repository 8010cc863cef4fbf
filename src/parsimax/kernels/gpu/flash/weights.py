"""Weights of one block of keys, from its scores and the thresholds of the queries."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.approx import exp2, log2
from parsimax.kernels.gpu.newton import ALWAYS, NEAR_ONE, NEVER, POWER, relative, terms

STEEP = tl.constexpr(4)  # POWER above alpha = 2


@triton.jit
def steep(y, x, beta, gamma):
    """(p, p^(2 - alpha)) above alpha = 2, where p falls steeply towards zero."""
    w = tl.maximum(tl.fma(y, beta, x), 0.0)
    log = log2(tl.maximum(w, 1e-37))
    inside = w > 0.0
    return tl.where(inside, exp2(gamma * log), 0.0), tl.where(
        inside, exp2(tl.minimum((gamma - 1.0) * log, 100.0)), 0.0
    )


@triton.jit
def weigh(
    s, top, x, beta, KIND: tl.constexpr, NEAR: tl.constexpr, TENSOR: tl.constexpr
):  # fmt: skip
    """(p, p^(2 - alpha)), both zero off the support; the mass of p is one but for rounding."""
    y = relative(s, top[:, None], KIND)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    if TENSOR:
        if beta < NEAR_ONE:
            p, u = terms(y, x[:, None], beta, gamma, True, POWER, ALWAYS)
        elif beta <= 1.0:
            p, u = terms(y, x[:, None], beta, gamma, False, POWER, NEVER)
        else:
            p, u = steep(y, x[:, None], beta, gamma)
    elif KIND == STEEP:
        p, u = steep(y, x[:, None], beta, gamma)
    else:
        p, u = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
    return p, tl.where(p > 0.0, u, 0.0)
