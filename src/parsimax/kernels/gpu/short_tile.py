"""One tile of attention over few keys: (queries, keys), all keys of a head, in registers.

Tiles stay as the product of queries and keys leaves them. There a warp has whole rows, so that a
sum over a row needs no more than two exchanges between threads; see newton.py for the unknowns x.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import exp2, log2, reciprocal
from .entmax_backward import exponential_rest
from .newton import (
    ALWAYS,
    ENTMAX15,
    NEAR_ONE,
    NEVER,
    POWER,
    SOFTMAX,
    SPARSEMAX,
    TRIES,
    move,
    newton,
    relative,
    start,
    terms,
)
from .products import product
from .reductions import sum2

# Of MASK
OF_KEYS = tl.constexpr(1)  # the same for all queries
OF_SCORES = tl.constexpr(2)

_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)
_HIDDEN = tl.constexpr(1 << 30)
_HALVINGS = tl.constexpr(40)
# Surplus of mass from which one more step is enough: it leaves about the square of this, and less
# than this where a weight becomes zero on the way. Half precision has 5e-4 in each weight.
_ENOUGH = tl.constexpr(2e-4)


@triton.jit
def alpha_of(a_ptr, value, head, TENSOR: tl.constexpr):
    """(alpha - 1, 0 or NaN where there is no such entmax)."""
    if TENSOR:
        alpha = tl.load(a_ptr + head)
        beta = (alpha - 1.0).to(tl.float32)
        bad = tl.where((beta >= 0.0) & (beta < 1e30), 0.0, float("nan"))
        return tl.where(bad == 0.0, beta, 0.5), bad
    else:
        return value, 0.0


@triton.jit
def keys_seen(columns, keys, seen_ptr, seen_column, MASK: tl.constexpr):
    """Positions of the keys, out of reach for those that nobody sees."""
    inside = columns < keys
    if MASK == OF_KEYS:
        inside = inside & (tl.load(seen_ptr + columns * seen_column, mask=inside, other=0) != 0)
    return tl.where(inside, columns, _HIDDEN)


@triton.jit
def scores(q, k, scale, rows, columns, positions, queries, keys, seen_ptr, seen_row, seen_column,
           CAUSAL: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """(rows, columns) in float32, -inf where a key may not be seen."""
    s = product(q, tl.trans(k)) * scale
    # one comparison an element: each row sees the keys before a limit
    limit = tl.where(rows < queries, rows + 1 if CAUSAL else _HIDDEN, 0)
    visible = positions[None, :] < limit[:, None]
    if MASK == OF_SCORES:
        offsets = rows[:, None] * seen_row + columns[None, :] * seen_column
        visible = visible & (tl.load(seen_ptr + offsets, mask=visible, other=0) != 0)
    return tl.where(visible, s, -float("inf"))


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def _climb(y, good, beta, gamma, KIND: tl.constexpr, NEAR: tl.constexpr):
    """(weights up to a factor near 1, unknown of each row).

    Newton from below. The last step is not swept again: it moves weights along their slopes.
    """
    betas = tl.zeros([y.shape[0]], tl.float32) + beta
    x = start(betas, betas * 0.0 + 1.0, KIND, NEAR)
    q, slope = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
    total, slopes = sum2(q, slope, 1)
    surplus, step = newton(total, slopes, beta, gamma, 1.0, KIND, NEAR)
    waiting = good & (surplus > _ENOUGH)
    tries = 0
    while (tl.max(waiting.to(tl.int32), 0) > 0) & (tries < TRIES):
        tries += 1
        x = tl.where(waiting, move(x, step, beta, KIND, NEAR), x)
        q, slope = terms(y, x[:, None], beta, gamma, NEAR == ALWAYS, KIND, NEAR)
        total, slopes = sum2(q, slope, 1)
        surplus, step = newton(total, slopes, beta, gamma, 1.0, KIND, NEAR)
        waiting = waiting & (surplus > _ENOUGH)
    x = move(x, step, beta, KIND, NEAR)
    if KIND == POWER:
        q = tl.maximum(tl.fma(-step[:, None], slope, q), 0.0)
    else:  # as cheap, and exact
        q, slope = terms(y, x[:, None], beta, gamma, False, KIND, NEAR)
    return q, x


@triton.jit
def _halve(y, beta, gamma):
    """As :func:`_climb` above alpha = 2, where Newton has no slope to hold on to."""
    low = tl.zeros([y.shape[0]], tl.float32)
    high = low + 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        q, _slope, _w, _log = _steep(y, middle[:, None], beta, gamma)
        enough = tl.sum(q, 1) >= 1.0
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    q, _slope, _w, _log = _steep(y, high[:, None], beta, gamma)
    return q, high


@triton.jit
def weights(s, top, beta, bad, KIND: tl.constexpr, TENSOR: tl.constexpr, NEAR: tl.constexpr):
    """(weights, unknown of each row): zeros where no key is seen, NaN where a score is none."""
    good = (top > -float("inf")) & (top < float("inf"))
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan")) + bad
    y = relative(s, tl.where(good, top, 0.0)[:, None], KIND)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    if KIND == SOFTMAX:
        q, x = exp2(y * _LOG2E), top * 0.0
    elif TENSOR:
        if beta < NEAR_ONE:
            q, x = _climb(y, good, beta, gamma, POWER, ALWAYS)
        elif beta <= 1.0:
            q, x = _climb(y, good, beta, gamma, POWER, NEVER)
        else:
            q, x = _halve(y, beta, gamma)
    else:
        q, x = _climb(y, good, beta, gamma, KIND, NEAR)
    total = tl.sum(q, 1)
    scale = tl.where(good, reciprocal(tl.where(total > 0.0, total, 1.0)), 0.0)
    # a row without scores has no threshold either, and must not pass on what was found for it
    return tl.fma(q, scale[:, None], fill[:, None]), tl.where(good, x, 0.0)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def _above(y, x, beta):
    """w, NaN where y is."""
    return tl.maximum(tl.fma(y, beta, x), 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _far(y, x, beta, gamma):
    w = _above(y, x, beta)
    log = log2(w)
    slope = exp2(tl.maximum(gamma - 1.0, 1e-7) * log)
    return slope * w, slope, w, log


@triton.jit
def _steep(y, x, beta, gamma):
    """As :func:`_far` above alpha = 2, where the exponent of the slope is below 0."""
    w = _above(y, x, beta)
    log = log2(w)
    slope = tl.where(w <= 0.0, 0.0, exp2((gamma - 1.0) * log))
    return slope * w, slope, w, log


@triton.jit
def _change(w, log, inverse_square):
    """-(1 - w + w ln w) / beta^2, which times the slope is dp/dalpha at a fixed threshold.

    It loses digits near w = 1, where a weight is near 1 and hardly changes, or alpha is.
    """
    inner = tl.fma(-_LN2 * inverse_square, tl.maximum(log, -127.0), inverse_square)
    return tl.fma(w, inner, -inverse_square)


@triton.jit
def _near_with_change(y, x, beta, gamma, inverse_square):
    """As :func:`_far` near alpha = 1, and the change by a series where w is near 1."""
    q, slope = terms(y, x, beta, gamma, True, POWER, ALWAYS)
    q = tl.where(y == y, q, y)
    slope = tl.where(y == y, slope, y)
    log = log2(tl.maximum(q, 1.2e-38))
    minus_log = -_LN2 * log
    v = beta * minus_log
    w = exp2(beta * log)
    near = -w * minus_log * minus_log * exponential_rest(v)
    return q, slope, tl.where(v < 1.0, near, _change(w, beta * log, inverse_square))


@triton.jit
def weights_again(
    s, top, x, beta, bad, KIND: tl.constexpr, TENSOR: tl.constexpr, NEAR: tl.constexpr
):
    """(weights up to a factor a row, p^(2 - alpha) likewise, dp/dalpha over that).

    All are NaN in a row of NaN; the third is nothing where alpha is one number.
    """
    good = (top > -float("inf")) & (top < float("inf"))
    fill = tl.where(good | (top == -float("inf")), 0.0, float("nan")) + bad
    y = relative(s, (tl.where(good, top, 0.0) + fill)[:, None], KIND)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    x = x[:, None]
    if KIND == SOFTMAX:
        q = exp2(y * _LOG2E)
        return q, q, q
    elif KIND == SPARSEMAX:
        q = tl.maximum(y - x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return q, tl.where(q <= 0.0, 0.0, q * 0.0 + 1.0), q
    elif KIND == ENTMAX15:
        slope = tl.maximum(y - x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return slope * slope, slope, slope
    elif TENSOR:
        inverse_square = 1.0 / tl.maximum(beta * beta, 1e-30)
        if beta < NEAR_ONE:
            q, slope, change = _near_with_change(y, x, beta, gamma, inverse_square)
        elif beta <= 1.0:
            q, slope, w, log = _far(y, x, beta, gamma)
            change = _change(w, log, inverse_square)
        else:
            q, slope, w, log = _steep(y, x, beta, gamma)
            change = _change(w, log, inverse_square)
        return q, slope, change
    elif NEAR == ALWAYS:
        q, slope = terms(y, x, beta, gamma, True, POWER, ALWAYS)
        return tl.where(y == y, q, y), tl.where(y == y, slope, y), q
    else:
        q, slope, _w, _log = _far(y, x, beta, gamma)
        return q, slope, q
