"""What the host calls: the output of one step of decoding.

A step takes a tenth of a millisecond, and to find out what to launch takes as long. So that is
written down, and found again by all that decides it; a plan has numbers and kernels, no tensors.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from parsimax.kernels.gpu.chain import alignment, found_again

from .plan import Plan
from .problem import Problem

_PLANS: dict[Hashable, Plan] = {}


def decode(p: Problem) -> Tensor:
    """Context (B, Hq, Lq, Ev)."""
    q, k, v, lengths, table, seen, alpha, scale, band, tiles, bounds = p
    # what is not there is not read
    given = (
        q,
        k,
        v,
        q if seen is None else seen,
        q if lengths is None else lengths,
        q if table is None else table,
        alpha if isinstance(alpha, Tensor) else q,
        *((q, q, q) if bounds is None else bounds[:3]),
    )
    addresses = [*map(Tensor.data_ptr, given)]
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        lengths if lengths is None else (lengths.dtype, lengths.stride()),
        table if table is None else (table.dtype, table.shape, table.stride()),
        seen if seen is None else (seen.dtype, seen.stride()),
        alpha.dtype if isinstance(alpha, Tensor) else alpha,
        scale, band, tiles, None if bounds is None else bounds.block,
        q.get_device(), alignment(addresses),
    )  # fmt: skip
    plan = found_again(_PLANS, key, lambda: Plan(p))
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
