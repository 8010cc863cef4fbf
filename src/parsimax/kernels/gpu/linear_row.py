"""A row of logits in memory: reading it, and keeping the few largest scores that each lane meets.

Where a score stood must be known as well. The place is written over the last bits of the score
itself, which costs one instruction where carrying it along would cost three; the scores that matter
are then read again for their digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .reductions import larger

_LEAST = tl.constexpr(-3e38)  # for -inf, which has no digits to spare


@triton.jit
def load(row, bias, at, width, BIAS: tl.constexpr):
    """Logits in float32; -inf beyond the row."""
    x = tl.load(row + at, mask=at < width, other=-float("inf"))
    if BIAS:
        x += tl.load(bias + at, mask=at < width, other=0.0).to(tl.float32)
    return x


@triton.jit
def _load_whole(row, bias, at, BIAS: tl.constexpr):
    x = tl.load(row + at)
    if BIAS:
        x += tl.load(bias + at).to(tl.float32)
    return x


@triton.jit
def _insert(x, k, top, first, second, third, fourth, BITS: tl.constexpr):
    bits = tl.maximum(x, _LEAST).to(tl.int32, bitcast=True)
    marked = ((bits & (-1 << BITS)) | k).to(tl.float32, bitcast=True)
    less = tl.minimum(first, marked)
    first = tl.maximum(first, marked)
    least = tl.minimum(second, less)
    second = tl.maximum(second, less)
    fourth = tl.maximum(fourth, tl.minimum(third, least))
    third = tl.maximum(third, least)
    return larger(top, x), first, second, third, fourth


@triton.jit
def largest_four(
    row, bias, width, BIAS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """(largest, then the four largest with their last bits overwritten) of each lane.

    ``place`` and ``slack`` say where one stood, and how much it may be off.
    """
    lanes = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    first = top
    second = top
    third = top
    fourth = top
    pieces = width // BLOCK
    for k in tl.range(0, pieces, loop_unroll_factor=UNROLL):
        x = _load_whole(row, bias, k * BLOCK + lanes, BIAS)
        top, first, second, third, fourth = _insert(x, k, top, first, second, third, fourth, BITS)
    x = load(row, bias, pieces * BLOCK + lanes, width, BIAS)
    return _insert(x, pieces, top, first, second, third, fourth, BITS)


@triton.jit
def place(marked, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The column where a score of :func:`largest_four` stood."""
    k = marked.to(tl.int32, bitcast=True) & ((1 << BITS) - 1)
    return k * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def slack(size, BITS: tl.constexpr):
    """How much a number of at most this size may be off with its last bits overwritten."""
    return size * (1 << BITS) * 2.4e-7


@triton.jit
def largest(row, bias, width, BIAS: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """The largest score of each lane."""
    lanes = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    for k in tl.range(0, width, BLOCK, loop_unroll_factor=UNROLL):
        top = larger(top, load(row, bias, k + lanes, width, BIAS))
    return top
