r"""Scaled dot-product attention with any mapping in place of softmax (Vaswani et al. 2017).

.. math:: \mathrm{attention}(Q, K, V) = \Pi\left(s\, Q K^\top + B\right) V

Pi acts on each row of the scores: alpha-entmax (Peters et al. 2019), with one alpha for each head
as in Correia et al. (2019), or any other mapping. What follows is the plain path, which builds the
whole matrix of weights. Entmax on a GPU is done by kernels that do not, and where the matrix would
be large, any mapping goes tile by tile (:mod:`.tiled`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from parsimax._core.dtypes import working
from parsimax._core.records import AttentionOutput
from parsimax._core.validation import recorded
from parsimax.mappings import Mapping, parse, registry
from parsimax.mappings.base import name_of

from . import flash, tiled
from .choice import DEFAULT_ALPHA, check_one_choice, entmax_of_heads
from .dropping import draw
from .flash_decoding import Reach, few_queries, few_scores, flash_decode, reach_of
from .fused import few_keys, fused_attention, kernel_alpha
from .inputs import (
    check_devices,
    check_dropout,
    check_dtypes,
    check_flag,
    check_scale,
    scores_shape,
    with_lead_of,
)
from .precision import autocast_inputs, without_autocast
from .products import matmul_heads
from .rowwise import read_rows
from .tiled_operator import recorded_attention
from .visibility import (
    Window,
    band_mask,
    check_lengths,
    hide_beyond,
    intersect,
    read_band,
    split_mask,
    within_lengths,
)

_MANY_KEYS = 129  # from here on the kernels that skip blocks of keys
Weigh = Callable[[Tensor, Tensor | None], Tensor]  # (scores, visible) -> weights


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    alpha: float | Tensor = DEFAULT_ALPHA,
    mapping: Mapping | str | None = None,
    causal_align: str = "top-left",
    window: Window = None,
    key_lengths: Tensor | None = None,
) -> Tensor:
    r"""Attention whose weights can be exactly zero.

    All arguments of ``torch.nn.functional.scaled_dot_product_attention`` mean what they mean there,
    and at ``alpha=1`` the result is the same. A key is seen by a query if *every* one of
    ``attn_mask``, ``is_causal``, ``window`` and ``key_lengths`` allows it; a query that sees no key
    gives zeros, with gradient zero.

    Args:
        q: Queries (..., Hq, Lq, E). Leading dimensions broadcast, and there may be none.
        k: Keys (..., H, Lk, E).
        v: Values (..., H, Lk, Ev).
        attn_mask: Broadcasts to the scores (..., Hq, Lq, Lk); bool, True where a key may be seen,
            or floating-point, added to the scores (-inf hides a key).
        dropout_p: Probability with which a weight is dropped. As in torch it is always applied:
            pass 0 when you evaluate.
        is_causal: Query i sees the keys up to its own position.
        scale: What the products are multiplied with; ``None`` is 1 / sqrt(E).
        enable_gqa: Query heads share keys and values in groups: head h uses h // (Hq / H).
        alpha: Which entmax: 1 is softmax, 2 is sparsemax. A tensor may have shape (Hq,), one value
            for each head (dimension -3 of q), or broadcast to (..., Lq, 1), and be learned.
        mapping: Any mapping, or text such as ``"sparsegen(lam=0.5)"``, instead of alpha.
        causal_align: Where queries stand if Lq and Lk differ. ``"top-left"``, as in torch: query i
            at key i. ``"bottom-right"``: query i at key i + Lk - Lq, so that the last query stands
            at the last key, as with a cache of keys.
        window: ``(left, right)``: of the keys before its position a query sees the nearest
            ``left``, of those after it the nearest ``right``, and its own. One number stands for
            both sides; -1 or ``None`` is without limit. The position is that of ``causal_align``,
            whether or not ``is_causal`` is set.
        key_lengths: Integers (B,), for the first dimension of the scores, or (): only keys before
            this one exist. It hides keys as a mask does, and does not move ``causal_align``.
            Lengths on the CPU are brought to a GPU, for which the host waits: for many layers,
            bring them once.

    Returns:
        (..., Hq, Lq, Ev), in the dtype of q. Half precision is computed in float32 inside.

    >>> import torch, parsimax as px
    >>> q, k = torch.tensor([[2.0, 0.0]]), torch.eye(2)
    >>> v = torch.tensor([[1.0], [2.0]])
    >>> px.attention(q, k, v, alpha=1.0)  # softmax looks at both keys,
    tensor([[1.1956]])
    >>> px.attention(q, k, v, alpha=2.0)  # sparsemax at the first alone
    tensor([[1.]])
    """
    is_causal = check_flag(is_causal, "is_causal")
    enable_gqa = check_flag(enable_gqa, "enable_gqa")
    check_one_choice(alpha, mapping)
    shape = scores_shape(q, k, v, enable_gqa)
    allowed, bias = split_mask(attn_mask, shape)
    check_devices(q=q, attn_mask=attn_mask)
    dropout_p = check_dropout(dropout_p, "dropout_p")
    scale = check_scale(scale, q.shape[-1])
    chosen = mapping if mapping is None or isinstance(mapping, Mapping) else read_text(mapping)
    band = read_band(shape, is_causal, causal_align, window)
    within = counted = None
    if key_lengths is not None:
        counted = check_lengths(key_lengths, shape)
        key_lengths = counted.to(q.device)
        within, factor = within_lengths(key_lengths, shape)
        q = q * factor.to(q.dtype)
    lower = autocast_inputs(q, k, v)
    known = kernel_alpha(*lower, alpha, chosen, dropout_p)
    if known is not None:
        plain_band = band.left is None and band.offset == 0 and band.right in (None, 0)
        if plain_band and bias is None and few_keys(*lower, known):
            seen = intersect(allowed, within)
            if within is not None:
                lower = (lower[0], *hide_beyond(within, lower[1], lower[2]))
            return fused_attention(*lower, seen, band.right == 0, known, scale)
        if k.shape[-2] >= _MANY_KEYS and flash.fits(*lower, known):
            seen = allowed if bias is None else bias
            reach = reach_of(band, shape[-2], shape[-1], key_lengths is not None)
            few = few_queries(*lower, seen, known) and few_scores(*lower[:2])
            if few and reach is not None:
                return _one_step(lower, key_lengths, seen, reach, known, scale)
            return flash.flash_attention(*lower, seen, band, key_lengths, known, scale)
    if within is not None:
        if enable_gqa and within.ndim == len(shape) == 3:  # a length for each head of queries
            k, v = (x.repeat_interleave(shape[-3] // x.shape[-3], -3) for x in (k, v))
            enable_gqa = False
        k, v = hide_beyond(within, k, v)
        lower = autocast_inputs(q, k, v)
    rows = read_rows(alpha, chosen, shape) if tiled.large(shape, q) else None
    if rows is not None and (rows[0].rowmap is not None or not recorded()):
        check_dtypes(*lower)
        longest = tiled.known_lengths(counted, shape)
        each = with_lead_of(lower[0], v, shape, enable_gqa)
        if each is not lower[0]:
            lower, longest = (each, *lower[1:]), None
            shape = torch.Size((*each.shape[:-1], shape[-1]))
        if recorded():
            return recorded_attention(
                lower,
                bias,
                (allowed, within),
                band,
                rows,
                scale=scale,
                grouped=enable_gqa,
                dropout_p=dropout_p,
            )
        dropping = draw(dropout_p)
        problem = tiled.Problem(shape, band, scale, enable_gqa, rows[0], longest, dropping)
        return tiled.tiled_attention(*lower, bias, (allowed, within), problem, rows[1])
    visible = intersect(allowed, within, band_mask(band, shape, q.device))
    weigh = weigher(alpha, chosen)
    return attend(q, k, v, weigh, visible, bias, dropout_p, scale, enable_gqa).context


def _one_step(
    inputs: tuple[Tensor, Tensor, Tensor],
    lengths: Tensor | None,
    seen: Tensor | None,
    reach: Reach,
    alpha: float | Tensor,
    scale: float,
) -> Tensor:
    """A few queries, as in generation: by many programs for each, and without gradients."""
    q, k, v = inputs
    q, scale = flash.positive_scale(q, scale)
    seen, lengths = flash.expand(q, k, seen, lengths)
    return flash_decode(q, k, v, lengths, None, seen, reach, alpha, scale)


def weigher(alpha: float | Tensor, mapping: Mapping | None) -> Weigh:
    """Alpha or a mapping as a function of scores."""
    if mapping is None:
        return lambda scores, visible: entmax_of_heads(scores, alpha, visible)
    return lambda scores, visible: mapping(scores, mask=visible)


def read_text(text: str) -> Mapping:
    """``parse``, in a way that torch.compile can follow."""
    name, *values = _parts(text)
    return registry()[name](*values)


def _parts(text: str) -> tuple[Any, ...]:
    """A mapping's name and arguments in order, read once by torch.compile: text is a constant."""
    mapping = parse(text)
    return name_of(type(mapping)), *(getattr(mapping, f.name) for f in fields(mapping))


# All that torch.compiler.assume_constant_result does; calling it imports Dynamo, for 1.5 seconds.
_parts._dynamo_marked_constant = True  # type: ignore[attr-defined]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weigh: Weigh,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float = 1.0,
    enable_gqa: bool = False,
) -> AttentionOutput:
    """Context in the dtype of the inputs, and weights in the precision they were computed in.

    ``weigh(scores, visible)`` is the mapping, ``visible`` is True where a key may be seen and
    ``bias`` is added to the scores. This is what modules call; shapes have been checked.
    """
    q, k, v = autocast_inputs(q, k, v)
    check_dtypes(q, k, v)
    with without_autocast(q.device):
        scores = matmul_heads(working(q) * scale, working(k).mT, enable_gqa)
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        weights = weigh(scores, visible)
        if dropout_p > 0:
            weights = torch.dropout(weights, dropout_p, train=True)
        context = matmul_heads(weights, working(v), enable_gqa)
    return AttentionOutput(context.to(q.dtype), weights)
