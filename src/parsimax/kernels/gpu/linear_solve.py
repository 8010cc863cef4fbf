"""Thresholds, losses and supports of rows of logits: one program a row.

A row is read once if its support is small. On the way every lane of the program keeps the three
largest scores it has met, and how large the fourth was. The lanes' largest give a threshold that is
never too high, since scores are missing and none was invented; the few scores above it are the
candidates, on which the row is solved. Where no fourth score reaches the threshold that they give,
nothing is missing. Otherwise the solver goes on over the whole row, which is read in turns from
either end, since what was read last is still in the cache.

What :func:`weights` needs to compute a row's probabilities from its logits once more is the row's
record: the largest logit, the threshold as :mod:`.newton` has it or the lowest score of the support
for alpha above 2, a factor that makes p sum to one, and how the terms of the loss count.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import exp2
from .entmax import settle, step_on_support
from .linear_row import largest, largest_four, load, place, slack
from .linear_steep import descend, power
from .linear_target import read_target, row_factors
from .newton import (
    ENTMAX15,
    POWER,
    SOFTMAX,
    TRIES,
    any_near,
    climb,
    last_newton,
    lowest,
    move,
    newton,
    relative,
    start,
    terms,
    threshold,
)
from .quick import quick
from .reductions import maximum, solid, sum2, sum3

# Kinds of rows beside those of newton.py
STEEP = tl.constexpr(4)  # alpha above 2
ANY = tl.constexpr(5)  # alpha differs from row to row

# Where a row's alpha comes from
GIVEN = tl.constexpr(0)
SHARED = tl.constexpr(1)
EACH = tl.constexpr(2)

FIELDS = 9  # of a record: top, c, inv, scale, own, each, and for alpha above 2 e, low, bar
_INF = tl.constexpr(float("inf"))
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def read_beta(alphas, value, n, mask, ALPHAS: tl.constexpr):
    """alpha - 1: ``value``, or the difference of a tensor's, taken before it is rounded."""
    if ALPHAS == GIVEN:
        return value
    elif ALPHAS == SHARED:
        return (tl.load(alphas) - 1.0).to(tl.float32)
    else:
        return (tl.load(alphas + n, mask=mask, other=2.0) - 1.0).to(tl.float32)


@triton.jit
def weights(y, c, e, low, bar, beta, gamma, near, KIND: tl.constexpr, NEAR: tl.constexpr):
    """p before it is scaled to one, from what :func:`.newton.relative` makes of the scores."""
    if KIND == SOFTMAX:
        return exp2((y - c) * _LOG2E)
    elif KIND == STEEP:
        return power(y, c, e, low, bar, beta)
    elif KIND == ANY:
        q, _slope = terms(y, c, beta, gamma, near, POWER, NEAR)
        return tl.where(beta > 1.0, power(y, c, e, low, bar, beta), q)
    else:
        q, _slope = terms(y, c, beta, gamma, near, KIND, NEAR)
        return q


@triton.jit
def _candidates(
    scratch, row, bias, first, second, third, low_score, top, width,
    BIAS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """(scores from ``low_score`` up with all their digits, their columns, how many there are).

    From where they are, spread over the lanes, they are moved together by way of memory: what
    follows then takes few registers. If there are more than ``MOST``, the others are missing.
    """
    in1 = tl.where(first - top >= low_score, 1, 0)
    in2 = tl.where(second - top >= low_score, 1, 0)
    in3 = tl.where(third - top >= low_score, 1, 0)
    here = in1 + in2 + in3
    slot = tl.cumsum(here, 0) - here
    count = tl.sum(here, 0)
    tl.store(scratch + slot, place(first, BITS, BLOCK), mask=(in1 > 0) & (slot < MOST))
    slot += in1
    tl.store(scratch + slot, place(second, BITS, BLOCK), mask=(in2 > 0) & (slot < MOST))
    slot += in2
    tl.store(scratch + slot, place(third, BITS, BLOCK), mask=(in3 > 0) & (slot < MOST))
    tl.debug_barrier()
    mine = tl.arange(0, MOST)
    at = tl.load(scratch + mine, mask=mine < count, other=0)
    return load(row, bias, at, tl.where(mine < count, width, 0), BIAS), at, count


@triton.jit
def _sweep(
    row, bias, width, backwards, top, x, beta, gamma, near,
    KIND: tl.constexpr, NEAR: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(sum of q, of its slopes, size of the support, sum of q y) over the whole row."""
    lanes = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([1, BLOCK], tl.float32)
    slopes = tl.zeros([1, BLOCK], tl.float32)
    count = tl.zeros([1, BLOCK], tl.float32)
    inner = tl.zeros([1, BLOCK], tl.float32)
    pieces = tl.cdiv(width, BLOCK)
    for k in tl.range(0, pieces, loop_unroll_factor=UNROLL):
        at = tl.where(backwards, pieces - 1 - k, k) * BLOCK + lanes
        y = relative(load(row, bias, at, width, BIAS), top, KIND)
        q, slope = terms(y, x, beta, gamma, near, KIND, NEAR)
        total += q
        slopes += slope
        count += tl.where(q > 0.0, 1.0, 0.0)
        inner += tl.where(q > 0.0, q * y, 0.0)
    total, slopes, count = sum3(total, slopes, count, 1)
    return total, slopes, count, tl.sum(inner, 1)


@triton.jit
def _over_all(
    row, bias, width, top, x, beta, gamma, near,
    KIND: tl.constexpr, NEAR: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """(threshold, mass, size of the support, <q, y>) of a row that is swept as a whole."""
    before = tl.zeros_like(x)
    tries = 0
    active = 1
    one = tl.zeros_like(x) + 1.0
    while (active > 0) & (tries < TRIES):
        tries += 1
        backwards = tries % 2 == 1
        total, slopes, size, _inner = _sweep(
            row, bias, width, backwards, top, x, beta, gamma, near, KIND, NEAR, BIAS, BLOCK, UNROLL
        )
        if KIND == POWER:
            surplus, step = newton(total, slopes, beta, gamma, one, KIND, NEAR)
            _same, last = last_newton(total, slopes, beta)
            moved = move(x, tl.where(tl.abs(surplus) < 0.05, last, step), beta, KIND, NEAR)
            more = (tl.abs(surplus) > 1e-3) & (moved != x)
        else:
            step, less, more = step_on_support(total, slopes, size, one, before, KIND)
            before = slopes
            more = more & (x + less != x)
            moved = x + tl.where(more, less, step)
        x = moved
        active = tl.max(tl.where(more, 1, 0), 0)
    # once more where the steps have led: the loss and the gradient are those of one threshold
    mass, _slopes, count, inner = _sweep(
        row, bias, width, tries % 2 == 0, top, x, beta, gamma, near, KIND, NEAR, BIAS, BLOCK, UNROLL
    )
    return x, mass, count, inner


@triton.jit
def _expm1_ratio(v):
    """(exp(v) - 1) / v, which is 1 at 0."""
    near = tl.abs(v) < 0.25
    small = tl.where(near, v, 0.0)
    series = 1.0 / 120 + small * (1.0 / 720)
    series = 1.0 + small * (1.0 / 2 + small * (1.0 / 6 + small * (1.0 / 24 + small * series)))
    large = tl.where(near, 1.0, v)
    return tl.where(near, series, (tl.exp2(large * _LOG2E) - 1.0) / large)


@triton.jit
def _excess(v):
    """(exp(v) - 1 - v) / v^2 without cancellation near 0."""
    near = tl.abs(v) < 1.0
    small = tl.where(near, v, 0.0)
    series = tl.full(v.shape, 1 / 479001600, tl.float32)
    series = series * small + 1 / 39916800
    series = series * small + 1 / 3628800
    series = series * small + 1 / 362880
    series = series * small + 1 / 40320
    series = series * small + 1 / 5040
    series = series * small + 1 / 720
    series = series * small + 1 / 120
    series = series * small + 1 / 24
    series = series * small + 1 / 6
    series = series * small + 1 / 2
    large = tl.where(near, 1.0, v)
    return tl.where(near, series, (tl.exp2(large * _LOG2E) - 1.0 - large) / (large * large))


@triton.jit
def _omega_slopes(p, beta):
    """Entries' parts of d Omega / d alpha at fixed p, in the form that is regular at alpha = 1."""
    log_p = tl.where(p > 0.0, tl.log2(tl.maximum(p, 1e-37)) * _LN2, 0.0)
    v = beta * log_p
    alpha = 1.0 + beta
    slope = tl.exp2(v * _LOG2E) * _excess(-v)
    return p * log_p * (log_p * slope / alpha - _expm1_ratio(v) / (alpha * alpha))


@triton.jit
def _dense_lag(
    row, bias, class_weight, words, top,
    BIAS: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum_c w_c (top - z_c)."""
    lanes = tl.arange(0, BLOCK)
    lag = tl.zeros([BLOCK], tl.float32)
    for k in range(0, words, BLOCK):
        at = k + lanes
        behind = top - load(row, bias, at, words, BIAS)
        if WEIGHTED:
            w = tl.load(class_weight + at, mask=at < words, other=0.0).to(tl.float32)
            lag += tl.where(w == 0.0, 0.0, w * behind)
        else:
            lag += tl.where(at < words, behind, 0.0)
    return tl.sum(lag, 0)


@quick
@triton.jit(do_not_specialize=["first_row", "ignore"])
def solve_kernel(
    z, stride, bias, alphas, beta, targets, class_weight, class_total, smoothing,
    scratch, values, changes, records, spans, keys, grads, total,
    first_row, tokens, words, capacity, ignore,
    KIND: tl.constexpr, NEAR: tl.constexpr, ALPHAS: tl.constexpr, BIAS: tl.constexpr,
    SMOOTH: tl.constexpr, WEIGHTED: tl.constexpr, CHANGE: tl.constexpr, LIST: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, UNROLL: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """The row's loss and record, and its entries in the lists if there is room.

    An entry is the key word * tokens + row and the gradient in that logit, scale p less own at the
    target, which is always among the entries of a row that has a gradient. ``total`` counts all
    entries, those that found no room included, so it tells whether the lists are whole.
    """
    n = first_row + tl.program_id(0)
    row = z + tl.program_id(0).to(tl.int64) * stride
    beta = read_beta(alphas, beta, n, n >= 0, ALPHAS)
    index, weight, kept = read_target(tl.load(targets + n), class_weight, words, ignore, WEIGHTED)
    scale, own, each = row_factors(weight, kept, class_total, words, smoothing, SMOOTH, WEIGHTED)
    used = (scale != 0.0) | (own != 0.0) | (each != 0.0)
    width = tl.where(used, words, 0)
    lanes = tl.arange(0, BLOCK)
    if KIND == SOFTMAX:
        tops = largest(row, bias, width, BIAS, BLOCK, UNROLL)
    else:
        tops, first, second, third, fourth = largest_four(
            row, bias, width, BIAS, BITS, BLOCK, UNROLL
        )
    top = maximum(tops, 0)
    finite = (top > -_INF) & (top < _INF)
    valid = (beta >= 0.0) & (beta < _INF)
    good = finite & valid
    broken = used & (top != -_INF) & (good == 0)
    top = tl.where(finite, top, 0.0)
    beta = tl.where(good, beta, 0.5)
    gamma = 1.0 / tl.maximum(beta, 1e-30)
    width = tl.where(good, width, 0)

    # what follows is written for vectors of rows, of which there is one
    one = tl.zeros([1], tl.float32) + 1.0
    betas, gammas, goods = one * beta, one * gamma, tl.where(good, one, 0.0) > 0.0
    near = any_near(betas, NEAR)
    e = tl.full([], 0.0, tl.float32)
    low = tl.full([], 0.0, tl.float32)
    bar = tl.full([], 0.0, tl.float32)
    swept = good
    c = one * 0.0
    at = c
    mass = one
    inner = one * 0.0
    count = one * 0.0
    inv = one
    if KIND == SOFTMAX:
        totals = tl.zeros([BLOCK], tl.float32)
        for k in tl.range(0, width, BLOCK, loop_unroll_factor=UNROLL):
            totals += exp2((load(row, bias, k + lanes, width, BIAS) - top) * _LOG2E)
        c = one * tl.where(good, tl.log2(tl.sum(totals, 0)) * _LN2, 0.0)
    else:
        SOLVED: tl.constexpr = POWER if KIND == ANY else KIND
        SCALE: tl.constexpr = 0.5 if KIND == ENTMAX15 else 1.0
        # of a support this wide, what lies so far down has no mass to speak of
        off = slack(tl.abs(top) + tl.minimum(gamma, 256.0), BITS)
        low_score = -gamma - 2.0 * off
        flat = goods
        if KIND != STEEP:
            flat = goods & (betas <= 1.0)
            heads = relative(first, top, SOLVED)[None, None, :]
            c = move(start(betas, one, SOLVED, NEAR), -SCALE * off, betas, SOLVED, NEAR)
            c = climb(heads, c, flat, betas, gammas, one, near, 1e-2, SOLVED, NEAR, FEW)
            c = move(c, -SCALE * 2.0 * off, betas, SOLVED, NEAR)
            reach = lowest(c, betas, gammas, SOLVED, NEAR) / SCALE - 2.0 * off
            reach = tl.where(flat, reach - 1e-5 * tl.abs(reach), low_score)
            low_score = tl.sum(reach, 0)
        z_few, at_few, few = _candidates(
            scratch + tl.program_id(0).to(tl.int64) * MOST, row, bias, first, second, third,
            low_score, top, width, BIAS, BITS, BLOCK, MOST,
        )  # fmt: skip
        y_few = relative(z_few, top, SOLVED)
        tile = y_few[None, None, :]
        hidden = tl.where(few > MOST, _INF, tl.max(fourth, 0) - top + off)
        if KIND != STEEP:
            solved = flat & (tl.where(few > MOST, one, 0.0) == 0.0)
            if SOLVED == POWER:
                c = climb(tile, c, solved, betas, gammas, one, near, 1e-3, POWER, NEAR, FEW)
            else:
                c += settle(tile, c, solved, one, SOLVED, FEW)
            reach = lowest(c, betas, gammas, SOLVED, NEAR) / SCALE
            missing = flat & (hidden > reach - 1e-5 * tl.abs(reach))
            swept = tl.max(tl.where(missing, 1, 0), 0) > 0
            at = c
            if swept:
                c, mass, count, inner = _over_all(
                    row, bias, width, top, c, betas, gammas, near, SOLVED, NEAR, BIAS, BLOCK, UNROLL
                )
                at = c
                inv = 1.0 / mass
        if KIND >= STEEP:
            steep = good
            if KIND == ANY:
                steep = good & (beta > 1.0)
            if steep:
                lowest_score, low = descend(
                    y_few, row, bias, width, top, beta, good, False, BIAS, BLOCK
                )
                swept = hidden >= lowest_score
                if swept:
                    lowest_score, low = descend(
                        y_few, row, bias, width, top, beta, good, True, BIAS, BLOCK
                    )
                e = tl.exp2(beta * tl.log2(low))
                bar = lowest_score
                c = one * lowest_score
                at = c
                if swept:
                    masses = tl.zeros([BLOCK], tl.float32)
                    counts = tl.zeros([BLOCK], tl.float32)
                    inners = tl.zeros([BLOCK], tl.float32)
                    for k in range(0, width, BLOCK):
                        y = load(row, bias, k + lanes, width, BIAS) - top
                        q = power(y, lowest_score, e, low, bar, beta)
                        masses += q
                        counts += tl.where(q > 0.0, 1.0, 0.0)
                        inners += tl.where(q > 0.0, q * y, 0.0)
                    mass = one * tl.sum(masses, 0)
                    count = one * tl.sum(counts, 0)
                    inner = one * tl.sum(inners, 0)
                    inv = 1.0 / mass
        if swept == 0:
            q = weights(y_few, tl.sum(c, 0), e, low, bar, beta, gamma, near, KIND, NEAR)
            counts = tl.where(q > 0.0, 1.0, 0.0)
            s0, s1, s2 = sum3(solid(q, FEW), counts, tl.where(q > 0.0, q * y_few, 0.0), 0)
            mass = one * s0
            count = one * s1
            inner = one * s2
            inv = one / tl.where(good, s0, 1.0)
        if KIND == ENTMAX15:
            inner = 2.0 * inner

    # vectors of one row back to numbers, which mix with tiles of any shape
    c = tl.sum(c, 0)
    inv = tl.where(good, tl.sum(inv, 0), tl.where(broken, float("nan"), 0.0))
    found = tl.sum(count, 0).to(tl.int32)

    # the dual objective at t is right to second order in what t is off
    b = beta.to(tl.float64)
    s = tl.sum(mass, 0).to(tl.float64)
    if KIND == SOFTMAX:
        gap = c.to(tl.float64)
    else:
        OF: tl.constexpr = POWER if KIND >= STEEP else KIND
        exact = tl.maximum(betas, 1e-30).to(tl.float64)
        t = tl.sum(threshold(at.to(tl.float64), exact, 1.0 / exact, OF, NEAR), 0)
        if KIND >= STEEP:
            t = tl.where(beta > 1.0, c.to(tl.float64) + (1.0 - e.to(tl.float64)) / b, t)
        gap = (b * (tl.sum(inner, 0).to(tl.float64) - t * s) + (s - 1.0)) / (1.0 + b) + t
    gap = tl.where(good, tl.maximum(gap, 0.0), inv.to(tl.float64))
    z_target = tl.load(row + index).to(tl.float32)
    if BIAS:
        z_target += tl.load(bias + index).to(tl.float32)
    lag = top.to(tl.float64) - z_target
    value = tl.where(scale == 0.0, 0.0, scale * gap) + tl.where(own == 0.0, 0.0, own * lag)
    if SMOOTH:
        spread = _dense_lag(
            row, bias, class_weight, tl.where(used, words, 0), top, BIAS, WEIGHTED, BLOCK
        )
        value += tl.where(each == 0.0, 0.0, each * spread)
    tl.store(values + n, value)
    if CHANGE:
        change = tl.full([], 0.0, tl.float32)
        if swept:
            slopes = tl.zeros([BLOCK], tl.float32)
            for k in range(0, width, BLOCK):
                y = relative(load(row, bias, k + lanes, width, BIAS), top, KIND)
                p = inv * weights(y, c, e, low, bar, beta, gamma, near, KIND, NEAR)
                slopes += _omega_slopes(p, beta)
            change = tl.sum(slopes, 0)
        else:
            p = inv * weights(y_few, c, e, low, bar, beta, gamma, near, KIND, NEAR)
            change = tl.sum(_omega_slopes(p, beta), 0)
        change = tl.where(good, -change, inv)
        tl.store(changes + n, tl.where(scale == 0.0, 0.0, scale * change))
    scale = scale.to(tl.float32)
    own = own.to(tl.float32)
    tl.store(records + n, top)
    tl.store(records + tokens + n, c)
    tl.store(records + 2 * tokens + n, inv)
    tl.store(records + 3 * tokens + n, scale)
    tl.store(records + 4 * tokens + n, own)
    tl.store(records + 5 * tokens + n, each.to(tl.float32))
    if KIND >= STEEP:
        # the lowest score must not fall off when its last digits come out otherwise
        tl.store(records + 6 * tokens + n, e)
        tl.store(records + 7 * tokens + n, low)
        tl.store(records + 8 * tokens + n, bar - 4e-6 * (1.0 + tl.abs(top) - bar))

    if LIST:
        if swept | broken:
            _list_all(
                row, bias, width, broken, top, c, e, low, bar, inv, beta, gamma, near,
                scale, own, index, found, spans, keys, grads, total, n, tokens, words, capacity,
                KIND, NEAR, BIAS, BLOCK,
            )  # fmt: skip
        else:
            p = inv * weights(y_few, c, e, low, bar, beta, gamma, near, KIND, NEAR)
            inside = tl.where(p > tl.where(good, 0.0, _INF), 1, 0)
            entries, with_target = sum2(inside, tl.where(at_few == index, inside, 0), 0)
            alone = (own != 0.0) & (with_target == 0)
            found = entries + tl.where(alone, 1, 0)
            begin = tl.atomic_add(total, found.to(tl.int64))
            fits = begin + found <= capacity
            tl.store(spans + n, tl.minimum(begin, capacity).to(tl.int32))
            tl.store(spans + tokens + n, found)
            here = begin + tl.cumsum(inside, 0) - 1
            _put(keys, grads, here, at_few, p, inside, fits, scale, own, index, n, tokens)
            if alone & fits:
                key = index.to(keys.dtype.element_ty) * tokens + n
                tl.store(keys + begin + entries, key)
                tl.store(grads + begin + entries, -own)


@triton.jit
def _put(keys, grads, place_in_list, at, p, inside, fits, scale, own, index, n, tokens):
    """Write entries to the lists."""
    mask = inside > tl.where(fits, 0, 1)
    g = scale * p - tl.where(at == index, own, 0.0)
    tl.store(keys + place_in_list, at.to(keys.dtype.element_ty) * tokens + n, mask=mask)
    tl.store(grads + place_in_list, g, mask=mask)


@triton.jit
def _list_all(
    row, bias, width, broken, top, c, e, low, bar, inv, beta, gamma, near,
    scale, own, index, found, spans, keys, grads, total, n, tokens, words, capacity,
    KIND: tl.constexpr, NEAR: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same from the whole row; a broken row has all words as its entries.

    Room is taken for as many as there may be, and for the target. What is left of it holds zeros.
    """
    lanes = tl.arange(0, BLOCK)
    KEY = keys.dtype.element_ty
    count = tl.where(broken, words, found) + 1
    begin = tl.atomic_add(total, count.to(tl.int64))
    fits = begin + count <= capacity
    tl.store(spans + n, tl.minimum(begin, capacity).to(tl.int32))
    tl.store(spans + tokens + n, count)
    keys += begin
    grads += begin
    done = tl.zeros([], tl.int32)
    with_target = tl.zeros([], tl.int32)
    for k in range(0, tl.where(fits, tl.where(broken, words, width), 0), BLOCK):
        at = k + lanes
        y = relative(load(row, bias, at, words, BIAS), top, KIND)
        p = inv * weights(y, c, e, low, bar, beta, gamma, near, KIND, NEAR)
        inside = tl.where(tl.where(broken, 1.0, p) > 0.0, 1, 0)
        inside = tl.where(at < words, inside, 0)
        here = done + tl.cumsum(inside, 0) - 1
        inside = tl.where(here < count - 1, inside, 0)  # rounding may have let one more in
        _put(keys, grads, here, at, p, inside, fits, scale, own, index, n, tokens)
        more, mine = sum2(inside, tl.where(at == index, inside, 0), 0)
        done += more
        with_target += mine
    for k in range(done, tl.where(fits, count, 0), BLOCK):
        left = k + lanes
        first = left == tl.where(with_target == 0, done, -1)
        tl.store(keys + left, tl.zeros([BLOCK], KEY) + (index.to(KEY) * tokens + n), mask=left < count)  # fmt: skip  # noqa: E501
        tl.store(grads + left, tl.where(first, -own, 0.0), mask=left < count)
