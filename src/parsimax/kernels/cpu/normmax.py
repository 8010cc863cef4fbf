"""Rows of normmax: p = (z - tau)_+^gamma / sum, where the conjugate norm of (z - tau)_+ is one."""

from __future__ import annotations

import math

import numpy as np

from .entmax import weigh_power
from .jit import kernel, reduction
from .power import solve_power
from .rows import BLOCK, survey
from .scalar import cast


@kernel
def normmax_forward(start, stop, z, alphas, p):
    """Rows ``start`` to ``stop``; gamma = 1 / (alpha - 1)."""
    d = z.shape[1]
    blocks = (d + BLOCK - 1) // BLOCK
    tops = np.empty(blocks, z.dtype)
    where = np.empty(d, np.int32)
    y = np.empty(d, z.dtype)
    for row in range(start, stop):
        alpha = alphas[row if alphas.size > 1 else 0]
        top, nan, _ = survey(z[row], tops)
        if top == -np.inf and not nan:
            p[row, :] = 0.0
        elif nan or top == np.inf or not (1.0 < alpha < np.inf):
            p[row, :] = np.nan
        else:
            solve_power(z[row], top, tops, blocks, alpha - 1.0, True, y, where, p[row])


@reduction
def _moments(p, alpha):
    """sum p^alpha and sum p^alpha log(p), over the support."""
    powers, logs = 0.0, 0.0
    for i in range(p.size):
        if p[i] > 0.0:
            v = np.float64(p[i]) ** alpha
            powers += v
            logs += v * math.log(np.float64(p[i]))
    return powers, logs


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
        powers, logs = _moments(pr, alpha)
        if powers == 0.0:
            s[:] = 0.0
            if dalphas.size > 0:
                dalphas[row] = 0.0
            continue
        norm = powers ** (1.0 / alpha)
        kappa = norm ** (alpha - 1.0) / (alpha - 1.0)
        mean = _dot(pr, gr)
        total, against = 0.0, 0.0
        if alpha < 2.0:
            total, against = weigh_power(pr, gr, cast(2.0 - alpha, pr[0]), s)
        else:
            for i in range(pr.size):
                v = np.float64(pr[i]) ** (2.0 - alpha) if pr[i] > 0.0 else 0.0
                s[i] = v
                total += v
                against += v * np.float64(gr[i])
        shift = kappa * (against - mean * total)
        for i in range(pr.size):
            h = kappa * np.float64(s[i]) * (np.float64(gr[i]) - mean)
            s[i] = h - np.float64(pr[i]) * shift
        if dalphas.size > 0:
            dalphas[row] = _alpha_row(pr, gr, alpha, norm, logs / powers)


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
