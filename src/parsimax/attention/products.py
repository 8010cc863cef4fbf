"""Products of queries, keys and values in which heads may share keys in groups."""

from __future__ import annotations

from torch import Tensor


def matmul_heads(a: Tensor, b: Tensor, grouped: bool) -> Tensor:
    """``a @ b``; if grouped, h // (heads of a / heads of b) is the head of b for head h of a.

    The heads of a group are laid one after the other along the length, so nothing is repeated.
    """
    if not grouped or a.shape[-3] == b.shape[-3]:
        return a @ b
    product = _together(a, b.shape[-3]) @ b
    group = a.shape[-3] // b.shape[-3]
    # torch.export compares sizes less if one dimension is taken apart and then two are joined
    apart = product.reshape(*product.shape[:-2], group, a.shape[-2], product.shape[-1])
    return apart.flatten(-4, -3)


def matmul_lengths(a: Tensor, b: Tensor, heads: int | None) -> Tensor:
    """``a.mT @ b``, summed over the heads of each group if it is to have fewer ``heads``."""
    if heads is None or a.shape[-3] == heads:
        return a.mT @ b
    return _together(a, heads).mT @ _together(b, heads)


def _together(x: Tensor, heads: int) -> Tensor:
    """(..., heads, group * length, size)."""
    length = x.shape[-3] // heads * x.shape[-2]
    return x.reshape(*x.shape[:-3], heads, length, x.shape[-1])
