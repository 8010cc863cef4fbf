"""Rows of alpha-entmax and sparsegen, backward: gradients in the scores, in alpha and in lambda."""

from __future__ import annotations

import numpy as np

from .jit import kernel, reduction
from .rows import spread, support
from .scalar import cast, excess, exp, log

_NAN = np.nan


# One loop finds the mean of g under the weights s = p^(2 - alpha), the next applies it; weights
# that cost little are formed twice, which is cheaper than to store them in between.


@reduction
def _softmax_mean(p, g):
    total, against = 0.0, 0.0
    for i in range(p.size):
        total += np.float64(p[i])
        against += np.float64(p[i] * g[i])
    return against / total if total != 0.0 else 0.0


@reduction
def _softmax_apply(p, g, mean, out):
    for i in range(p.size):
        out[i] = p[i] * (g[i] - mean)


@reduction
def _sparsemax_mean(p, g):
    zero, one = cast(0.0, p[0]), cast(1.0, p[0])
    total, against = 0.0, 0.0
    for i in range(p.size):
        s = one if p[i] > zero else zero
        total += np.float64(s)
        against += np.float64(s * g[i])
    return against / total if total != 0.0 else 0.0


@reduction
def _sparsemax_apply(p, g, mean, out):
    zero, one = cast(0.0, p[0]), cast(1.0, p[0])
    for i in range(p.size):
        out[i] = (one if p[i] > zero else zero) * (g[i] - mean)


@reduction
def _entmax15_mean(p, g):
    total, against = 0.0, 0.0
    for i in range(p.size):
        s = np.sqrt(p[i])
        total += np.float64(s)
        against += np.float64(s * g[i])
    return against / total if total != 0.0 else 0.0


@reduction
def _entmax15_apply(p, g, mean, out):
    for i in range(p.size):
        out[i] = np.sqrt(p[i]) * (g[i] - mean)


@reduction
def _weigh_power(p, exponent, s):
    """``s = p**exponent`` on the support, exponent > 0."""
    zero, tiny = cast(0.0, p[0]), cast(1.2e-38, p[0])
    for i in range(p.size):
        kept = p[i] if p[i] > tiny else tiny
        v = exp(exponent * log(kept))
        s[i] = v if p[i] > zero else zero


@reduction
def _apply(g, mean, s):
    for i in range(g.size):
        s[i] *= g[i] - mean


@kernel
def _steep_backward(p, g, exponent, out):
    """alpha > 2: s = p**(2 - alpha) grows without bound as p -> 0.

    The gradient is centred on the entry with the largest weight, which takes the cancellation
    out of the row that one tiny probability dominates.
    """
    least, pivot = np.inf, -1
    for i in range(p.size):
        if 0.0 < p[i] < least:
            least, pivot = np.float64(p[i]), i
    out[:] = 0.0
    if pivot < 0:
        return 0.0, 0.0
    centre = np.float64(g[pivot])
    total, against = 0.0, 0.0
    for i in range(p.size):  # weights relative to the largest, so that nothing overflows
        if p[i] > 0.0:
            v = (np.float64(p[i]) / least) ** exponent
            total += v
            against += v * (np.float64(g[i]) - centre)
    mean = against / total
    for i in range(p.size):
        if p[i] > 0.0:
            v = (np.float64(p[i]) / least) ** exponent
            out[i] = v * (np.float64(g[i]) - centre - mean) * least**exponent
    return total * least**exponent, centre + mean


@reduction
def _alpha_row(p, g, beta, centre):
    """Sum of (g - centre) * p * d log(p)/d alpha at fixed t; see docs/derivations.md.

    ``centre`` is the mean of g under s = p^(2 - alpha), so a multiple of s adds nothing. Above
    alpha = 2, where s has no bound and would drown the rest, it is left out.
    """
    zero, tiny = cast(0.0, p[0]), cast(1.2e-38, p[0])
    beta, centre = cast(beta, p[0]), cast(centre, p[0])
    total = 0.0
    if beta > cast(1.0, beta):
        scale = cast(1.0, beta) / (beta * beta)
        for i in range(p.size):
            kept = p[i] if p[i] > tiny else tiny
            change = scale * (kept - beta * kept * log(kept))
            change = change if p[i] > zero else zero
            total += np.float64(change * (g[i] - centre))
        return total
    for i in range(p.size):
        kept = p[i] if p[i] > tiny else tiny
        minus_log = -log(kept)
        minus_log = minus_log if minus_log > zero else zero
        change = -kept * minus_log * minus_log * excess(beta * minus_log)
        change = change if p[i] > zero else zero
        total += np.float64(change * (g[i] - centre))
    return total


@kernel
def _backward_row(p, g, alpha, out):
    """``out`` = J g for one row; returns the mean of g under the weights s."""
    if alpha > 2.0:
        _total, mean = _steep_backward(p, g, 2.0 - alpha, out)
        return mean
    if alpha == 1.0:
        mean = _softmax_mean(p, g)
        _softmax_apply(p, g, cast(mean, p[0]), out)
    elif alpha == 2.0:
        mean = _sparsemax_mean(p, g)
        _sparsemax_apply(p, g, cast(mean, p[0]), out)
    elif alpha == 1.5:
        mean = _entmax15_mean(p, g)
        _entmax15_apply(p, g, cast(mean, p[0]), out)
    else:
        _weigh_power(p, cast(2.0 - alpha, p[0]), out)
        mean = _softmax_mean(out, g)
        _apply(g, cast(mean, p[0]), out)
    return mean


@kernel
def entmax_backward(start, stop, p, g, alphas, out, dalphas):
    """Gradient in z into ``out``; in alpha into ``dalphas`` unless that has size 0."""
    d = p.shape[1]
    p_kept, g_kept, s_kept = np.empty(d, p.dtype), np.empty(d, p.dtype), np.empty(d, p.dtype)
    where = np.empty(d, np.int32)
    want = dalphas.size > 0
    for row in range(start, stop):
        alpha = alphas[row if alphas.size > 1 else 0]
        if p[row, 0] != p[row, 0]:
            out[row, :] = _NAN
            if want:
                dalphas[row] = _NAN
            continue
        # powers are dear, so they are taken on the support alone; roots are not
        cheap = not want and (alpha == 1.0 or alpha == 1.5 or alpha == 2.0)
        size, padded = (d, d) if cheap else support(p[row], g[row], p_kept, g_kept, where)
        if size == d:
            mean = _backward_row(p[row], g[row], alpha, out[row])
            if want:
                dalphas[row] = _alpha_row(p[row], g[row], alpha - 1.0, mean)
        elif size == 0:
            out[row, :] = 0.0
            if want:
                dalphas[row] = 0.0
        else:
            mean = _backward_row(p_kept[:padded], g_kept[:padded], alpha, s_kept[:padded])
            spread(s_kept, size, where, cast(1.0, p[row, 0]), out[row])
            if want:
                dalphas[row] = _alpha_row(p_kept[:padded], g_kept[:padded], alpha - 1.0, mean)


@kernel
def sparsegen_backward(start, stop, p, g, lams, out, dlams):
    """Gradient in z into ``out``; in lambda into ``dlams`` unless that has size 0."""
    for row in range(start, stop):
        width = 1.0 - lams[row if lams.size > 1 else 0]
        pr, gr, s = p[row], g[row], out[row]
        if pr[0] != pr[0]:
            s[:] = _NAN
            if dlams.size > 0:
                dlams[row] = _NAN
            continue
        _sparsemax_apply(pr, gr, cast(_sparsemax_mean(pr, gr), pr[0]), s)
        if dlams.size > 0:
            dlams[row] = _dot(s, pr) / width
        s *= cast(1.0 / width, pr[0])


@reduction
def _dot(a, b):
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i] * b[i])
    return total
