"""What a row's target is worth, and the loss of all rows from the losses of each.

The terms of a row's loss count by three factors: ``own`` that of the target, ``each`` that of every
word, which is what label smoothing adds, and ``scale`` their sum (losses/linear_products.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .approx import rounded
from .quick import quick


@triton.jit
def read_target(target, class_weight, words, ignore, WEIGHTED: tl.constexpr):
    """(index, class weight in float64, kept): weight 0 if ignored, NaN if there is no such word."""
    kept = target != ignore
    known = (target >= 0) & (target < words)
    index = tl.where(kept & known, target, 0)
    weight = tl.where(known, 1.0, float("nan")).to(tl.float64)
    if WEIGHTED:
        weight *= tl.load(class_weight + index).to(tl.float64)
    return index, tl.where(kept, weight, 0.0), kept


@triton.jit
def row_factors(
    weight, kept, class_total, words, smoothing, SMOOTH: tl.constexpr, WEIGHTED: tl.constexpr
):
    """(scale, own, each), without the divisor of a mean."""
    if SMOOTH:
        share = tl.zeros_like(weight) + smoothing
        own = weight * (1.0 - share)
        each = tl.where(kept, share / words, 0.0)
        if WEIGHTED:
            every = tl.load(class_total)
        else:
            every = tl.zeros_like(weight) + words
        return own + each * every, own, each
    else:
        return weight, weight, tl.zeros_like(weight)


@triton.jit
def upstream(grads, n, stride, divisor, MEAN: tl.constexpr):
    """What a row's loss counts in the end: the gradient from above, over the mean's divisor."""
    g = tl.load(grads + n * stride).to(tl.float64)
    if MEAN:
        g /= tl.load(divisor)
    return g.to(tl.float32)


@quick
@triton.jit(do_not_specialize=["ignore"])
def finish_kernel(
    out, divisor, values, targets, class_weight, keys, total, tokens, words, room, ignore, programs,
    TOTAL: tl.constexpr, MEAN: tl.constexpr, WEIGHTED: tl.constexpr, LIST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The first program adds the losses up; the others mark what is left of the list of keys.

    A mean over no rows is 0, and one over rows whose weights are all 0 is NaN, as in torch.
    """
    lanes = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        if TOTAL:
            sums = tl.zeros([BLOCK], tl.float64)
            weights = tl.zeros([BLOCK], tl.float64)
            some = tl.zeros([BLOCK], tl.int32)
            for k in range(0, tokens, BLOCK):
                at = k + lanes
                sums += tl.load(values + at, mask=at < tokens, other=0.0)
                if MEAN:
                    target = tl.load(targets + at, mask=at < tokens, other=ignore)
                    _index, weight, kept = read_target(
                        target, class_weight, words, ignore, WEIGHTED
                    )
                    weights += weight
                    some = some | tl.where(kept, 1, 0)
            result = tl.sum(sums, 0)
            if MEAN:
                whole = tl.sum(weights, 0)
                whole = tl.where(whole == 0.0, float("nan"), whole)
                whole = tl.where(tl.max(some, 0) > 0, whole, 1.0)
                tl.store(divisor, whole)
                result = result / whole
            if out.dtype.element_ty == tl.float64:
                tl.store(out, result)
            else:
                tl.store(out, rounded(result.to(tl.float32), out.dtype.element_ty))
    elif LIST:
        KEY = keys.dtype.element_ty
        beyond = tl.zeros([BLOCK], tl.int64) + words
        beyond *= tokens
        begin = tl.minimum(tl.load(total), room) + (tl.program_id(0) - 1) * BLOCK
        for rest in range(begin, room, (programs - 1) * BLOCK):
            at = rest + lanes
            tl.store(keys + at, beyond.to(KEY), mask=at < room)
