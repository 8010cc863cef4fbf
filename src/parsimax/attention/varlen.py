"""Attention of sequences of different lengths that lie one after the other, without padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from parsimax.mappings import Mapping

from .choice import DEFAULT_ALPHA
from .functional import attention
from .inputs import check_tensor
from .visibility import Window, fits


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: float | Tensor = DEFAULT_ALPHA,
    mapping: Mapping | str | None = None,
    causal_align: str = "top-left",
    window: Window = None,
) -> Tensor:
    """``px.attention`` of each of several sequences, packed into one without padding.

    Sequence i has the queries from ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]`` and sees only
    keys from ``cu_seqlens_k[i]`` to ``cu_seqlens_k[i + 1]``. All other arguments mean for each
    sequence what they mean for ``px.attention``.

    Args:
        q: Queries of all sequences, (total, Hq, E).
        k: Keys (total, H, E).
        v: Values (total, H, Ev).
        cu_seqlens_q: Integers (number of sequences + 1,): where sequences begin, and at last the
            total. The first is 0.
        cu_seqlens_k: The same for keys and values; ``None`` is as for the queries.
        dropout_p: Probability with which a weight is dropped.
        is_causal: A query sees the keys up to its own position.
        scale: What the products are multiplied with; ``None`` is 1 / sqrt(E).
        enable_gqa: Query heads share keys and values in groups.
        alpha: Which entmax: a number, a tensor (Hq,), or one that broadcasts to (total, Hq).
        mapping: Any mapping, or its text, instead of alpha.
        causal_align: Where queries stand if a sequence has more keys than queries, or fewer.
        window: How far a query sees to the left and to the right of its position.

    Returns:
        (total, Hq, Ev), in the dtype of q.

    >>> import torch, parsimax as px
    >>> q, k, v = (torch.randn(7, 2, 4) for _ in range(3))
    >>> starts = torch.tensor([0, 3, 7])  # a sequence of three, and one of four
    >>> px.attention.packed(q, k, v, starts, is_causal=True).shape
    torch.Size([7, 2, 4])
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
        if x.ndim != 3:
            raise ValueError(
                f"{name} must have three dimensions (total, heads, size), got shape "
                f"{tuple(x.shape)}"
            )
    if k.shape[0] != v.shape[0]:
        raise ValueError(
            f"k and v must have the same total length, got {k.shape[0]} keys in k "
            f"{tuple(k.shape)} and {v.shape[0]} values in v {tuple(v.shape)}"
        )
    queries = read_starts(cu_seqlens_q, "cu_seqlens_q", q, "q")
    keys = queries
    if cu_seqlens_k is not None:
        keys = read_starts(cu_seqlens_k, "cu_seqlens_k", k, "k")
    elif q.shape[0] != k.shape[0]:
        raise ValueError(
            f"cu_seqlens_k must be given where q and k differ in total length, got {q.shape[0]} "
            f"queries and {k.shape[0]} keys"
        )
    if len(queries) != len(keys):
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must be of as many sequences, got "
            f"{len(queries)} and {len(keys)}"
        )
    alphas = _alphas(alpha, q, queries)
    qs, ks, vs = _sequences(q, queries), _sequences(k, keys), _sequences(v, keys)
    out = [
        attention(
            a,
            b,
            c,
            None,
            dropout_p,
            is_causal,
            scale,
            enable_gqa,
            alpha=value,
            mapping=mapping,
            causal_align=causal_align,
            window=window,
        ).transpose(0, 1)
        for a, b, c, value in zip(qs, ks, vs, alphas, strict=True)
    ]
    return torch.cat(out) if out else q.new_zeros(0, q.shape[1], v.shape[2])


def read_starts(starts: object, name: str, x: Tensor, of: str) -> list[int]:
    """The lengths of the sequences; on a GPU this waits for their values."""
    if not isinstance(starts, Tensor):
        raise TypeError(f"{name} must be a tensor of integers, got {type(starts).__name__}")
    if starts.dtype == torch.bool or starts.is_floating_point() or starts.is_complex():
        raise TypeError(f"{name} must have an integer dtype, got {starts.dtype}")
    if starts.ndim != 1 or starts.shape[0] == 0:
        raise ValueError(
            f"{name} must have shape (number of sequences + 1,), got {tuple(starts.shape)}"
        )
    places: list[int] = starts.tolist()
    if places[0] != 0:
        raise ValueError(f"{name} must begin with 0, got {places[0]}")
    lengths = [stop - start for start, stop in itertools.pairwise(places)]
    if any(length < 0 for length in lengths):
        first = next(i for i, length in enumerate(lengths) if length < 0)
        raise ValueError(
            f"{name} must never decrease, got {places[first]} and then {places[first + 1]}"
        )
    if places[-1] != x.shape[0]:
        raise ValueError(
            f"{name} must end with the total length of {of}, {x.shape[0]}, got {places[-1]}"
        )
    return lengths


def _sequences(x: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Each sequence as (heads, length, size); ``split`` has one gradient, many slices have many."""
    return [part.transpose(0, 1) for part in torch.split(x, list(lengths))]


def _alphas(alpha: float | Tensor, q: Tensor, lengths: Sequence[int]) -> list[float | Tensor]:
    """Alpha for each sequence."""
    if not isinstance(alpha, Tensor) or alpha.ndim < 2:
        return [alpha] * len(lengths)
    total, heads = q.shape[:2]
    if not fits(alpha.shape, torch.Size((total, heads))):
        raise ValueError(
            f"a tensor alpha must have shape ({heads},), one value for each head, or broadcast to "
            f"(total, heads) = ({total}, {heads}), got shape {tuple(alpha.shape)}"
        )
    return [
        part.mT.unsqueeze(-1) for part in torch.split(alpha.expand(total, heads), list(lengths))
    ]
