"""Sort a row by the bits of its numbers: no comparisons, linear time, ties in their order."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .scalar import bits

_SHORT = 48  # below this, moving numbers one by one is faster than counting them
_BITS = 11
_SIZE = 1 << _BITS


@kernel
def _key(x):
    """An unsigned integer that falls as ``x`` rises; -0.0 and 0.0 are one."""
    pattern = bits(np.float64(x) + 0.0)
    if pattern < 0:
        return np.uint64(pattern)
    return np.uint64(~pattern) & np.uint64(0x7FFFFFFFFFFFFFFF)


@kernel
def _insert(y, count, order):
    for i in range(count):
        x, k = y[i], i
        while k > 0 and y[order[k - 1]] < x:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i


@kernel
def sort_descending(y, count, order, keys, spare, spare_keys, buckets, lowest):
    """Write the places of ``y[:count]`` in descending order into ``order``.

    ``keys``, ``spare``, ``spare_keys`` and ``buckets`` (see :func:`sort_room`) are overwritten.
    Bits below ``lowest`` are zero in every number: of float32, 29 of them.
    """
    if count <= _SHORT:
        _insert(y, count, order)
        return
    for i in range(count):
        keys[i] = _key(y[i])
        order[i] = i
    first, also = np.uint64(0), keys[0]
    for i in range(count):
        first |= keys[i]
        also &= keys[i]
    varies = first ^ also  # bits in which the keys differ
    source, source_keys, target, target_keys = order, keys, spare, spare_keys
    turned = False
    shift = np.uint64(lowest)
    while shift < np.uint64(64):
        if (varies >> shift) & np.uint64(_SIZE - 1) != np.uint64(0):
            buckets[:] = 0
            for i in range(count):
                buckets[np.int64((source_keys[i] >> shift) & np.uint64(_SIZE - 1))] += 1
            total = 0
            for digit in range(_SIZE):
                size = buckets[digit]
                buckets[digit] = total
                total += size
            for i in range(count):
                bucket = np.int64((source_keys[i] >> shift) & np.uint64(_SIZE - 1))
                place = buckets[bucket]
                buckets[bucket] = place + 1
                target[place] = source[i]
                target_keys[place] = source_keys[i]
            source, target = target, source
            source_keys, target_keys = target_keys, source_keys
            turned = not turned
        shift += np.uint64(_BITS)
    if turned:
        for i in range(count):
            order[i] = spare[i]


@kernel
def sort_room(d):
    """(order, keys, spare, spare_keys, buckets) for rows of up to ``d``."""
    return (
        np.empty(d, np.int32),
        np.empty(d, np.uint64),
        np.empty(d, np.int32),
        np.empty(d, np.uint64),
        np.empty(_SIZE, np.int32),
    )
