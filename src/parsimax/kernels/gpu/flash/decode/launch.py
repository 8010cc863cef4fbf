"""What the host calls: the output of one step of decoding.

A step takes a tenth of a millisecond, and to find out what to launch takes as long. So that is
written down, and found again by all that decides it; a plan has numbers and kernels, no tensors.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from .plan import Plan
from .problem import Problem

_PLANS: dict[Hashable, Plan] = {}
_MOST_PLANS = 512  # a cache that grows by a key a step has a new one for each step


def decode(p: Problem) -> Tensor:
    """Context (B, Hq, Lq, Ev)."""
    q, k, v, lengths, table, seen, alpha, scale, band, tiles = p
    # what is not there is not read
    given = (
        q,
        k,
        v,
        q if seen is None else seen,
        q if lengths is None else lengths,
        q if table is None else table,
        alpha if isinstance(alpha, Tensor) else q,
    )
    addresses = [*map(Tensor.data_ptr, given)]
    unaligned = 0
    for address in addresses:
        unaligned |= address
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        lengths if lengths is None else (lengths.dtype, lengths.stride()),
        table if table is None else (table.dtype, table.shape, table.stride()),
        seen if seen is None else (seen.dtype, seen.stride()),
        alpha.dtype if isinstance(alpha, Tensor) else alpha,
        scale, band, tiles, q.get_device(),
        tuple([address % 16 == 0 for address in addresses]) if unaligned % 16 else None,
    )  # fmt: skip
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Plan(p)
    out = q.new_empty(plan.shape)
    scratch = q.new_empty(plan.room, dtype=torch.float32)
    if plan.chain.ready:
        addresses.append(out.data_ptr())
        first = scratch.data_ptr()
        addresses += [first + place for place in plan.places]
        plan.chain.again(addresses)
    else:
        plan.chain.first([*given, out, *plan.cut(scratch).values()])
    return out
