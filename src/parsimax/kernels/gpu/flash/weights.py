"""Weights of one block of keys, from its scores and the thresholds of the queries."""

from __future__ import annotations

import triton
import triton.language as tl

from parsimax.kernels.gpu.newton import ALWAYS, NEAR_ONE, NEVER, POWER, relative, terms


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
        else:
            p, u = terms(y, x[:, None], beta, gamma, False, POWER, NEVER)
    else:
        p, u = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
    return p, tl.where(p > 0.0, u, 0.0)
