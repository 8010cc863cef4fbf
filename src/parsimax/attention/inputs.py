"""Checks of attention's tensors and numbers; every message names the sizes that do not fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from parsimax._core.masks import same_shape
from parsimax._core.validation import check_dense

# others, of 8 bits, come with scales of their own
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def scores_shape(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> torch.Size:
    """The shape (..., Lq, Lk) that the scores will have, once q, k and v are found to fit.

    Where there are no values, v is k itself, and is not spoken of.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_input(name, x)
    check_devices(q=q, k=k, v=v)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q and k must have the same size in their last dimension, got {q.shape[-1]} in q "
            f"{tuple(q.shape)} and {k.shape[-1]} in k {tuple(k.shape)}"
        )
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"k and v must have the same length, got {k.shape[-2]} keys in k {tuple(k.shape)} and "
            f"{v.shape[-2]} values in v {tuple(v.shape)}"
        )
    if (
        q.ndim == k.ndim == v.ndim
        and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
        and not enable_gqa
    ):
        lead: tuple[int, ...] = q.shape[:-2]  # torch takes ten microseconds to see it
        return torch.Size((*lead, q.shape[-2], k.shape[-2]))
    keep, heads = (3, q.shape[-3:-2]) if enable_gqa else (2, ())
    if enable_gqa:
        _check_groups(q, k, "k")
        _check_groups(q, v, "v")
    if v is not k:
        _broadcast(q, v, "q", "v", keep)
    lead = (*_broadcast(q, k, "q", "k", keep), *heads)
    _broadcast(k, v, "k", "v", keep)
    return torch.Size((*lead, q.shape[-2], k.shape[-2]))


def with_lead_of(q: Tensor, v: Tensor, shape: torch.Size, enable_gqa: bool) -> Tensor:
    """Queries for each context, where values have leading dimensions that the scores have not."""
    keep = 3 if enable_gqa else 2
    lead = torch.broadcast_shapes(shape[:-keep], v.shape[:-keep])  # type: ignore[no-untyped-call]
    return q if same_shape(lead, shape[:-keep]) else q.expand(*lead, *q.shape[-keep:])


def check_tensor(name: str, x: object) -> None:
    """A dense tensor of floating-point numbers that attention computes with."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {x.dtype}")
    if x.dtype not in _DTYPES:
        raise TypeError(f"{name} must have a dtype of 16, 32 or 64 bits, got {x.dtype}")
    check_dense(x, name)


def check_devices(**tensors: Tensor | None) -> None:
    """All where the first is; torch may return what was never written if one has no values."""
    if len({x.device for x in tensors.values() if x is not None}) > 1:
        given = {name: x.device for name, x in tensors.items() if x is not None}
        found = ", ".join(f"{name} on {device}" for name, device in given.items())
        raise ValueError(f"{', '.join(given)} must be on one device, got {found}")


def _check_input(name: str, x: Tensor) -> None:
    check_tensor(name, x)
    if x.ndim < 2:
        raise ValueError(
            f"{name} must have at least two dimensions (length, size), got shape {tuple(x.shape)}"
        )


def _check_groups(q: Tensor, x: Tensor, name: str) -> None:
    if q.ndim < 3 or x.ndim < 3:
        raise ValueError(
            f"enable_gqa needs a dimension of heads, (..., heads, length, size), got q "
            f"{tuple(q.shape)} and {name} {tuple(x.shape)}"
        )
    if x.shape[-3] == 0 or q.shape[-3] % x.shape[-3]:
        raise ValueError(
            f"enable_gqa needs q's heads to be a multiple of {name}'s, got {q.shape[-3]} heads in "
            f"q and {x.shape[-3]} in {name}"
        )


def _broadcast(q: Tensor, x: Tensor, of: str, name: str, keep: int) -> tuple[int, ...]:
    """The broadcast of all but the last ``keep`` dimensions."""
    if same_shape(q.shape[:-keep], x.shape[:-keep]):
        return tuple(q.shape[:-keep])
    try:
        lead: torch.Size = torch.broadcast_shapes(q.shape[:-keep], x.shape[:-keep])  # type: ignore[no-untyped-call]
        return tuple(lead)
    except RuntimeError:
        grouped = keep == 2 and q.ndim > 2 and x.ndim > 2 and q.shape[-3] != x.shape[-3]
        hint = "; for grouped heads pass enable_gqa=True" if grouped else ""
        raise ValueError(
            f"the leading dimensions of {of} and {name} must broadcast, got {of} {tuple(q.shape)} "
            f"and {name} {tuple(x.shape)}{hint}"
        ) from None


def check_dtypes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """One dtype for all three, as torch asks for."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
        )


def check_plain(value: object, name: str, ok: Callable[[float], bool], expected: str) -> float:
    """A Python number, never a tensor, for which ``ok`` holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__} {value!r}")
    if not ok(value):  # also false for NaN
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return value


def check_dropout(value: object, name: str) -> float:
    """A probability."""
    return check_plain(value, name, lambda p: 0 <= p <= 1, "a number from 0 to 1")


def check_scale(scale: object, size: int) -> float:
    """``scale``, or one over the root of the size of a query; a float, as kernels need it."""
    if scale is None:
        return size**-0.5 if size else 1.0
    if isinstance(scale, torch.SymFloat):  # of a size that is a symbol, where make_fx records
        return scale  # type: ignore[return-value]
    finite = "a finite number or None (1 / sqrt(size of q))"
    largest = torch.finfo(torch.float64).max  # an int may be larger
    return float(check_plain(scale, "scale", lambda x: -largest <= x <= largest, finite))


def check_flag(value: object, name: str) -> bool:
    """True or False, not something that merely counts as such."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__} {value!r}")
    return value


def check_size(value: object, name: str) -> int:
    """A whole number from 1 up."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
