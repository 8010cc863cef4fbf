"""Attention of sequences of different lengths that lie one after the other, without padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from parsimax._core.validation import recorded, transform_or_forward_mode, without_values
from parsimax.mappings import Mapping

from . import flash
from .choice import DEFAULT_ALPHA, check_one_choice
from .functional import attention, read_text, weigher
from .fused import kernel_alpha
from .inputs import (
    check_dropout,
    check_flag,
    check_scale,
    check_size,
    check_tensor,
    scores_shape,
)
from .packed_mask import all_at_once
from .packed_operator import sequence_by_sequence
from .precision import autocast_inputs
from .rowwise import read_rows
from .starts import check_starts, read_starts
from .visibility import Band, Window, fits, read_band


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
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
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
        max_seqlen_q: No sequence has more queries. On a GPU, kernels have to know it and
            ``max_seqlen_k`` before they start; without them the host reads the starts once, for
            which it waits, but for inside of torch.compile and CUDA graphs, where more memory is
            set aside instead. With them nothing is read, and if the starts cannot be or a sequence
            is longer, the result is NaN. Elsewhere the starts are always read; compiled code reads
            them when it runs, but for mappings with bounds or of your own, for which
            torch.compile(fullgraph=True) refuses to. Compiled derivatives of torch.func and in
            forward mode read nothing, either: they hold one matrix of weights of all sequences.
        max_seqlen_k: The same of the keys; ``None`` with ``cu_seqlens_k=None`` is as for queries.

    Returns:
        (total, Hq, Ev), in the dtype of q.

    >>> import torch, parsimax as px
    >>> q, k, v = (torch.randn(7, 2, 4) for _ in range(3))
    >>> starts = torch.tensor([0, 3, 7])  # a sequence of three, and one of four
    >>> px.attention.packed(q, k, v, starts, is_causal=True).shape
    torch.Size([7, 2, 4])
    """
    _check_tensors(q, k, v, cu_seqlens_k)
    check_starts(cu_seqlens_q, "cu_seqlens_q")
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
        max_seqlen_k = max_seqlen_q if max_seqlen_k is None else max_seqlen_k
    check_starts(cu_seqlens_k, "cu_seqlens_k")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must be of as many sequences, got "
            f"{cu_seqlens_q.shape[0] - 1} and {cu_seqlens_k.shape[0] - 1}"
        )
    limits = [
        None if size is None else check_size(size, name)
        for size, name in ((max_seqlen_q, "max_seqlen_q"), (max_seqlen_k, "max_seqlen_k"))
    ]
    check_one_choice(alpha, mapping)
    lower = autocast_inputs(q, k, v)
    chosen = read_text(mapping) if isinstance(mapping, str) else mapping
    known = _kernel_alpha(*lower, alpha, chosen, check_dropout(dropout_p, "dropout_p"))
    blind = recorded() or without_values(cu_seqlens_q) or without_values(cu_seqlens_k)
    if known is not None or blind:
        heads_first = [x.transpose(0, 1) for x in lower]
        enable_gqa = check_flag(enable_gqa, "enable_gqa")
        shape = scores_shape(heads_first[0], heads_first[1], heads_first[2], enable_gqa)
        band = read_band(shape, check_flag(is_causal, "is_causal"), causal_align, window)
        starts = (cu_seqlens_q, cu_seqlens_k)
        bottom_right = causal_align == "bottom-right"
        scale = check_scale(scale, q.shape[-1])
        if known is not None:
            longest = _longest(starts, limits, (q, k))
            return flash.packed_attention(
                *lower,
                (starts[0].to(q.device), starts[1].to(q.device)),
                longest,
                Band(band.left, band.right),
                bottom_right,
                known,
                scale,
            )
        alphas = _of_scores(alpha, q)
        if recorded() and transform_or_forward_mode():
            return all_at_once(
                lower,
                starts,
                weigher(alphas, chosen),
                band,
                bottom_right=bottom_right,
                scale=scale,
                grouped=enable_gqa,
                dropout_p=dropout_p,
            )
        rows = read_rows(alphas, chosen, shape)
        if rows is not None and rows[0].rowmap is not None:
            return sequence_by_sequence(
                lower,
                starts,
                limits,
                rows,
                band,
                bottom_right=bottom_right,
                of_queries=isinstance(alpha, Tensor) and alpha.ndim > 1,
                scale=scale,
                grouped=enable_gqa,
                dropout_p=dropout_p,
            )
    queries = read_starts(cu_seqlens_q, "cu_seqlens_q", q, "q", limits[0])
    keys = read_starts(cu_seqlens_k, "cu_seqlens_k", k, "k", limits[1])
    if not queries:  # one that is empty, so that arguments are checked and have a gradient
        queries = keys = [0]
    each = _alphas(alpha, q, queries)
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
        for a, b, c, value in zip(qs, ks, vs, each, strict=True)
    ]
    return torch.cat(out)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_k: Tensor | None) -> None:
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
    if cu_seqlens_k is None and q.shape[0] != k.shape[0]:
        raise ValueError(
            f"cu_seqlens_k must be given where q and k differ in total length, got {q.shape[0]} "
            f"queries and {k.shape[0]} keys"
        )


def _kernel_alpha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: float | Tensor,
    mapping: Mapping | None,
    dropout_p: float,
) -> float | Tensor | None:
    """The alpha to call the kernels with, or None if sequences must go one by one."""
    items = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
    known = kernel_alpha(items[0], items[1], items[2], alpha, mapping, dropout_p)
    if known is None or not flash.fits(items[0], items[1], items[2], known):
        return None
    return known


def _longest(
    starts: tuple[Tensor, Tensor], limits: Sequence[int | None], inputs: tuple[Tensor, Tensor]
) -> tuple[int, int]:
    """The most queries and keys of a sequence, or a bound of them."""
    found: list[int] = []
    # neither may wait for the values of a tensor
    blind = recorded() or (starts[0].is_cuda and torch.cuda.is_current_stream_capturing())
    for place, limit, x, name in zip(starts, limits, inputs, ("q", "k"), strict=True):
        if limit is None and found and starts[0] is starts[1] and x.shape[0] == inputs[0].shape[0]:
            limit = found[0]  # read once
        elif limit is None and not blind:
            limit = max(read_starts(place, f"cu_seqlens_{name}", x, name), default=0)
        found.append(x.shape[0] if limit is None else limit)
    return found[0], found[1]


def _sequences(x: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Each sequence as (heads, length, size); ``split`` has one gradient, many slices have many."""
    return [part.transpose(0, 1) for part in torch.split(x, list(lengths))]


def _alphas(alpha: float | Tensor, q: Tensor, lengths: Sequence[int]) -> list[float | Tensor]:
    """Alpha for each sequence."""
    if not isinstance(alpha, Tensor) or alpha.ndim < 2:
        return [alpha] * len(lengths)
    return list(torch.split(_of_queries(alpha, q), list(lengths), -2))


def _of_scores(alpha: float | Tensor, q: Tensor) -> float | Tensor:
    """Alpha as it broadcasts to scores of all queries and keys."""
    return _of_queries(alpha, q) if isinstance(alpha, Tensor) and alpha.ndim > 1 else alpha


def _of_queries(alpha: Tensor, q: Tensor) -> Tensor:
    """(heads, total, 1)."""
    total, heads = q.shape[:2]
    if not fits(alpha.shape, torch.Size((total, heads))):
        raise ValueError(
            f"a tensor alpha must have shape ({heads},), one value for each head, or broadcast to "
            f"(total, heads) = ({total}, {heads}), got shape {tuple(alpha.shape)}"
        )
    return alpha.expand(total, heads).mT.unsqueeze(-1)
