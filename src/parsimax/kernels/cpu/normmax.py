"""Rows of normmax: p = (z - tau)_+^gamma / sum, where the conjugate norm of (z - tau)_+ is one."""

from __future__ import annotations

import math

import numpy as np

from .jit import kernel, reduction
from .power import solve_power
from .rows import BLOCK, survey


@kernel
def normmax_forward(start, stop, z, alphas, p):
    """Rows ``start`` to ``stop``; gamma = 1 / (alpha - 1). In float64 whatever the rows are.

    A threshold that is off by the last digit of float32 is off for a whole crowd of scores next
    to it, and the largest probability then by that digit times the size of the crowd.
    """
    d = z.shape[1]
    blocks = (d + BLOCK - 1) // BLOCK
    tops = np.empty(blocks)
    where = np.empty(d, np.int32)
    x, y, q = np.empty(d), np.empty(d), np.empty(d)
    for row in range(start, stop):
        alpha = alphas[row if alphas.size > 1 else 0]
        x[:] = z[row]
        top, nan, _ = survey(x, tops)
        if top == -np.inf and not nan:
            p[row, :] = 0.0
        elif nan or top == np.inf or not (1.0 < alpha < np.inf):
            p[row, :] = np.nan
        else:
            solve_power(x, top, tops, blocks, alpha - 1.0, True, y, where, q)
            p[row, :] = q


@kernel
def _norm(p, alpha):
    """|p|_alpha and the mean of log(p) under p^alpha, relative to the largest: no underflow."""
    top = 0.0
    for i in range(p.size):
        top = max(top, np.float64(p[i]))
    if top == 0.0:
        return 0.0, 0.0
    powers, logs = 0.0, 0.0
    for i in range(p.size):
        if p[i] > 0.0:
            ratio = np.float64(p[i]) / top
            v = ratio**alpha
            powers += v
            logs += v * math.log(ratio)
    return top * powers ** (1.0 / alpha), math.log(top) + logs / powers


@reduction
def _dot(a, b):
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@kernel
def normmax_backward(start, stop, p, g, alphas, out, dalphas):
    """J = kappa (I - p 1') diag(p^(2-alpha)) (I - 1 p'), kappa = |p|_alpha^(alpha-1)/(alpha-1)."""
    for row in range(start, stop):
        alpha = alphas[row if alphas.size > 1 else 0]
        pr, gr, s = p[row], g[row], out[row]
        if pr[0] != pr[0]:
            s[:] = np.nan
            if dalphas.size > 0:
                dalphas[row] = np.nan
            continue
        norm, mean_log = _norm(pr, alpha)
        if norm == 0.0:
            s[:] = 0.0
            if dalphas.size > 0:
                dalphas[row] = 0.0
            continue
        mean = _dot(pr, gr)
        shift = 0.0
        for i in range(pr.size):
            shift += _slope(pr[i], norm, alpha) * (np.float64(gr[i]) - mean)
        for i in range(pr.size):
            h = _slope(pr[i], norm, alpha) * (np.float64(gr[i]) - mean)
            s[i] = h - np.float64(pr[i]) * shift
        if dalphas.size > 0:
            dalphas[row] = _alpha_row(pr, gr, alpha, norm, mean_log)


@kernel
def _slope(p, norm, alpha):
    """kappa p^(2-alpha), written so that nothing overflows that is not itself too large."""
    if not p > 0.0:
        return 0.0
    wide, beta = np.float64(p), alpha - 1.0
    if beta < 1.0:
        return wide ** (1.0 - beta) * norm**beta / beta
    return wide * (norm / wide) ** beta / beta


@kernel
def _alpha_row(p, g, alpha, norm, mean_log):
    """<g, dp/dalpha> with r = (p / |p|)^(alpha-1) and p = r^gamma / sum."""
    gamma = 1.0 / (alpha - 1.0)
    log_norm = math.log(norm)
    # log r = (alpha-1) (log p - log|p|);  sum r^(gamma+1) log r over sum r^gamma, times 1/(gamma+1)
    scale = 1.0 / norm  # sum r^gamma
    dtau = (alpha - 1.0) * (mean_log - log_norm) / ((gamma + 1.0) * scale)
    change_sum, against = 0.0, 0.0
    for i in range(p.size):
        if p[i] > 0.0:
            q = np.float64(p[i]) * scale
            log_r = (alpha - 1.0) * (math.log(np.float64(p[i])) - log_norm)
            change = q * log_r - gamma * q * math.exp(-log_r) * dtau
            change_sum += change
            against += np.float64(g[i]) * change
    dgamma = (against - _dot(p, g) * change_sum) / scale
    return -dgamma * gamma * gamma
