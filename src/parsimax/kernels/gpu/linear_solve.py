"""Thresholds, losses and supports of rows of logits: one program a row.

With y = z - max(z) and beta = alpha - 1, every probability is written

    p = inv (beta (y - c) + e)^(1/beta)     where y >= bar, and 0 below,

which is what the row's record (top, c, e, low, bar, inv) is for, with top = max(z). Up to alpha = 2
e is 1 and c = t (docs/derivations.md); at 3/2 and 2 e is 0 and c the threshold; above 2 c is the
lowest score that receives any mass, low its probability and e = low^beta. ``inv`` divides by what p
sums to.

A row is read once if its support is small. On the way every lane of the program keeps the two
largest scores it has seen, where they stood, and how large the third was. The lanes' scores give a
threshold that is never too high, since scores are missing and none was invented; where no third
score reaches it, nothing is missing. Otherwise the solver goes on over the whole row.
"""

import triton
import triton.language as tl

SOFTMAX = tl.constexpr(0)
SQUARE = tl.constexpr(1)  # alpha = 3/2
LINEAR = tl.constexpr(2)  # alpha = 2
POWER = tl.constexpr(3)  # alpha between 1 and 2
STEEP = tl.constexpr(4)  # alpha above 2
ANY = tl.constexpr(5)  # alpha differs from row to row
# what the solver for alpha above 2 sums over a row
_BELOW = tl.constexpr(6)
_LOWEST = tl.constexpr(7)

FIELDS = 6  # of a row's record
_INF = tl.constexpr(float("inf"))
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_TINY = tl.constexpr(1e-30)
_MOST = tl.constexpr(200)  # steps of a solver: a net, not what stops it


@triton.jit
def _add(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def log2_of(v, w, e):
    """log2(w) for w = v + e; through the series of log1p where e is 1 and v small."""
    s = v / (2.0 + v)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11)))))
    near = 2.0 * _LOG2_E * s * series
    return tl.where(v > tl.where(e == 1.0, -0.3, _INF), near, tl.log2(tl.maximum(w, _TINY)))


@triton.jit
def probabilities(y, c, e, low, bar, inv, beta, KIND: tl.constexpr):
    """p of scores relative to the row's largest, from its record."""
    if KIND == SOFTMAX:
        p = tl.exp2((y - c) * _LOG2_E)
    elif KIND == LINEAR:
        p = y - c
    elif KIND == SQUARE:
        p = 0.25 * (y - c) * (y - c)
    else:
        v = beta * (y - c)
        p = tl.exp2(log2_of(v, v + e, e) / beta)
        p = tl.where(v <= tl.where(e == 1.0, -_INF, 0.0), low, p)  # e may have underflowed
    p = tl.where(y >= bar, p * inv, 0.0)
    return tl.where(inv == inv, p, inv)  # a broken row is NaN everywhere


@triton.jit
def _terms(y, c, e, low, beta, KIND: tl.constexpr):
    """What a solver adds up at a trial c."""
    if KIND == SOFTMAX:
        p = tl.exp2((y - c) * _LOG2_E)
        return p, p, p
    elif KIND == LINEAR:
        v = tl.maximum(y - c, 0.0)
        inside = tl.where(v > 0.0, 1.0, 0.0)
        return v, inside, inside
    elif KIND == SQUARE:
        v = tl.maximum(y - c, 0.0)
        return v * v, v, tl.where(v > 0.0, 1.0, 0.0)
    elif KIND == POWER:
        v = beta * (y - c)
        w = v + 1.0
        log_p = log2_of(v, w, 1.0) / beta
        inside = w > 0.0
        p = tl.where(inside, tl.exp2(log_p), 0.0)
        slope = tl.where(inside, tl.exp2(log_p * (1.0 - beta)), 0.0)
        return p, slope, slope
    elif KIND == _BELOW:
        v = beta * (y - c)
        p = tl.where(v > 0.0, tl.exp2(tl.log2(tl.maximum(v, _TINY)) / beta), 0.0)
        return p, p, p
    else:
        v = beta * (y - c)
        log_p = tl.where(v > 0.0, tl.log2(tl.maximum(v + e, _TINY)) / beta, tl.log2(low))
        inside = v >= 0.0
        p = tl.where(inside, tl.exp2(log_p), 0.0)
        slope = tl.where(inside, tl.exp2((beta - 1.0) * (tl.log2(low) - log_p)), 0.0)
        return p, slope, tl.where(inside, 1.0, 0.0)


@triton.jit
def load(row, bias, k, lanes, width, BIAS: tl.constexpr):
    """A tile of logits; NaN becomes inf, which is above every maximum."""
    at = k + lanes
    x = tl.load(row + at, mask=at < width, other=-_INF)
    if BIAS:
        x += tl.load(bias + at, mask=at < width, other=0.0).to(tl.float32)
    return tl.where(x == x, x, _INF)


@triton.jit
def _sums(
    first, second, row, bias, width, top, c, e, low, beta,
    KIND: tl.constexpr, SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Three sums at a trial c: over the whole row, or over what the lanes have kept."""
    if SWEEP:
        lanes = tl.arange(0, BLOCK)
        a = tl.zeros([BLOCK], tl.float32)
        b = tl.zeros([BLOCK], tl.float32)
        d = tl.zeros([BLOCK], tl.float32)
        for k in range(0, width, BLOCK):
            y = load(row, bias, k, lanes, width, BIAS) - top
            one, two, three = _terms(y, c, e, low, beta, KIND)
            a += one
            b += two
            d += three
    else:
        a, b, d = _terms(first, c, e, low, beta, KIND)
        one, two, three = _terms(second, c, e, low, beta, KIND)
        a += one
        b += two
        d += three
    return tl.reduce((a, b, d), 0, _add)


@triton.jit
def _next_above(
    first, second, row, bias, width, top, c,
    SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest score above c."""
    if SWEEP:
        lanes = tl.arange(0, BLOCK)
        found = tl.full([BLOCK], 0.0, tl.float32)
        for k in range(0, width, BLOCK):
            y = load(row, bias, k, lanes, width, BIAS) - top
            found = tl.minimum(found, tl.where(y > c, y, 0.0))
    else:
        found = tl.minimum(tl.where(first > c, first, 0.0), tl.where(second > c, second, 0.0))
    return tl.min(found, 0)


@triton.jit
def _expm1_ratio(v):
    """(exp(v) - 1) / v, which is 1 at 0."""
    small = tl.where(tl.abs(v) < 0.25, v, 0.0)
    series = 1.0 + small * (1 / 2 + small * (1 / 6 + small * (1 / 24 + small * (1 / 120 + small * (1 / 720)))))  # fmt: skip  # noqa: E501
    large = tl.where(tl.abs(v) < 0.25, 1.0, v)
    return tl.where(tl.abs(v) < 0.25, series, (tl.exp2(large * _LOG2_E) - 1.0) / large)


@triton.jit
def _climb(
    first, second, row, bias, width, top, start, beta, active,
    KIND: tl.constexpr, SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Newton from the left on a convex function.

    It is the norm of [1 + beta (y - t)]_+ (docs/derivations.md), and at alpha = 3/2 and 2 the next
    threshold is the exact one for the support that the last one gave.
    """
    c = start
    before = tl.full([], _INF, tl.float32)
    count = 0
    going = active
    while going:
        s, r, n = _sums(first, second, row, bias, width, top, c, 1.0, 0.0, beta, KIND, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        if KIND == SOFTMAX:
            step = tl.log2(s) * _LN_2
            more = tl.abs(s - 1.0) > 1e-3
        elif KIND == LINEAR:
            step = (s - 1.0) / tl.maximum(n, 1.0)
            more = n < before
            before = n
        elif KIND == SQUARE:
            n = tl.maximum(n, 1.0)
            mean = r / n
            inner = (4.0 - (s - r * mean)) / n
            root = tl.sqrt(tl.maximum(inner, 0.0))
            exact = (s - 4.0) / n / (mean + root)
            q = 0.25 * s
            step = tl.where(inner >= 0.0, exact, 4.0 * (q - tl.sqrt(q)) / tl.maximum(r, _TINY))
            more = tl.abs(s - 4.0) > 1e-3
        else:
            log_s = tl.log2(s) * _LN_2
            step = s * log_s * _expm1_ratio(-beta * log_s) / r
            more = s > 1.0 + 1e-4
        c = tl.where(step == step, c + step, c)
        count += 1
        going = more & (count < _MOST)
    return c


@triton.jit
def _descend(
    first, second, row, bias, width, top, beta, active,
    SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest score in the support and its probability, for alpha above 2."""
    floor = -1.0 / beta
    ceiling = tl.full([], 0.0, tl.float32)
    lowest = _next_above(first, second, row, bias, width, top, floor, SWEEP, BIAS, BLOCK)
    count = 0
    going = active & (lowest < ceiling)
    while going:
        middle = 0.5 * (floor + ceiling)
        s, r, n = _sums(first, second, row, bias, width, top, middle, 0.0, 0.0, beta, _BELOW, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        collapsed = (middle <= floor) | (middle >= ceiling)
        floor = tl.where(s >= 1.0, middle, floor)
        ceiling = tl.where(s >= 1.0, ceiling, middle)
        lowest = _next_above(first, second, row, bias, width, top, floor, SWEEP, BIAS, BLOCK)
        count += 1
        going = (lowest < ceiling) & (count < _MOST) & (collapsed == 0)
    s, r, n = _sums(first, second, row, bias, width, top, lowest, 0.0, 1.0, beta, _LOWEST, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
    low = 1.0 / tl.maximum(n, 1.0)
    count = 0
    going = active
    while going:
        e = tl.exp2(beta * tl.log2(low))
        s, r, n = _sums(first, second, row, bias, width, top, lowest, e, low, beta, _LOWEST, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        step = (s - 1.0) / r
        more = step > 1e-6 * low
        low = tl.where(more, tl.maximum(low - step, _TINY), low)
        count += 1
        going = more & (count < _MOST)
    return lowest, low


@triton.jit
def _solve(
    first, second, row, bias, width, top, start, beta, active,
    KIND: tl.constexpr, SWEEP: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(c, e, low, bar) of the row's record; ``start`` is a c that is not too high."""
    e = tl.full([], 1.0, tl.float32)
    low = tl.full([], 0.0, tl.float32)
    if KIND == SOFTMAX:
        c = _climb(first, second, row, bias, width, top, start, beta, active, KIND, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        bar = tl.full([], -_INF, tl.float32)
    elif KIND >= POWER:
        c = start
        if KIND != STEEP:
            c = _climb(first, second, row, bias, width, top, start, beta, active & (beta <= 1.0), POWER, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        bar = c - 1.0 / beta
        if KIND >= STEEP:  # noqa: SIM102 - known to the compiler, and what follows is not
            if beta > 1.0:
                c, low = _descend(first, second, row, bias, width, top, beta, active, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
                e = tl.exp2(beta * tl.log2(low))
                bar = c
    else:
        c = _climb(first, second, row, bias, width, top, start, beta, active, KIND, SWEEP, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        e = tl.full([], 0.0, tl.float32)
        bar = c
    return c, e, low, bar


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
    return tl.where(near, series, (tl.exp2(large * _LOG2_E) - 1.0 - large) / (large * large))


@triton.jit
def _slopes(p, beta):
    """Entries' parts of d Omega / d alpha at fixed p, in the form that is regular at alpha = 1."""
    log_p = tl.where(p > 0.0, tl.log2(tl.maximum(p, 1e-37)) * _LN_2, 0.0)
    v = beta * log_p
    alpha = 1.0 + beta
    slope = tl.exp2(v * _LOG2_E) * _excess(-v)
    return p * log_p * (log_p * slope / alpha - _expm1_ratio(v) / (alpha * alpha))


@triton.jit
def _moments(y, c, e, low, bar, beta, KIND: tl.constexpr, CHANGE: tl.constexpr):
    """p, <p, y> and the parts of d Omega / d alpha."""
    p = probabilities(y, c, e, low, bar, 1.0, beta, KIND)
    inner = p * tl.where(p > 0.0, y, 0.0)
    if CHANGE:
        return p, inner, _slopes(p, beta)
    return p, inner, p


@triton.jit
def solve_kernel(
    z, stride, bias, betas, beta_stride, index, scales, owns, eaches, class_weight, values,
    changes, records, starts, counts, keys, probs, total, first_row, tokens, words, capacity,
    KIND: tl.constexpr, BIAS: tl.constexpr, SMOOTH: tl.constexpr, WEIGHTED: tl.constexpr,
    CHANGE: tl.constexpr, LIST: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The row's loss and record, and its support in the lists if there is room.

    ``total`` counts all entries, those that found no room included, so it tells whether the lists
    are whole. An entry is word * tokens + row and its probability; the target of a row that has a
    gradient is always among its entries.
    """
    n = first_row + tl.program_id(0)
    row = z + tl.program_id(0).to(tl.int64) * stride
    beta = tl.load(betas + n * beta_stride)
    target = tl.load(index + n)
    scale = tl.load(scales + n)
    own = tl.load(owns + n)
    each = tl.load(eaches + n)
    used = (scale != 0.0) | (own != 0.0) | (each != 0.0)
    width = tl.where(used, words, 0)

    lanes = tl.arange(0, BLOCK)
    first = tl.full([BLOCK], -_INF, tl.float32)
    second = tl.full([BLOCK], -_INF, tl.float32)
    third = tl.full([BLOCK], -_INF, tl.float32)
    first_at = tl.zeros([BLOCK], tl.int32)
    second_at = tl.zeros([BLOCK], tl.int32)
    for k in tl.range(0, width, BLOCK, num_stages=STAGES):
        x = load(row, bias, k, lanes, width, BIAS)
        if KIND == SOFTMAX:
            first = tl.maximum(first, x)
        else:
            above = x > first
            rest = tl.where(above, first, x)
            rest_at = tl.where(above, first_at, k)
            first = tl.where(above, x, first)
            first_at = tl.where(above, k, first_at)
            above = rest > second
            third = tl.maximum(third, tl.where(above, second, rest))
            second_at = tl.where(above, rest_at, second_at)
            second = tl.where(above, rest, second)
    largest = tl.max(first, 0)
    valid = (beta >= 0.0) & (beta < _INF)
    good = (largest > -_INF) & (largest < _INF) & valid
    broken = used & ((largest == _INF) | (valid == 0))
    top = tl.where((largest > -_INF) & (largest < _INF), largest, 0.0)
    beta = tl.where(good, tl.maximum(beta, 1e-20), 1.0)
    width = tl.where(good, width, 0)

    first = first - top
    second = second - top
    if KIND == SQUARE:
        start = tl.full([], -2.0, tl.float32)
    elif KIND == LINEAR:
        start = tl.full([], -1.0, tl.float32)
    else:
        start = tl.full([], 0.0, tl.float32)
    if KIND == SOFTMAX:
        swept = good
        c, e, low, bar = _solve(first, second, row, bias, width, top, start, beta, good, KIND, True, BIAS, BLOCK)  # fmt: skip  # noqa: E501
    else:
        c, e, low, bar = _solve(first, second, row, bias, width, top, start, beta, good, KIND, False, BIAS, BLOCK)  # fmt: skip  # noqa: E501
        swept = good & (tl.max(third, 0) - top >= bar)
        if swept:
            c, e, low, bar = _solve(first, second, row, bias, width, top, c, beta, good, KIND, True, BIAS, BLOCK)  # fmt: skip  # noqa: E501
    bar = tl.where(good, bar, tl.where(broken, -_INF, _INF))

    # sums at the solution, and how many entries there are
    mass, inner, slope = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)  # fmt: skip  # noqa: E501
    inside = tl.zeros([BLOCK], tl.int32)
    if swept:
        for k in range(0, width, BLOCK):
            y = load(row, bias, k, lanes, width, BIAS) - top
            one, two, three = _moments(y, c, e, low, bar, beta, KIND, CHANGE)
            mass += one
            inner += two
            slope += three
            inside += tl.where((y >= bar) & (k + lanes < width), 1, 0)
    else:
        mass, inner, slope = _moments(first, c, e, low, bar, beta, KIND, CHANGE)
        one, two, three = _moments(second, c, e, low, bar, beta, KIND, CHANGE)
        mass += one
        inner += two
        slope += three
        inside = tl.where(first >= bar, 1, 0) + tl.where(second >= bar, 1, 0)
    s, q, d_omega = tl.reduce((mass, inner, slope), 0, _add)
    count = tl.where(broken, words, tl.sum(inside, 0))
    inv = tl.where(good, 1.0 / s, tl.where(broken, float("nan"), 0.0))

    # the dual objective at t is right to second order in what t is off
    b = beta.to(tl.float64)
    t = c.to(tl.float64) + (1.0 - e.to(tl.float64)) / b
    gap = (b * (q.to(tl.float64) - t * s) + (s.to(tl.float64) - 1.0)) / (1.0 + b) + t
    gap = tl.where(good, tl.maximum(gap, 0.0), inv.to(tl.float64))
    z_target = tl.load(row + target).to(tl.float32)
    if BIAS:
        z_target += tl.load(bias + target).to(tl.float32)
    lag = top.to(tl.float64) - z_target
    value = tl.where(scale == 0.0, 0.0, scale * gap) + tl.where(own == 0.0, 0.0, own * lag)
    if SMOOTH:
        spread = tl.zeros([BLOCK], tl.float32)
        for k in range(0, tl.where(used, words, 0), BLOCK):
            at = k + lanes
            x = tl.load(row + at, mask=at < words, other=top)
            if BIAS:
                x += tl.load(bias + at, mask=at < words, other=0.0).to(tl.float32)
            if WEIGHTED:
                w = tl.load(class_weight + at, mask=at < words, other=0.0).to(tl.float32)
                spread += tl.where(w == 0.0, 0.0, w * (top - x))
            else:
                spread += tl.where(at < words, top - x, 0.0)
        value += tl.where(each == 0.0, 0.0, each * tl.sum(spread, 0).to(tl.float64))
    tl.store(values + n, value)
    if CHANGE:
        tl.store(changes + n, tl.where(good, -d_omega, inv))
    tl.store(records + n, top)
    tl.store(records + tokens + n, c)
    tl.store(records + 2 * tokens + n, e)
    tl.store(records + 3 * tokens + n, low)
    slack = tl.full([], 0.0, tl.float32)
    if KIND >= STEEP:
        # above alpha = 2 the lowest score must not fall off when its last digits come out otherwise
        slack = tl.where(beta > 1.0, 4e-6 * (1.0 + tl.abs(top) - c), 0.0)
    tl.store(records + 4 * tokens + n, bar - slack)
    tl.store(records + 5 * tokens + n, inv)

    if LIST:
        inside_target = (z_target - top >= bar) | broken  # NaN >= anything is false
        alone = used & (own != 0.0) & (inside_target == 0)
        entries = count + tl.where(alone, 1, 0)
        at_list = tl.atomic_add(total, entries.to(tl.int64))
        fits = at_list + entries <= capacity
        tl.store(starts + n, at_list)
        tl.store(counts + n, entries)
        keys += at_list
        probs += at_list
        KEY = keys.dtype.element_ty
        reach = tl.where(fits, bar, _INF)
        if swept | broken:
            done = tl.zeros([], tl.int32)
            for k in range(0, tl.where(fits & used, words, 0), BLOCK):
                at = k + lanes
                y = load(row, bias, k, lanes, words, BIAS) - top
                chosen = (y >= bar) & (at < words)
                place = done + tl.cumsum(tl.where(chosen, 1, 0), 0) - 1
                p = probabilities(y, c, e, low, bar, inv, beta, KIND)
                tl.store(keys + place, at.to(KEY) * tokens + n, mask=chosen)
                tl.store(probs + place, p, mask=chosen)
                done += tl.sum(tl.where(chosen, 1, 0), 0)
        else:
            chosen = first >= reach
            place = tl.cumsum(tl.where(chosen, 1, 0), 0) - 1
            p = probabilities(first, c, e, low, bar, inv, beta, KIND)
            tl.store(keys + place, (first_at + lanes).to(KEY) * tokens + n, mask=chosen)
            tl.store(probs + place, p, mask=chosen)
            before = tl.sum(tl.where(chosen, 1, 0), 0)
            chosen = second >= reach
            place = before + tl.cumsum(tl.where(chosen, 1, 0), 0) - 1
            p = probabilities(second, c, e, low, bar, inv, beta, KIND)
            tl.store(keys + place, (second_at + lanes).to(KEY) * tokens + n, mask=chosen)
            tl.store(probs + place, p, mask=chosen)
        if alone & fits:
            tl.store(keys + count, target.to(KEY) * tokens + n)
            tl.store(probs + count, 0.0)
